# SPDX-License-Identifier: Apache-2.0
"""MX and NVFP4 for constants, against exact rational arithmetic; and how blocks lie."""

from fractions import Fraction

import numpy as np
import pytest
from block_models import telling_blocks
from oracle import blocks as oracle

from anybit.quantization.block_scales import candidates
from anybit.quantization.schemes import quantized
from anybit.words.block_formats import BLOCK_FORMATS, ScaleRule

MX = ["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "mxint8"]
RULES = [ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.MSE]


def chosen(blocks: np.ndarray, name: str, rule: ScaleRule) -> np.ndarray:
    """Of the candidates the one with the least error, block by block."""
    reach = np.abs(blocks).max(axis=-1, keepdims=True)
    best, least = blocks, np.full(reach.shape, np.inf)
    for grid in candidates(reach, BLOCK_FORMATS[name], rule):
        found = quantized(blocks, grid)
        error = np.square(found - blocks.astype(np.float64)).sum(axis=-1, keepdims=True)
        best = np.where((error < least) | (least == np.inf), found, best)
        least = np.minimum(error, least)
    return best


def exact(blocks: np.ndarray) -> list[list[Fraction]]:
    return [[Fraction(float(x)) for x in block] for block in blocks]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", MX)
def test_mx_is_exact(name: str, rule: ScaleRule) -> None:
    blocks = telling_blocks(32)
    wanted = [oracle.mx(block, name, rule) for block in exact(blocks)]
    np.testing.assert_array_equal(chosen(blocks, name, rule), wanted)


@pytest.mark.parametrize("scale", [1.0, 2.0**-126, 2.0**-149, 2.0**100, 0.0])
def test_nvfp4_is_exact(scale: float) -> None:
    blocks = telling_blocks(16)
    middle = blocks[np.abs(blocks).max(axis=-1) < 2.0**20] * np.float32(scale)
    # Blocks by themselves, and with others that make theirs vanish.
    for part in (middle, *(each[None] for each in blocks[-12:])):
        wanted = oracle.nvfp4(exact(part))
        np.testing.assert_array_equal(chosen(part, "nvfp4", ScaleRule.ABSMAX), wanted)
