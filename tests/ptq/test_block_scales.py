# SPDX-License-Identifier: Apache-2.0
"""Scales of MX and NVFP4 weights, against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from block_models import edge_case_blocks
from oracle import blocks as oracle
from pass_checks import random

from anybit.ptq.algorithms.round_to_nearest import round_to_nearest
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph.targets import WeightInput
from anybit.quant_types.block_formats import ScaleRule
from anybit.quant_types.spec import parse_quant_spec

MX = ["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "mxint8"]
RULES = [ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.MSE]


def quantize_rows(blocks: np.ndarray, spec: str) -> np.ndarray:
    """Quantize a weight whose rows are blocks."""
    return round_to_nearest(
        blocks, WeightInput(1, (0,), 1), parse_quant_spec(spec, "weights"), DEFAULT.weights
    ).values


def to_fractions(blocks: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in block] for block in blocks]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MX)
def test_quantize_mx_blocks_matches_exact_arithmetic(name: str, rule: ScaleRule) -> None:
    blocks = edge_case_blocks(32)
    expected = [oracle.mx(block, name, rule) for block in to_fractions(blocks)]
    np.testing.assert_array_equal(quantize_rows(blocks, f"{name} {rule}"), expected)


@pytest.mark.parametrize("rule", [ScaleRule.ABSMAX, ScaleRule.MSE])
@pytest.mark.parametrize("scale", [1.0, 2.0**-126, 2.0**-149, 2.0**100, 0.0])
def test_quantize_nvfp4_blocks_matches_exact_arithmetic(scale: float, rule: ScaleRule) -> None:
    blocks = edge_case_blocks(16)
    middle = blocks[np.abs(blocks).max(axis=-1) < 2.0**20] * np.float32(scale)
    # Blocks alone, and with others whose magnitude makes their scale vanish.
    for part in (middle, blocks, *(block[None] for block in blocks[-12:])):
        expected = oracle.nvfp4(to_fractions(part), rule)
        np.testing.assert_array_equal(quantize_rows(part, f"nvfp4 {rule}"), expected)


def test_quantize_nvfp4_blocks_selects_the_scale_with_the_least_error() -> None:
    blocks = random(64, 16, seed=2)
    expected = to_fractions(blocks)
    g = oracle.tensor_scale(expected)
    best = {oracle.nvfp4_best(block, g, ScaleRule.MSE)[0] for block in expected}
    assert len(best) > 5, "the best scale has to differ between blocks"
    np.testing.assert_array_equal(
        quantize_rows(blocks, "nvfp4"), oracle.nvfp4(expected, ScaleRule.MSE)
    )
