# SPDX-License-Identifier: Apache-2.0
"""Dynamic scales: one per row or tensor, computed in each call as `anybit.quantize` does."""

import math

import torch

from anybit.torch.nn._scales import Layout, Scale, ValueRange, get_magnitude

# Bits whose largest code and its multiples are exact in float32.
_WIDTHS = range(2, 17)
# Subnormal numbers are less than half a step, as in dynamic quantizers of models.
_SMALLEST_SCALE = 2.0**-124


class DynamicScale(Scale):
    """Scale min(max(w, L * 2^-124) / L, S) of a row or tensor with the magnitude w.

    L is the largest code, and S the largest number with finite S * L. Each operation is rounded to
    float32, or to float64 for x of float64. The scale of a row with NaN or infinity is infinite, so
    that the row becomes NaN. It is a constant for the gradient.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.compute(x)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scales, of shape () or with axes of size 1 in place of those of a row."""
        magnitude, steps = get_magnitude(x), self.value_range.largest
        # Reductions of some runtimes pass NaN over.
        marked = magnitude.masked_fill(magnitude.isnan(), math.inf)
        # An empty tensor has a sum, but no maximum.
        reduce = marked.amax if marked.numel() else marked.sum
        axes = self.layout.shared_axes(x)
        width = reduce(dim=axes, keepdim=self.layout.per_row) if axes else marked
        # Tensors, because some devices divide by a number with a multiplication.
        least, divisor, most = (
            torch.tensor(number, dtype=width.dtype, device=width.device)
            for number in (steps * _SMALLEST_SCALE, steps, _find_largest_scale(steps, width.dtype))
        )
        finite = torch.minimum(torch.maximum(width, least) / divisor, most)
        return torch.where(width.isinf(), width, finite)

    def extra_repr(self) -> str:
        return "per-row" if self.layout.per_row else "per-tensor"


def _find_largest_scale(steps: float, dtype: torch.dtype) -> float:
    """Return the largest scale whose product with the number of steps is finite."""
    largest = torch.finfo(dtype).max
    quotient = torch.tensor(largest, dtype=dtype) / steps
    if int(quotient.item()) * int(steps) > int(largest):
        quotient = torch.nextafter(quotient, torch.zeros_like(quotient))
    return float(quotient)


def make_dynamic_scale(value_range: ValueRange, layout: Layout, power_of_two: bool) -> DynamicScale:
    """Create a dynamic scale.

    Raises:
        ValueError: Scales are per channel, or powers of two.
    """
    if layout.per_channel:
        raise ValueError(
            "dynamic: the terms of a sum need one scale, and channels of activations are summed; "
            'use "per-tensor", or leave "per-channel" out for one scale per row'
        )
    if power_of_two:
        raise ValueError(
            'dynamic scales are not powers of two; use "absmax power-of-two", whose scales are'
        )
    return DynamicScale(value_range, layout, power_of_two)


def check_dynamic_integers(bits: int, signed: bool, zeropt: int) -> None:
    """Raise ValueError for integers that dynamic scales do not support."""
    if bits not in _WIDTHS:
        raise ValueError(
            f"dynamic integers have {_WIDTHS[0]} to {_WIDTHS[-1]} bits, got {bits}; use int8"
        )
    if not signed:
        raise ValueError(
            "dynamic unsigned integers have a zero-point per row, which is not supported in "
            f'training; use "int{bits} dynamic"'
        )
    if zeropt:
        raise ValueError(f"dynamic integers are symmetric, got zeropt={zeropt}; leave zeropt out")
