# SPDX-License-Identifier: Apache-2.0
"""Grids: the values that an operator can return.

A grid consists of arrays and formats, independent of frameworks. Operators with one define `grid`
(from parameters to a grid) and, if possible, `from_grid` (the inverse).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from anybit.arrays import Array
from anybit.formats import FloatFormat

# Up to this magnitude, a quotient in float32 is off by less than half a step.
_LARGEST_FLOAT32_CODE = 2**22


class Coding(StrEnum):
    """The conversion of x to a code."""

    NEAREST = "nearest"
    """x / scale + zeropt, rounded half to even, saturated."""
    SIGN = "sign"
    """+1 for x >= 0, -1 elsewhere, including NaN."""
    OTHER = "other"
    """Another conversion; the codes of known results can still be derived."""


@dataclass(frozen=True)
class Channels:
    """Scale and zero-point in ONNX's layout: 0-d, or 1-D along an axis, in float32.

    The axis counts from the end (-1 is the last): broadcast parameters are aligned there, so the
    rank of x need not be known. It is None if both are 0-d.

    With a `block`, that many elements along the axis share a scale, and both have x's rank.
    """

    scale: Array
    zeropt: Array
    axis: int | None
    block: int = 0

    def broadcast(self, array: Array) -> Array:
        """Return a parameter of this layout in a shape that broadcasts to x."""
        if self.axis is None or array.ndim == 0 or self.block:
            return array
        return array.reshape(-1, *[1] * (-self.axis - 1))


def get_channels(scale: Array, zeropt: Array) -> Channels | None:
    """Return the layout of parameters that broadcast.

    None if more than one axis varies, or there are no elements.
    """
    try:
        shape = np.broadcast_shapes(scale.shape, zeropt.shape)
    except ValueError:
        return None
    varying = [axis - len(shape) for axis, size in enumerate(shape) if size != 1]
    if len(varying) > 1 or math.prod(shape) == 0:
        return None
    target = shape if varying else ()
    parts = [
        _broadcast_to(parameter, target).reshape(-1 if varying else ())
        for parameter in (scale, zeropt)
    ]
    return Channels(parts[0], parts[1], varying[0] if varying else None)


def _broadcast_to(array: Array, shape: tuple[int, ...]) -> Array:
    scalar = array.reshape(()) if array.size == 1 else array
    return np.array(np.broadcast_to(scalar, shape), dtype=np.float32)


@dataclass(frozen=True)
class Spacing:
    """Distances of the values of a grid: one scale, or the gaps of a minifloat times the scale.

    The parameters broadcast to the tensor; each channel may have its own.
    """

    scale: Array
    mantissa_bitwidth: Array | None = None
    exponent_bias: Array | None = None

    def select(self, mask: Array) -> "Spacing":
        """Return the spacing of the elements of a tensor that a mask selects."""

        def pick(parameter: Array) -> Array:
            return np.broadcast_to(parameter, mask.shape)[mask] if parameter.ndim else parameter

        formats = (self.mantissa_bitwidth, self.exponent_bias)
        return Spacing(
            pick(self.scale),
            *(None if parameter is None else pick(parameter) for parameter in formats),
        )

    def count_steps(self, values: Array) -> Array:
        """Return the number of steps of each value above 0, in float64, with fractions."""
        with np.errstate(all="ignore"):
            y = values.astype(np.float64) / self.scale
            if self.mantissa_bitwidth is None or self.exponent_bias is None:
                return np.asarray(y)
            lowest = 1 - self.exponent_bias
            _, above = np.frexp(y)
            exponent = np.maximum(above - 1, lowest)  # frexp's fractions begin at one half
            steps_per_binade = np.exp2(self.mantissa_bitwidth)
            within = np.abs(y) / np.exp2(exponent) * steps_per_binade
            positions = np.sign(y) * (within + (exponent - lowest) * steps_per_binade)
            return np.asarray(np.where(np.isfinite(y), positions, y))


@dataclass(frozen=True)
class IntegerGrid:
    """The values (code - zeropt) * scale for the integer codes of a range.

    `range(-8, 8)` are the codes of four signed bits, `range(-1, 2, 2)` those of a sign: -1 and 1.
    `scale` and `zeropt` are float arrays that broadcast to x.
    """

    scale: Array
    zeropt: Array
    codes: range
    coding: Coding = Coding.NEAREST

    @property
    def lowest(self) -> int:
        return self.codes[0]

    @property
    def highest(self) -> int:
        return self.codes[-1]

    @property
    def bits(self) -> int:
        """Return the number of bits that distinguish the codes."""
        return max(1, (len(self.codes) - 1).bit_length())

    @property
    def ends(self) -> tuple[float, float]:
        """Return the least and the largest value; for the first scale, if there are several."""
        codes = np.array([self.lowest, self.highest])
        low, high = sorted(float(self.decode(code).flat[0]) for code in codes)
        return low, high

    @property
    def channels(self) -> Channels | None:
        """Return scale and zero-point per channel; None if they vary along several axes."""
        return get_channels(self.scale, self.zeropt)

    @property
    def spacing(self) -> Spacing:
        """Return the distance of the values of adjacent integers, codes or not."""
        return Spacing(np.abs(self.scale.astype(np.float64)))

    def count_steps(self, values: Array) -> Array:
        """Return the number of steps of each value above 0."""
        return self.spacing.count_steps(values)

    def decode(self, codes: Array) -> Array:
        """Return (code - zeropt) * scale, as DequantizeLinear computes it in float32.

        The difference is computed in wider integers: in the codes' own type it would wrap.
        Zero-points that are not integers are subtracted in float32.
        """
        zeropt, scale = self.zeropt, self.scale.astype(np.float32)
        if not np.any(zeropt) and codes.dtype.kind in "iu":
            with np.errstate(all="ignore"):
                return np.asarray(np.multiply(codes, scale, dtype=np.float32, casting="same_kind"))
        wide = codes.astype(np.int64 if codes.dtype.itemsize > 2 else np.int32)
        if np.all((zeropt == np.rint(zeropt)) & (np.abs(zeropt) < 2.0**31)):
            zeropt = zeropt.astype(wide.dtype)
        else:
            wide = wide.astype(np.float32)
        with np.errstate(all="ignore"):  # infinite beyond float32
            return np.asarray((wide - zeropt).astype(np.float32) * scale)

    def encode(self, values: Array, dtype: Any) -> Array:
        """Return the codes of values on the grid, in a sufficient integer type.

        Raises:
            ValueError: The codes do not decode to the same values: these are NaN, infinite or off
                the grid, or float32 is too coarse for the width.
        """
        largest = max(abs(self.lowest), abs(self.highest))
        compute = np.float32 if largest < _LARGEST_FLOAT32_CODE else np.float64
        with np.errstate(all="ignore"):
            codes = np.asarray(np.divide(values, self.scale, dtype=compute))
            codes += self.zeropt
            np.rint(codes, out=codes)
        if not np.all(self._contains(codes)):
            raise ValueError("its values are NaN or infinite, or off their grid")
        stored = codes.astype(dtype)
        if not np.array_equal(self.decode(stored), values):
            raise ValueError("its codes times scale differ from its values in float32")
        return stored

    def _contains(self, codes: Array) -> Array:
        """Return which numbers are codes."""
        inside = (codes >= self.lowest) & (codes <= self.highest)
        if self.codes.step == 1:  # the numbers are rounded already
            return np.asarray(inside)
        with np.errstate(invalid="ignore"):
            return np.asarray(inside & ((codes - self.lowest) % self.codes.step == 0))


@dataclass(frozen=True)
class FloatGrid:
    """The values of a floating-point format, each times scale."""

    scale: Array
    format: FloatFormat
    coding: Coding = Coding.NEAREST

    @property
    def bits(self) -> int:
        return self.format.bits

    @property
    def zeropt(self) -> Array:
        """Return 0: formats have no zero-point."""
        return np.zeros((), np.float32)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the least and the largest value; for the first scale, if there are several."""
        reach = float(self.decode(np.array(self.format.largest)).flat[0])
        return -abs(reach), abs(reach)

    @property
    def channels(self) -> Channels | None:
        """Return the scale per channel; None if it varies along several axes."""
        return get_channels(self.scale, self.zeropt)

    @property
    def spacing(self) -> Spacing:
        return Spacing(
            np.abs(self.scale.astype(np.float64)),
            np.asarray(float(self.format.mantissa_bitwidth)),
            np.asarray(float(self.format.exponent_bias)),
        )

    def count_steps(self, values: Array) -> Array:
        """Return the number of grid values between each value and 0."""
        return self.spacing.count_steps(values)

    def decode(self, codes: Array) -> Array:
        """Return numbers of a floating-point type times scale, in float32."""
        with np.errstate(all="ignore"):  # infinite beyond float32
            return np.asarray(codes.astype(np.float32) * self.scale.astype(np.float32))

    def encode(self, values: Array, dtype: Any) -> Array:
        """Return the numbers of the format's type with these values.

        Raises:
            ValueError: The values are off the grid.
        """
        with np.errstate(all="ignore"):
            stored = np.asarray(np.divide(values, self.scale, dtype=np.float32)).astype(dtype)
        if not np.array_equal(self.decode(stored), values, equal_nan=True):
            raise ValueError("its codes times scale differ from its values in float32")
        return stored


Grid: TypeAlias = IntegerGrid | FloatGrid


@dataclass(frozen=True)
class Call:
    """The parameters, by input name, and the attributes of a call."""

    parameters: Mapping[str, Array]
    attributes: Mapping[str, bool | int | str]


def get_single_integer(values: Any) -> int | None:
    """Return the only integer of an array of equal integers; None if they differ."""
    distinct = np.unique(np.asarray(values, dtype=np.float64))
    return int(distinct[0]) if distinct.size == 1 else None
