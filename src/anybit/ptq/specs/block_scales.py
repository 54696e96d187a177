# SPDX-License-Identifier: Apache-2.0
"""Scales of blocks in MX and NVFP4 formats.

MX (OCP Microscaling Formats v1.0): with amax the largest magnitude of a block and 2^emax the
largest power of two of the element format

    X = 2^clamp(floor(log2(amax)) - emax, -127, 127)           2^-127 if amax = 0
    y = X * (x / X rounded half to even to the element format, saturated)

and NVFP4, with numbers in float32 and s in float8_e4m3fn,

    g = amax(tensor) / (448 * 6)                               1 if that is 0
    s = float8_e4m3fn((amax / 6) / g)                          saturated
    y = (s * g) * (x / (s * g) rounded to float4_e2m1fn)       0 where s * g = 0

FloatQuant and IntQuant compute the same with the scale X, X / 64 or s * g.
"""

import math
from collections.abc import Iterator

import numpy as np

from anybit.formats import FloatFormat, float8_e4m3fn
from anybit.onnx.graph.constants import Array
from anybit.ops.float_quant import float_quant
from anybit.ops.grids import FloatGrid, Grid, IntegerGrid
from anybit.quant_types.block_formats import BlockFormat, ScaleRule

# Exponents of E8M0, the format of MX scales.
_MIN_EXPONENT, _MAX_EXPONENT = -127, 127
# Elements of MXINT8 are multiples of 2^-6.
_FRACTION_BITS = 6
_INTEGER_CODES = range(-127, 128)
# With the rule MSE, NVFP4 tries these multiples of its scale, too.
_SCALE_RATIOS = tuple(step / 16 for step in range(10, 26) if step != 16)


def generate_block_grids(
    magnitude: Array, block_format: BlockFormat, rule: ScaleRule
) -> Iterator[Grid]:
    """Yield the candidate grids of blocks: several with the rule MSE, one otherwise.

    Args:
        magnitude: Largest magnitude of each block, finite, float32. Scales have its shape.
        block_format: Format of the blocks.
        rule: Rule for the scales.
    """
    if block_format.second_scale and block_format.element is not None:
        for scale in _generate_product_scales(magnitude, block_format.element, rule):
            yield FloatGrid(scale, block_format.element)
        return
    exponents = _get_scale_exponents(magnitude, block_format, rule)
    for offset in (0, -1, 1) if rule is ScaleRule.MSE else (0,):
        exponent = np.clip(exponents + offset, _MIN_EXPONENT, _MAX_EXPONENT)
        yield make_block_grid(np.where(magnitude > 0, exponent, _MIN_EXPONENT), block_format)


def make_block_grid(exponent: Array, block_format: BlockFormat) -> Grid:
    """Return the grid of MX blocks with the scales 2^exponent."""
    if block_format.element is not None:
        return FloatGrid(np.ldexp(np.float32(1), exponent), block_format.element)
    scale = np.ldexp(np.float32(1), exponent - _FRACTION_BITS)
    return IntegerGrid(scale, np.zeros((), np.float32), _INTEGER_CODES)


def get_largest_exponent(block_format: BlockFormat) -> int:
    """Return the exponent of the largest power of two among the elements."""
    return math.frexp(_get_largest_element(block_format))[1] - 1


def _get_largest_element(block_format: BlockFormat) -> float:
    element = block_format.element
    return _INTEGER_CODES[-1] / 2.0**_FRACTION_BITS if element is None else element.largest


def _get_scale_exponents(magnitude: Array, block_format: BlockFormat, rule: ScaleRule) -> Array:
    """Return the exponents of MX scales, before they are limited to E8M0."""
    fraction, exponent = np.frexp(magnitude.astype(np.float64))  # 0.5 <= fraction < 1
    largest_fraction, emax = math.frexp(_get_largest_element(block_format))
    element = block_format.element
    mantissa_bits = _FRACTION_BITS if element is None else element.mantissa_bitwidth
    match rule:
        case ScaleRule.CEIL:
            return np.asarray(exponent - emax + (fraction > largest_fraction))
        case ScaleRule.EVEN:
            # Ties round to even, here to the next power of two.
            rounds_up = 2 * fraction >= 2 - 2.0 ** -(mantissa_bits + 1)
            return np.asarray(exponent - emax + rounds_up)
        case _:
            return np.asarray(exponent - emax)


def _generate_product_scales(
    magnitude: Array, element: FloatFormat, rule: ScaleRule
) -> Iterator[Array]:
    """Yield the scales s * g of NVFP4 blocks.

    Where s * g = 0 the largest scale replaces it: the block is 0 with either, and x / scale stays
    finite.
    """
    largest_scale, largest = np.float32(float8_e4m3fn.largest), np.float32(element.largest)
    g = magnitude.max(initial=0) / (largest_scale * largest) or np.float32(1)
    for ratio in (1.0, *(_SCALE_RATIOS if rule is ScaleRule.MSE else ())):
        s = float_quant(magnitude / largest / g * np.float32(ratio), 1.0, *float8_e4m3fn)
        scale = np.asarray(s) * g
        yield np.where(scale > 0, scale, largest_scale * g)
