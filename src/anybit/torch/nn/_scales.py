# SPDX-License-Identifier: Apache-2.0
"""Where the scale of a quantizer comes from: small modules that give it for a tensor."""

import math
from dataclasses import dataclass

import torch

from anybit.torch.dispatch import direct, operators
from anybit.torch.nn._statistics import Reach

# The smallest scale. Tensors of zeros then quantize to zeros, and x / scale stays finite for
# |x| < 2^64 even in float32.
_SMALLEST = 2.0**-64
# FloatQuant with 8 exponent bits and no mantissa: the powers of two of float32.
_POWERS_OF_TWO = (8, 0, 127)


@dataclass(frozen=True)
class Layout:
    """Where scales lie: one for the tensor, or one for each index of an axis.

    `axis` and `channels` are None as long as they are not known. `batch_axis` is left out when
    elements are counted: None for weights.
    """

    per_channel: bool
    axis: int | None = None
    channels: int | None = None
    batch_axis: int | None = 0

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of what is stored; None while that is not known."""
        if not self.per_channel:
            return ()
        return None if self.channels is None else (self.channels,)

    def axis_of(self, x: torch.Tensor) -> int:
        """The channels' axis in x, >= 0. ValueError if x has none, or another number of them."""
        axis = 1 if self.axis is None else self.axis
        ndim: int = x.ndim
        if not -ndim <= axis < ndim:
            raise ValueError(f"axis {axis} of the channels: x of shape {tuple(x.shape)} has none")
        if self.channels is not None and x.shape[axis] != self.channels:
            raise ValueError(
                f"x must have {self.channels} channels on axis {axis}, got shape {tuple(x.shape)}"
            )
        return axis % ndim

    def reduced(self, x: torch.Tensor) -> list[int]:
        """The axes of x that share a scale."""
        kept = self.axis_of(x) if self.per_channel else None
        return [axis for axis in range(x.ndim) if axis != kept]

    def beside(self, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Scales of shape () or (channels,), shaped to broadcast to x."""
        if not self.per_channel or scale.ndim == 0:
            return scale
        axis = self.axis_of(x)
        return scale.reshape([-1 if each == axis else 1 for each in range(x.ndim)])

    def elements(self, x: torch.Tensor) -> int:
        """How many elements share a scale: all of a weight, those of one sample elsewhere."""
        if not self.per_channel and self.batch_axis is None:
            return int(x.numel())
        return math.prod([x.shape[axis] for axis in self.reduced(x) if axis != self.batch_axis])


def _is_positive(scale: torch.Tensor) -> bool:
    """Whether these are large enough, where a look at them takes less time than making them so."""
    if torch.compiler.is_compiling() or not direct.are_direct(scale) or scale.numel() == 0:
        return False
    smallest = scale.detach().min() if scale.ndim else scale
    return bool(smallest.item() >= _SMALLEST)


def check_scale(values: torch.Tensor, given: object) -> None:
    """ValueError for scales, `given` as these values, that are not finite or not above 0."""
    if not bool((values > 0).all() & values.isfinite().all()):
        raise ValueError(f"scale must be finite and > 0, got {given}")


class Scale(torch.nn.Module):
    """What one step is worth. `forward(x)` gives it, positive and shaped to broadcast to x.

    Errors say whose scale it is: `owner`, in words.
    """

    owner = "this quantizer"

    def __init__(self, reach: Reach, layout: Layout, power_of_two: bool) -> None:
        super().__init__()
        self.reach = reach
        self.layout = layout
        self.power_of_two = power_of_two

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layout.beside(self.restricted(self.measured(x)), x)

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        """The scale for x before it is restricted, of shape () or (channels,)."""
        raise NotImplementedError

    def restricted(self, scale: torch.Tensor) -> torch.Tensor:
        """The scale made positive, and a power of two if that is wanted."""
        if not _is_positive(scale):
            scale = scale.abs().clamp(min=_SMALLEST)
        if self.power_of_two:
            scale = operators.float_quant(scale, 1.0, *_POWERS_OF_TWO)
        return scale

    def lay_out(self, layout: Layout) -> None:
        """Set where the scales lie."""
        self.layout = layout

    def initialize(self, x: torch.Tensor) -> None:
        """Take what is needed from x."""

    def extra_repr(self) -> str:
        granularity = "per-channel" if self.layout.per_channel else "per-tensor"
        return granularity + ", power_of_two=True" * self.power_of_two


class AbsmaxScale(Scale):
    """Recomputed for each x: max |x| / largest code, a constant for the gradient."""

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        return self.reach.covering(x, self.layout.reduced(x))


class AccumulatorScale(Scale):
    """The product of the scales of a layer's input and weight, for its bias: from the layer."""

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(
            'scale="accumulator" is for the bias_quantizer of a layer that has a weight_quantizer '
            "and an input_quantizer; elsewhere give the scale: quantizer(x, scale)"
        )
