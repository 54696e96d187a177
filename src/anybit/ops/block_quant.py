# SPDX-License-Identifier: Apache-2.0
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from anybit.formats import FloatFormat, float8_e4m3fn
from anybit.ops.arrays import get_namespace
from anybit.ops.blocks import (
    align_with_blocks,
    check_one_per_block,
    find_axis,
    find_magnitudes,
    merge_blocks,
    split_blocks,
)
from anybit.ops.domain import Floating, Scale
from anybit.ops.gradient import Gradient
from anybit.ops.operator import define_operator
from anybit.ops.powers import floor_log2, power_of_two
from anybit.quant_types.block_formats import BLOCK_FORMATS
from anybit.quant_types.dynamic_scales import SMALLEST_DYNAMIC_SCALE, find_largest_scale

_TWO_LEVELS = "nvfp4"
# Exponents of E8M0, the format of MX scales.
_LEAST_EXPONENT, _LARGEST_EXPONENT = -127, 127
_INTEGER_BITS = range(2, 9)
_INTEGER_BLOCK = 32
# Elements of MXINT8 are multiples of 2^-6.
_FRACTION_BITS = 6


@dataclass(frozen=True)
class _Elements:
    """The elements of a format of blocks.

    Attributes:
        largest: Their largest value.
        mantissa: The bits after the leading one.
        smallest_exponent: Spacing is even below 2 to this power.
        block: The usual number of elements in a block.
    """

    largest: float
    mantissa: int
    smallest_exponent: int
    block: int

    @property
    def largest_exponent(self) -> int:
        """Return the exponent of the largest power of two."""
        return math.frexp(self.largest)[1] - 1

    @property
    def even_step(self) -> float | None:
        """Return the distance of the values if they are equally spaced."""
        if self.smallest_exponent < self.largest_exponent:
            return None
        return 2.0 ** (self.smallest_exponent - self.mantissa)


def _describe(element: FloatFormat | None, block: int) -> _Elements:
    if element is None:
        return _Elements(127 / 2**_FRACTION_BITS, _FRACTION_BITS, 0, block)
    lowest = 1 - element.exponent_bias
    return _Elements(element.largest, element.mantissa_bitwidth, lowest, block)


_MX = {
    name: _describe(block_format.element, block_format.size)
    for name, block_format in BLOCK_FORMATS.items()
    if block_format.name == name and not block_format.second_scale
}
_NVFP4 = _describe(BLOCK_FORMATS[_TWO_LEVELS].element, BLOCK_FORMATS[_TWO_LEVELS].size)
_INTEGERS = {
    f"int{bits}": _Elements(2 ** (bits - 1) - 1, bits - 2, bits - 2, _INTEGER_BLOCK)
    for bits in _INTEGER_BITS
}
_ELEMENTS = {**_MX, _TWO_LEVELS: _NVFP4, **_INTEGERS}
_E4M3 = _describe(float8_e4m3fn, 1)


def _place(value: Any, x: Any, name: str, attributes: dict[str, Any]) -> Any:
    if attributes["format"] != _TWO_LEVELS:
        raise ValueError(f"{name} needs the format {_TWO_LEVELS}, got {attributes['format']!r}")
    return check_one_per_block(value, x, name, attributes["axis"])


def _partials(
    x: Any, tensor_scale: Any = None, *, format: str, axis: int, block_size: int
) -> tuple[Any, ...]:
    axis, elements, blocks = _split(x, format, axis, block_size)
    y = blocks / _find_scales(blocks, tensor_scale, format, axis - x.ndim)
    xp = get_namespace(y)
    inside = xp.where(xp.abs(y) > elements.largest, xp.zeros_like(y), xp.ones_like(y))
    return (merge_blocks(inside, x, axis),)


