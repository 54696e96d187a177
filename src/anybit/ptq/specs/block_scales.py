# SPDX-License-Identifier: Apache-2.0
"""The scales of blocks in the formats MX and NVFP4, for known numbers.

MX (OCP Microscaling Formats v1.0): with amax the largest magnitude of a block and 2^emax the
largest power of two of the element format

    X = 2^clamp(floor(log2(amax)) - emax, -127, 127)           2^-127 if amax = 0
    y = X * (x / X rounded half to even to the element format, saturated)

and NVFP4, with numbers in float32 and s in float8_e4m3fn,

    g = amax(tensor) / (448 * 6)                               1 if that is 0
    s = float8_e4m3fn((amax / 6) / g)                          saturated
    y = (s * g) * (x / (s * g) rounded to float4_e2m1fn)       0 where s * g = 0

All of it is what FloatQuant and IntQuant give with X, X / 64 and s * g for the scale.
"""

import math
from collections.abc import Iterator

import numpy as np

from anybit.formats import FloatFormat, float8_e4m3fn
from anybit.onnx.graph.constants import Array
from anybit.ops.float_quant import float_quant
from anybit.ops.grids import FloatGrid, Grid, IntegerGrid
from anybit.quant_types.block_formats import BlockFormat, ScaleRule

# Of E8M0.
_LOWEST, _HIGHEST = -127, 127
# Elements of MXINT8 are multiples of 2^-6.
_FRACTION = 6
_INTEGERS = range(-127, 128)
# The shares of the plain scale that NVFP4 tries for the least error, besides itself.
_RATIOS = tuple(step / 16 for step in range(10, 26) if step != 16)


def candidates(reach: Array, of: BlockFormat, rule: ScaleRule) -> Iterator[Grid]:
    """The grids to choose from, block by block; one, unless the rule is MSE.

    Args:
        reach: The largest magnitude of each block, finite, in float32.
        of: The format.
        rule: How scales follow from them.

    Returns:
        Grids whose scales have the shape of `reach`.
    """
    if of.second_scale:
        assert of.element is not None, "formats with two scales are of floats"
        for scale in _products(reach, of.element, rule):
            yield FloatGrid(scale, of.element)
        return
    exponents = _exponents(reach, of, rule)
    for more in (0, -1, 1) if rule is ScaleRule.MSE else (0,):
        exponent = np.clip(exponents + more, _LOWEST, _HIGHEST)
        yield block_grid(np.where(reach > 0, exponent, _LOWEST), of)


def block_grid(exponent: Array, of: BlockFormat) -> Grid:
    """That of blocks with these powers of two."""
    if of.element is not None:
        return FloatGrid(np.ldexp(np.float32(1), exponent), of.element)
    scale = np.ldexp(np.float32(1), exponent - _FRACTION)
    return IntegerGrid(scale, np.zeros((), np.float32), _INTEGERS)


def largest_power(of: BlockFormat) -> int:
    """The exponent of the largest power of two among the elements."""
    return math.frexp(_largest(of))[1] - 1


def _largest(of: BlockFormat) -> float:
    return _INTEGERS[-1] / 2.0**_FRACTION if of.element is None else of.element.largest


def _exponents(reach: Array, of: BlockFormat, rule: ScaleRule) -> Array:
    """Of the scales, before they are limited."""
    fraction, above = np.frexp(reach.astype(np.float64))  # fractions begin at one half
    most, emax = math.frexp(_largest(of))
    mantissa = _FRACTION if of.element is None else of.element.mantissa_bitwidth
    match rule:
        case ScaleRule.CEIL:
            return np.asarray(above - emax + (fraction > most))
        case ScaleRule.EVEN:
            # What rounds up to the next power of two: the last tie is one to even.
            return np.asarray(above - emax + (2 * fraction >= 2 - 2.0 ** -(mantissa + 1)))
        case _:
            return np.asarray(above - emax)


def _products(reach: Array, element: FloatFormat, rule: ScaleRule) -> Iterator[Array]:
    """The scales of NVFP4's blocks, s * g.

    Where that is 0 it is the largest there is: numbers of the block are 0 by either, and no
    quotient is infinite.
    """
    most, largest = np.float32(float8_e4m3fn.largest), np.float32(element.largest)
    g = reach.max(initial=0) / (most * largest) or np.float32(1)
    for ratio in (1.0, *(_RATIOS if rule is ScaleRule.MSE else ())):
        s = float_quant(reach / largest / g * np.float32(ratio), 1.0, *float8_e4m3fn)
        scale = np.asarray(s) * g
        yield np.where(scale > 0, scale, most * g)
