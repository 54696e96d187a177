# SPDX-License-Identifier: Apache-2.0
"""Bounds of sums of products, computed from their factors.

Let every x be a multiple of 2^p and every weight of a channel a multiple of 2^r. Let the largest
magnitudes sum to at most 2^24 units of 2^(p + r). Then float32 holds each product and each partial
sum, in any order and with or without fused operations: nothing is rounded.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anybit.formats import LARGEST_FLOAT32
from anybit.onnx.analysis.abstract_values import AbstractValue, CodeRanges
from anybit.onnx.analysis.layouts import ProductLayout
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.products import Accumulator
from anybit.onnx.analysis.units import LOWEST_EXPONENT, NO_EXPONENT, find_exponents
from anybit.onnx.graph.constants import Array

_ROUNDING = 2.0**-24
_TINY = 2.0**LOWEST_EXPONENT
# Accumulators of more units would overflow int64.
_MOST = 2**62


@dataclass(frozen=True, eq=False)
class WeightParts:
    """A weight as (groups, output channels, channels of x, taps), and its sums per channel.

    Integers are summed in int64, floats in float64.
    """

    weight: Array

    @property
    def channels(self) -> int:
        return math.prod(self.weight.shape[:2])

    def repeat_per_channel(self, array: Array) -> Array:
        return array.reshape(self.channels, *array.shape[2:])

    def sum_magnitudes(self, reach: Array) -> Array:
        """Return the sum of |weight| * reach per channel; reach is one, or one per channel of x."""
        return self._sum_above(reach) - self._sum_below(reach)

    def bound_sums(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Return the lowest and the highest sum of weight * x per channel, for x within bounds."""
        return self._sum_above(low) + self._sum_below(high), self._sum_above(
            high
        ) + self._sum_below(low)

    def _sum_above(self, factor: Array) -> Array:
        return self._sum_half(self._positive, factor)

    def _sum_below(self, factor: Array) -> Array:
        return self._sum_half(self._negative, factor)

    @cached_property
    def _positive(self) -> "_Half":
        return _Half(np.maximum(self.weight, 0))

    @cached_property
    def _negative(self) -> "_Half":
        return _Half(np.minimum(self.weight, 0))

    def _sum_half(self, half: "_Half", factor: Array) -> Array:
        if factor.ndim == 0:
            return self.repeat_per_channel(half.total * factor)
        groups, _, inner, _ = self.weight.shape
        if factor.size != groups * inner:
            raise Mismatch("its input has another number of channels than its weight")
        return self.repeat_per_channel((half.taps * factor.reshape(groups, 1, inner)).sum(axis=2))

    @cached_property
    def terms(self) -> Array:
        return self.repeat_per_channel(np.count_nonzero(self.weight, axis=(2, 3)))


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


def find_accumulator(
    x: AbstractValue, codes: Array, weight: AbstractValue, layout: ProductLayout
) -> Accumulator | None:
    """Return the accumulator of a sum.

    Raises:
        Mismatch: The sizes do not fit.
    """
    if x.codes is None or weight.codes is None or not x.codes.integral:
        return None
    parts = WeightParts(layout.canonical(codes))
    low, high = x.codes.centered
    if layout.padded:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    count = math.prod(parts.weight.shape[2:])
    corners = [a * b * count for a in _get_type_ends(weight.codes) for b in _get_type_ends(x.codes)]
    if max(map(abs, corners)) >= _MOST:
        return None
    return Accumulator(*parts.bound_sums(low, high), min(*corners, 0), max(*corners, 0))


def _get_type_ends(codes: CodeRanges) -> tuple[int, int]:
    """Return the lowest and the highest code - zeropt of the type, or else of the actual codes."""
    if codes.allowed is None:
        low, high = codes.centered
        reach = max(abs(int(low.min())), abs(int(high.max())))
        return (-reach if low.min() < 0 else 0), reach
    zeropt = codes.zeropt.astype(np.int64)
    return min(codes.allowed) - int(zeropt.max()), max(codes.allowed) - int(zeropt.min())


def find_units(values: Array, layout: ProductLayout) -> Array:
    """Return the exponent per output channel that all weights are multiples of."""
    exponents = layout.canonical(find_exponents(values, NO_EXPONENT))
    units = exponents.min(axis=(2, 3)).reshape(-1)
    return np.where(units == NO_EXPONENT, 0, units)


def bound_error(reach: Array, terms: Array) -> Array:
    """Return the maximal error of sums of `terms` products with these magnitudes in total.

    Two evaluations differ by n + 7 roundings per term (Higham: |error| <= gamma_(n + 7) * reach).
    One
    rounds the product and n sums, including the bias. The other rounds both factors (multiples of
    their
    scales), the accumulator, the product of the scales, that of the two, and the bias. Two more
    cover
    the roundings here in float64. A product below the normal numbers has an error below the
    smallest
    number. The error is infinite if a sum may be.
    """
    rounded = (terms + 9) * _ROUNDING
    with np.errstate(all="ignore"):
        gamma = np.where(rounded < 0.5, rounded / (1 - rounded), np.inf)
        error = gamma * reach + (terms + 9) * _TINY
        return np.where(reach + error <= LARGEST_FLOAT32, error, np.inf)


def exceeds_float32(values: Array | float) -> bool:
    """Return whether a number, or a sum of that magnitude, can be infinite in float32."""
    return not np.all(np.abs(values) <= LARGEST_FLOAT32)