@define_operator(
    "BlockQuant",
    domain="anybit",
    place=_place,
    gradient=Gradient(("x",), _partials),
    block_axis="axis",
)
def block_quant(
    x: Floating,
    tensor_scale: Scale | None = None,
    *,
    format: str = "mxfp8",
    axis: int = -1,
    block_size: int = 0,
    out: Any = None,
) -> Any:
    """Quantize blocks of x with scales that follow from their largest magnitudes.

        amax = the largest |x| of the block
        y = x / scale
        q = clip(y, -largest, largest), rounded half to even to the elements of the format
        result = q * scale

    The scale of the MX formats is a power of two, with 2^emax the largest one of the elements:

        scale = 2^clip(floor(log2(amax)) - emax, -127, 127)         2^-127 if amax = 0

    nvfp4 has a scale of two levels, with s rounded like an element:

        s = clip((amax / 6) / tensor_scale, -448, 448), rounded to float8_e4m3fn
        scale = s * tensor_scale                                    448 * tensor_scale if that is 0

    The integers -L .. L have a scale of any value; S is the largest for which S * L is finite:

        scale = min(max(amax, L * 2^-124) / L, S)

    Args:
        x: float32, float64, float16 or bfloat16, of rank 1 or more. Computed in float32 (float64
            for float64).
        tensor_scale: The second scale of nvfp4, 1 if not given; usually the largest magnitude in x
            or in calibration data, over 448 * 6. It broadcasts to x, with size 1 along the axis.
        format: mxfp8 (elements float8_e4m3fn), mxfp8_e5m2, mxfp6 (float6_e2m3fn), mxfp6_e3m2, mxfp4
            (float4_e2m1fn), mxint8 (multiples of 1/64 up to 127/64), nvfp4 (float4_e2m1fn), or int2
            to int8 with L = 1, 3, 7, 15, 31, 63, 127.
        axis: The axis along which the elements of a block lie, in [-rank, rank - 1].
        block_size: The number of elements in a block; 0 stands for 16 with nvfp4, 32 otherwise. The
            last block may be shorter.
        out: An array of x's shape and dtype to write to; x itself is allowed.

    Returns:
        An array of x's shape and dtype. All elements of a block with NaN or an infinity are NaN.
        Zeros keep the sign of x, as do elements that are rounded to 0.

    Raises:
        ValueError: An unknown format, an axis that x does not have, a negative block_size, a
            tensor_scale of another format than nvfp4 or that varies within a block, an `out` of
            another shape or dtype.
        TypeError: An x or a tensor_scale of a dtype that is not real.

    Source: BlockQuant has the formats of OCP Microscaling Formats (MX) v1.0, with the values of
    microxcaling (ties to even, exact exponents) and torchao (scale mode floor); nvfp4 has those of
    NVIDIA's ModelOpt, which uses s = 2^-9 if s is 0.

    >>> block_quant([0.9, 17.0, -1.3, 3.0], format="mxfp4")
    array([ 0., 16., -2.,  4.])
    """
    axis, elements, blocks = _split(x, format, axis, block_size)
    scale = _find_scales(blocks, tensor_scale, format, axis - x.ndim)
    return merge_blocks(_round_to_elements(blocks / scale, elements) * scale, x, axis)


def _split(x: Any, format: str, axis: int, block_size: int) -> tuple[int, _Elements, Any]:
    """Return the axis counted from the front, the elements of the format, and the blocks."""
    if format not in _ELEMENTS:
        raise ValueError(f"format must be one of {', '.join(_ELEMENTS)}, got {format!r}")
    if block_size < 0:
        raise ValueError(f"block_size must be >= 1, or 0 for that of the format, got {block_size}")
    elements, axis = _ELEMENTS[format], find_axis(axis, x.ndim)
    return axis, elements, split_blocks(x, axis, block_size or elements.block)


def _find_scales(blocks: Any, tensor_scale: Any, format: str, axis: int) -> Any:
    """Return a scale per block, NaN unless all elements are finite; the axis is negative."""
    amax = find_magnitudes(blocks, blocks.ndim + axis)
    xp = get_namespace(amax)
    if format in _MX:
        exponent = floor_log2(amax) - _MX[format].largest_exponent
        exponent = xp.clip(exponent, _LEAST_EXPONENT, _LARGEST_EXPONENT)
        scale = power_of_two(exponent, amax.dtype)
    elif format in _INTEGERS:
        scale = _find_integer_scale(amax, int(_INTEGERS[format].largest))
    else:
        s = amax / _NVFP4.largest
        if tensor_scale is None:
            scale = _round_to_elements(s, _E4M3)
            other = xp.full_like(scale, _E4M3.largest)
        else:
            g = align_with_blocks(tensor_scale, axis)
            scale = _round_to_elements(s / g, _E4M3) * g
            other = _E4M3.largest * g
        scale = xp.where(scale == 0, other, scale)
    return xp.where(amax < math.inf, scale, xp.full_like(scale, math.nan))


def _find_integer_scale(amax: Any, steps: int) -> Any:
    xp = get_namespace(amax)
    single = amax.dtype == xp.float32
    largest = np.finfo(np.float32 if single else np.float64).max
    most = find_largest_scale(steps, float(largest), 24 if single else 53)
    scale = xp.clip(amax, steps * SMALLEST_DYNAMIC_SCALE, math.inf) / steps
    return xp.where(scale > most, xp.full_like(scale, most), scale)


def _round_to_elements(y: Any, elements: _Elements) -> Any:
    """Return y clipped and rounded half to even; NaN stays NaN."""
    clipped = get_namespace(y).clip(y, -elements.largest, elements.largest)
    return _round_to_grid(clipped, elements)


def _round_to_grid(y: Any, elements: _Elements) -> Any:
    """Return y rounded half to even to the distance of the elements near it."""
    xp = get_namespace(y)
    if elements.even_step is not None:
        return xp.round(y / elements.even_step) * elements.even_step
    magnitude = xp.abs(y)
    smallest = xp.full_like(y, 2.0**elements.smallest_exponent)
    normal = xp.where(magnitude < smallest, smallest, magnitude)
    step = power_of_two(floor_log2(normal) - elements.mantissa, y.dtype)
    return xp.round(y / step) * step
