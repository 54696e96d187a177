# SPDX-License-Identifier: Apache-2.0
"""Policies for the scale of a quantizer: small modules that give it for a tensor."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from anybit.torch import _operators as operators
from anybit.torch.nn._statistics import Reach, over_ranks

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
        return math.prod([x.shape[axis] for axis in self.reduced(x) if axis != self.batch_axis])


class Scale(torch.nn.Module):
    """What one step is worth. `forward(x)` gives it, positive and shaped to broadcast to x."""

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


class StoredScale(Scale):
    """A scale with a state, `value`, of shape () or (channels,): NaN until it is known.

    A state of which the shape is not known yet is None.
    """

    value: torch.Tensor | None

    def __init__(self, reach: Reach, layout: Layout, power_of_two: bool) -> None:
        super().__init__(reach, layout, power_of_two)
        # Whether `value` is known: read in each call, so that no call has to look at the values.
        self.is_known = False
        self._store(None)
        self.lay_out(layout)

    def _store(self, value: torch.Tensor | None) -> None:
        self.register_buffer("value", value)

    def lay_out(self, layout: Layout) -> None:
        super().lay_out(layout)
        shape = layout.shape
        if shape is None or (self.value is not None and self.value.shape == shape):
            return
        self._store(self._unknown(shape))
        self.is_known = False

    def _unknown(self, shape: tuple[int, ...]) -> torch.Tensor:
        old = self.value
        if old is None:
            return torch.full(shape, math.nan)
        return torch.full(shape, math.nan, dtype=old.dtype, device=old.device)

    @torch.no_grad()
    def set(self, scale: torch.Tensor) -> None:
        """Store a scale of shape () or (channels,)."""
        assert self.value is not None
        self.value.copy_(scale)
        self.is_known = True

    def known(self) -> torch.Tensor:
        """The stored scale. RuntimeError, with the remedy, if there is none yet."""
        if self.value is None:
            raise RuntimeError(
                "the quantizer does not know how many channels there are: give channels="
            )
        if not self.is_known:
            raise RuntimeError(
                "the scale of this quantizer is not known yet: run one batch in training mode, "
                "load a state dict, call initialize(x) or give scale= a number"
            )
        # float16 and bfloat16 are too coarse for what follows.
        coarse = self.value.dtype in (torch.float16, torch.bfloat16)
        return self.value.float() if coarse else self.value

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *others: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        if f"{prefix}value" not in state_dict:
            self.is_known = False
        elif self.value is not None and not self.value.is_meta:
            self.is_known = not bool(self.value.isnan().any())


class FixedScale(StoredScale):
    """A number for all, or a tensor with one for each channel: a buffer."""

    def __init__(
        self, reach: Reach, layout: Layout, power_of_two: bool, scale: float | torch.Tensor
    ) -> None:
        self._device: torch.device | None = None
        if isinstance(scale, torch.Tensor):
            self._device = scale.device
            given = scale.detach().flatten()
        else:
            # The default device may be one without values.
            given = torch.tensor([scale], device="cpu")
        if not given.is_floating_point():
            given = given.to(torch.get_default_dtype())
        if not bool((given > 0).all() & given.isfinite().all()):
            raise ValueError(f"scale must be finite and > 0, got {scale}")
        if given.numel() != 1 and not layout.per_channel:
            raise ValueError(f'a scale with {given.numel()} values needs granularity="per-channel"')
        self._given = given
        if given.numel() > 1 and layout.channels is None:
            layout = replace(layout, channels=given.numel())
        super().__init__(reach, layout, power_of_two)

    def lay_out(self, layout: Layout) -> None:
        if layout.channels is not None and self._given.numel() not in (1, layout.channels):
            raise ValueError(f"{layout.channels} channels, but {self._given.numel()} scales")
        super().lay_out(layout)
        if self.value is not None and not self.is_known:
            self.set(self._given if self.value.ndim else self._given[0])

    def _unknown(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.full(shape, math.nan, dtype=self._given.dtype, device=self._device)

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        return self.known()


class AccumulatorScale(Scale):
    """The product of the scales of a layer's input and weight, for its bias: from the layer."""

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(
            'scale="accumulator" is for the bias_quantizer of a layer that has a weight_quantizer '
            "and an input_quantizer; elsewhere give the scale: quantizer(x, scale)"
        )


class LearnedScale(StoredScale):
    """A parameter, learned as in LSQ (Esser et al., 2020, https://arxiv.org/abs/1902.08153).

    Its gradient is multiplied by 1 / sqrt(N Q): N elements share the scale (of a weight, or of one
    sample of an activation), Q is the largest code. It starts from `initialize`, or from the first
    x in training mode, which the ranks of a process group take together: see `Reach.initial`.
    """

    def _store(self, value: torch.Tensor | None) -> None:
        self.register_parameter("value", None if value is None else torch.nn.Parameter(value))

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not self.is_known and self.value is not None:
            self.set(over_ranks(self.starting(x)))
        scale = self.known()
        if not self.training:
            return scale
        # The value is unchanged, to the bit; only the gradient is smaller.
        factor = (max(self.layout.elements(x), 1) * self.reach.largest) ** -0.5
        return scale.detach() + (scale - scale.detach()) * factor

    def starting(self, x: torch.Tensor) -> torch.Tensor:
        return self.reach.initial(x, self.layout.reduced(x))

    def initialize(self, x: torch.Tensor) -> None:
        self.set(self.starting(x))


class EmaScale(StoredScale):
    """An exponential moving average of the scale of "absmax", updated in training mode.

    value = momentum * value + (1 - momentum) * new, before it is used; the first x sets it. In
    eval mode it stays. It is a buffer, without a gradient: DistributedDataParallel copies that of
    rank 0 to all ranks before each step, so that what other ranks have seen is not in it.
    """

    def __init__(
        self, reach: Reach, layout: Layout, power_of_two: bool, momentum: float = 0.9
    ) -> None:
        super().__init__(reach, layout, power_of_two)
        self.momentum = momentum

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.value is not None:
            new = self.reach.covering(x, self.layout.reduced(x))
            if self.is_known:
                new = self.known().lerp(new.to(self.known().dtype), 1 - self.momentum)
            self.set(new)
        return self.known()

    def initialize(self, x: torch.Tensor) -> None:
        self.set(self.reach.covering(x, self.layout.reduced(x)))
