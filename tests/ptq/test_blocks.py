# SPDX-License-Identifier: Apache-2.0
"""MX and NVFP4 for constants, against exact rational arithmetic; and how blocks lie."""

from fractions import Fraction

import numpy as np
import pytest
from block_models import telling_blocks
from oracle import blocks as oracle
from pass_checks import random

from anybit.ptq.algorithms.round_to_nearest import nearest
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph.targets import WeightInput
from anybit.quant_types.block_formats import ScaleRule
from anybit.quant_types.spec import parse_quant_spec

MX = ["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "mxint8"]
RULES = [ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.MSE]


def rounded(blocks: np.ndarray, words: str) -> np.ndarray:
    """A weight whose rows are blocks, as it is quantized."""
    return nearest(
        blocks, WeightInput(1, (0,), 1), parse_quant_spec(words, "weights"), DEFAULT.weights
    ).values


def exact(blocks: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in block] for block in blocks]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MX)
def test_mx_is_exact(name: str, rule: ScaleRule) -> None:
    blocks = telling_blocks(32)
    wanted = [oracle.mx(block, name, rule) for block in exact(blocks)]
    np.testing.assert_array_equal(rounded(blocks, f"{name} {rule}"), wanted)


@pytest.mark.parametrize("rule", [ScaleRule.ABSMAX, ScaleRule.MSE])
@pytest.mark.parametrize("scale", [1.0, 2.0**-126, 2.0**-149, 2.0**100, 0.0])
def test_nvfp4_is_exact(scale: float, rule: ScaleRule) -> None:
    blocks = telling_blocks(16)
    middle = blocks[np.abs(blocks).max(axis=-1) < 2.0**20] * np.float32(scale)
    # Blocks by themselves, and with others that make theirs vanish.
    for part in (middle, blocks, *(each[None] for each in blocks[-12:])):
        wanted = oracle.nvfp4(exact(part), rule)
        np.testing.assert_array_equal(rounded(part, f"nvfp4 {rule}"), wanted)


def test_nvfp4_takes_the_scale_with_the_least_error() -> None:
    blocks = random(64, 16, seed=2)
    wanted = exact(blocks)
    g = oracle.tensor_scale(wanted)
    best = {oracle.nvfp4_best(block, g, ScaleRule.MSE)[0] for block in wanted}
    assert len(best) > 5, "blocks differ in which is best"
    np.testing.assert_array_equal(rounded(blocks, "nvfp4"), oracle.nvfp4(wanted, ScaleRule.MSE))
