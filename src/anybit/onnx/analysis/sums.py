# SPDX-License-Identifier: Apache-2.0
"""What a sum of products can be, from its parts: the theory.

If every x is a multiple of 2^p, every weight of a channel one of 2^r, and the sum of their largest
magnitudes at most 2^24 units of 2^(p + r), then each product and each partial sum, in any order and
with or without fused operations, is a float32: nothing rounds.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anybit.formats import LARGEST_FLOAT32
from anybit.onnx.analysis.carriers import Carrier, Codes
from anybit.onnx.analysis.layouts import Layout
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.products import Accumulator
from anybit.onnx.analysis.units import LOWEST_EXPONENT, NO_EXPONENT, exponents_of
from anybit.onnx.graph.constants import Array

_ROUNDING = 2.0**-24
_TINY = 2.0**LOWEST_EXPONENT
# No accumulator of that many units is counted in int64.
_MOST = 2**62


@dataclass(frozen=True, eq=False)
class Parts:
    """A weight as groups x channels x channels of x x taps, and its sums per channel.

    Integers are added up in int64, floats in float64.
    """

    weight: Array

    @property
    def channels(self) -> int:
        return math.prod(self.weight.shape[:2])

    def per_channel(self, array: Array) -> Array:
        return array.reshape(self.channels, *array.shape[2:])

    def magnitudes(self, reach: Array) -> Array:
        """Per channel the sum of |weight| * reach, with a reach per channel of x, or one."""
        return self._above(reach) - self._below(reach)

    def ends(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Per channel the lowest and the highest sum of weight * x, for x between two bounds."""
        return self._above(low) + self._below(high), self._above(high) + self._below(low)

    def _above(self, factor: Array) -> Array:
        return self._summed(self._positive, factor)

    def _below(self, factor: Array) -> Array:
        return self._summed(self._negative, factor)

    @cached_property
    def _positive(self) -> "_Half":
        return _Half(np.maximum(self.weight, 0))

    @cached_property
    def _negative(self) -> "_Half":
        return _Half(np.minimum(self.weight, 0))

    def _summed(self, half: "_Half", factor: Array) -> Array:
        if factor.ndim == 0:
            return self.per_channel(half.total * factor)
        groups, _, inner, _ = self.weight.shape
        if factor.size != groups * inner:
            raise Mismatch("its input has another number of channels than its weight")
        return self.per_channel((half.taps * factor.reshape(groups, 1, inner)).sum(axis=2))

    @cached_property
    def terms(self) -> Array:
        return self.per_channel(np.count_nonzero(self.weight, axis=(2, 3)))


@dataclass(frozen=True, eq=False)
class _Half:
    """The weights of one sign, and 0 for the others."""

    weight: Array

    @property
    def _wide(self) -> type:
        return np.float64 if self.weight.dtype.kind == "f" else np.int64

    @cached_property
    def taps(self) -> Array:
        return np.asarray(self.weight.sum(axis=3, dtype=self._wide))

    @cached_property
    def total(self) -> Array:
        return np.asarray(self.weight.sum(axis=(2, 3), dtype=self._wide))


def accumulator_of(x: Carrier, codes: Array, weight: Carrier, layout: Layout) -> Accumulator | None:
    """The integers that the sum can be.

    Raises:
        Mismatch: Sizes that do not fit.
    """
    if x.codes is None or weight.codes is None or not x.codes.integral:
        return None
    parts = Parts(layout.canonical(codes))
    low, high = x.codes.centered
    if layout.padded:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    count = math.prod(parts.weight.shape[2:])
    corners = [a * b * count for a in _type_ends(weight.codes) for b in _type_ends(x.codes)]
    if max(map(abs, corners)) >= _MOST:
        return None
    return Accumulator(*parts.ends(low, high), min(*corners, 0), max(*corners, 0))


def _type_ends(codes: Codes) -> tuple[int, int]:
    """The lowest and the highest code - zeropt of a type; of none, those that are there."""
    if codes.allowed is None:
        low, high = codes.centered
        reach = max(abs(int(low.min())), abs(int(high.max())))
        return (-reach if low.min() < 0 else 0), reach
    zeropt = codes.zeropt.astype(np.int64)
    return min(codes.allowed) - int(zeropt.max()), max(codes.allowed) - int(zeropt.min())


def units_of(values: Array, layout: Layout) -> Array:
    """Per channel of the result the exponent of which all weights are multiples."""
    exponents = layout.canonical(exponents_of(values, NO_EXPONENT))
    found = exponents.min(axis=(2, 3)).reshape(-1)
    return np.where(found == NO_EXPONENT, 0, found)


def error_of(reach: Array, terms: Array) -> Array:
    """By how much sums of so many terms, of so large magnitudes together, are off at most.

    Two evaluations differ by n + 7 roundings per term (Higham: |error| <= gamma_(n + 7) * reach):
    of one, the product and n sums, the bias among them; of the other, both factors as multiples of
    their scales, the accumulator, the product of the scales, that of the two, and the bias. Two
    more are for what float64 rounds here. A product below the normal numbers is off by less than
    the smallest number, whatever its magnitude. Where a sum can be infinite, so is the error.
    """
    rounded = (terms + 9) * _ROUNDING
    with np.errstate(all="ignore"):
        gamma = np.where(rounded < 0.5, rounded / (1 - rounded), np.inf)
        error = gamma * reach + (terms + 9) * _TINY
        return np.where(reach + error <= LARGEST_FLOAT32, error, np.inf)


def beyond_float32(values: Array | float) -> bool:
    """Whether one of some numbers, or of sums of that magnitude, can be infinite in float32."""
    return not np.all(np.abs(values) <= LARGEST_FLOAT32)
