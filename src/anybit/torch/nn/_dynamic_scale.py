# SPDX-License-Identifier: Apache-2.0
"""Dynamic scales: one per row or tensor, computed in each call as `anybit.quantize` does."""

import math

import torch

from anybit.quant_types.dynamic_scales import SMALLEST_DYNAMIC_SCALE, find_largest_scale
from anybit.torch.nn._scales import Layout, Scale, ValueRange, get_values

# Bits whose largest code and its multiples are exact in float32.
_WIDTHS = range(2, 17)


class DynamicScale(Scale):
    """Scale min(max(w, L * 2^-124) / L, S) of a row or tensor.

    L is the largest code, and S the largest number with finite S * L. The width w is max |x|, or
    max(x, 0) - min(x, 0) with a zero-point, which is computed for each row or tensor, too. Each
    operation is rounded to float32, or to float64 for x of float64. The scale of a row with NaN or
    infinity is infinite, so that the row becomes NaN. Both are constants for the gradient.

    Attributes:
        asymmetric: Whether there is a zero-point.
    """

    asymmetric = False

    def __init__(self, value_range: ValueRange, layout: Layout, power_of_two: bool) -> None:
        super().__init__(value_range, layout, power_of_two)
        steps, dtypes = int(value_range.largest), (torch.float32, torch.float64)
        # Compilers cannot trace this computation.
        self._largest_scales = {dtype: _find_largest_scale(steps, dtype) for dtype in dtypes}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fit(x)[0]

    def fit(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the scales and the zero-points, None for symmetric integers.

        Their shape is (), or has axes of size 1 in place of those of a row.
        """
        values = get_values(x)
        values = values if self.asymmetric else values.abs()
        # Reductions of some runtimes pass NaN over.
        marked = values.masked_fill(values.isnan(), math.inf)
        largest = self._reduce(marked, "amax")
        if not self.asymmetric:
            return self._compute_scale(largest), None
        smallest, zero = self._reduce(marked, "amin"), _make_number(0.0, marked)
        low, high = torch.minimum(smallest, zero), torch.maximum(largest, zero)
        scale = self._compute_scale(high - low)
        zeropt = (zero - low / scale).round().clamp(0.0, self.value_range.largest)
        return scale, zeropt

    def _reduce(self, values: torch.Tensor, method: str) -> torch.Tensor:
        """Return the largest or smallest values of rows, 0 if they are empty."""
        axes = self.layout.shared_axes(values)
        reduce = getattr(values, method if values.numel() else "sum")
        result: torch.Tensor = reduce(dim=axes, keepdim=self.layout.per_row) if axes else values
        return result

    def _compute_scale(self, width: torch.Tensor) -> torch.Tensor:
        """Return the scale for the width of each row."""
        steps = self.value_range.largest
        # Tensors, because some devices divide by a number with a multiplication.
        least, divisor, most = (
            _make_number(number, width)
            for number in (steps * SMALLEST_DYNAMIC_SCALE, steps, self._largest_scales[width.dtype])
        )
        finite = torch.minimum(torch.maximum(width, least) / divisor, most)
        return torch.where(width.isinf(), width, finite)

    def extra_repr(self) -> str:
        return "per-row" if self.layout.per_row else "per-tensor"


def _make_number(number: float, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(number, dtype=like.dtype, device=like.device)


def _find_largest_scale(steps: int, dtype: torch.dtype) -> float:
    limits = torch.finfo(dtype)
    return find_largest_scale(steps, limits.max, 1 - int(math.log2(limits.eps)))


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


def check_dynamic_integers(bits: int, zeropt: int) -> None:
    """Raise ValueError for integers that dynamic scales do not support."""
    if bits not in _WIDTHS:
        raise ValueError(
            f"dynamic integers have {_WIDTHS[0]} to {_WIDTHS[-1]} bits, got {bits}; use int8"
        )
    if zeropt:
        raise ValueError(
            f"dynamic scales choose the zero-point, got zeropt={zeropt}; leave zeropt out"
        )
