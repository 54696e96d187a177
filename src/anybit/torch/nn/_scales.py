# SPDX-License-Identifier: Apache-2.0
"""Scales of quantizers: computed in each call, fixed, learned, and moving averages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from anybit.torch.dispatch import direct, operators

# The smallest scale. Tensors of zeros then quantize to zeros, and x / scale stays finite for
# |x| < 2^64 even in float32.
_SMALLEST = 2.0**-64
# FloatQuant with 8 exponent bits and no mantissa: the powers of two of float32.
_POWERS_OF_TWO = (8, 0, 127)


@dataclass(frozen=True)
class ValueRange:
    """Range of a format at scale 1, and the scales that statistics of a tensor lead to.

    Statistics are computed in float32 (float64 for float64), over the axes `dims`, and have no
    gradient.

    Attributes:
        largest: The largest value.
        by_mean: Whether a code stands for a mean magnitude, as in bipolar formats.
    """

    largest: float
    by_mean: bool = False

    def absmax_scale(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        """Return max |x| / largest, at which no element is clipped; mean |x| if `by_mean`."""
        magnitude = _get_magnitude(x)
        if self.by_mean:
            return _average(magnitude, dims)
        # Without axes torch would reduce all of them. An empty tensor has a sum, but no maximum.
        reduce = magnitude.amax if magnitude.numel() else magnitude.sum
        maximum = reduce(dim=dims) if dims else magnitude
        # A tensor as divisor: CUDA multiplies by the reciprocal of a number, which rounds twice.
        scale = maximum / torch.full_like(maximum, self.largest)
        # Where the quotient was rounded down, the maximum would lie above the largest code.
        return torch.where(maximum / scale > self.largest, scale * (1 + 2.0**-23), scale)

    def initial_scale(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        """Return the scale at which learning starts: that of LSQ, but at most that of "absmax".

        2 mean |x| / sqrt(largest), at most max |x| / largest; mean |x| if `by_mean`. Where x is 0
        throughout, as in new biases, 1 / largest: nothing could be learned from a scale of 0.
        """
        scale = self.absmax_scale(x, dims)
        if not self.by_mean:
            mean = _average(_get_magnitude(x), dims)
            scale = torch.minimum(scale, 2 * mean / self.largest**0.5)
        return torch.where(scale == 0, torch.full_like(scale, 1 / self.largest), scale)


def zero_nonfinite(x: torch.Tensor) -> torch.Tensor:
    """Replace NaN and infinities by 0, because one of them would stay in a state for good."""
    return x.detach().nan_to_num(0.0, 0.0, 0.0)


def get_values(x: torch.Tensor) -> torch.Tensor:
    """Return x in float32, or in float64 for x of float64, without a gradient."""
    x = x.detach()
    return x if x.dtype == torch.float64 else x.float()


def _get_magnitude(x: torch.Tensor) -> torch.Tensor:
    return get_values(x).abs()


def _average(magnitude: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return magnitude.mean(dim=dims) if dims else magnitude


def average_over_ranks(statistic: torch.Tensor) -> torch.Tensor:
    """Return the mean over the ranks of the default process group, if there is one."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return statistic
    total = statistic.clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


@dataclass(frozen=True)
class Layout:
    """Layout of scales: one for the tensor, one per index of the channel axis, or one per row.

    Attributes:
        per_channel: Whether there is a scale per channel.
        axis: The channel axis; None until it is set.
        channels: The number of channels; None until it is set.
        batch_axis: The axis that is left out when elements are counted; None for weights.
        row_axes: The axes of a row, counted from the end, if there is a scale per row; else empty.
    """

    per_channel: bool
    axis: int | None = None
    channels: int | None = None
    batch_axis: int | None = 0
    row_axes: tuple[int, ...] = ()

    @property
    def per_row(self) -> bool:
        """Presence of a scale per row."""
        return bool(self.row_axes)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of a stored scale; None until the number of channels is set."""
        if not self.per_channel:
            return ()
        return None if self.channels is None else (self.channels,)

    def channel_axis(self, x: torch.Tensor) -> int:
        """Return the channel axis of x, >= 0; ValueError if x does not have these channels."""
        axis = 1 if self.axis is None else self.axis
        ndim: int = x.ndim
        if not -ndim <= axis < ndim:
            raise ValueError(f"axis {axis} of the channels: x of shape {tuple(x.shape)} has none")
        if self.channels is not None and x.shape[axis] != self.channels:
            raise ValueError(
                f"x must have {self.channels} channels on axis {axis}, got shape {tuple(x.shape)}"
            )
        return axis % ndim

    def shared_axes(self, x: torch.Tensor) -> list[int]:
        """Return the axes of x that share a scale."""
        if self.per_row:
            # The only axis of a vector is its row.
            axes = (-1,) if x.ndim == 1 and len(self.row_axes) == 1 else self.row_axes
            if x.ndim < -min(axes):
                raise ValueError(
                    f"rows on axes {self.row_axes}: x of shape {tuple(x.shape)} has none"
                )
            return [axis % x.ndim for axis in axes]
        channel_axis = self.channel_axis(x) if self.per_channel else None
        return [axis for axis in range(x.ndim) if axis != channel_axis]

    def broadcast(self, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Reshape scales of shape () or (channels,) to broadcast to x."""
        if not self.per_channel or scale.ndim == 0:
            return scale
        axis = self.channel_axis(x)
        return scale.reshape([-1 if dim == axis else 1 for dim in range(x.ndim)])

    def count_shared(self, x: torch.Tensor) -> int:
        """Return how many elements of a weight, or of one sample, share a scale."""
        if not self.per_channel and self.batch_axis is None:
            return int(x.numel())
        return math.prod([x.shape[axis] for axis in self.shared_axes(x) if axis != self.batch_axis])


def _is_positive(scale: torch.Tensor) -> bool:
    """Return whether scales need no clamp, if reading them is faster than clamping."""
    if torch.compiler.is_compiling() or not direct.are_direct(scale) or scale.numel() == 0:
        return False
    smallest = scale.detach().min() if scale.ndim else scale
    return bool(smallest.item() >= _SMALLEST)


def check_scale(values: torch.Tensor, argument: object) -> None:
    """Raise ValueError, which shows the argument, for values that are not finite or not > 0."""
    if not bool((values > 0).all() & values.isfinite().all()):
        raise ValueError(f"scale must be finite and > 0, got {argument}")


class Scale(torch.nn.Module):
    """Scale of a quantizer. `forward(x)` returns it, positive and shaped to broadcast to x.

    `owner` describes the quantizer in error messages.
    """

    owner = "this quantizer"

    def __init__(self, value_range: ValueRange, layout: Layout, power_of_two: bool) -> None:
        super().__init__()
        self.value_range = value_range
        self.layout = layout
        self.power_of_two = power_of_two

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layout.broadcast(self.restrict(self.compute(x)), x)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scale for x before it is restricted, of shape () or (channels,)."""
        raise NotImplementedError

    def restrict(self, scale: torch.Tensor) -> torch.Tensor:
        """Make a scale positive, and a power of two if `power_of_two`."""
        if not _is_positive(scale):
            scale = scale.abs().clamp(min=_SMALLEST)
        if self.power_of_two:
            scale = operators.float_quant(scale, 1.0, *_POWERS_OF_TWO)
        return scale

    def set_layout(self, layout: Layout) -> None:
        """Set the layout of the scales."""
        self.layout = layout

    def initialize(self, x: torch.Tensor) -> None:
        """Take the scale from x, if it has a state."""

    def extra_repr(self) -> str:
        granularity = "per-channel" if self.layout.per_channel else "per-tensor"
        return granularity + ", power_of_two=True" * self.power_of_two


class AbsmaxScale(Scale):
    """Scale recomputed for each x: max |x| / largest code, a constant for the gradient."""

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.value_range.absmax_scale(x, self.layout.shared_axes(x))


class AccumulatorScale(Scale):
    """Scale of a bias: the product of the scales of its layer's input and weight."""

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(
            'scale="accumulator" is for the bias_quantizer of a layer that has a weight_quantizer '
            "and an input_quantizer; elsewhere give the scale: quantizer(x, scale)"
        )


class StoredScale(Scale):
    """Scale with a state of shape () or (channels,): NaN until it is initialized.

    The state is None until its shape is known.

    Attributes:
        name: The name of the state, in state dicts too.
        frozen: Whether training leaves the state unchanged; not in state dicts.
        is_initialized: Whether the state is set. Calls read this instead of the values.
    """

    name = "value"
    frozen = False

    def __init__(self, value_range: ValueRange, layout: Layout, power_of_two: bool) -> None:
        super().__init__(value_range, layout, power_of_two)
        self.is_initialized = False
        self._store(None)
        self.set_layout(layout)

    @property
    def state(self) -> torch.Tensor | None:
        # A lookup in these dictionaries takes a tenth of the time of `getattr`.
        state: torch.Tensor | None = self._buffers.get(self.name)
        if state is None:
            state = self._parameters.get(self.name)
        # Parametrizations and FSDP store it elsewhere.
        return getattr(self, self.name) if state is None else state

    def _store(self, state: torch.Tensor | None) -> None:
        self.register_buffer(self.name, state)

    def set_layout(self, layout: Layout) -> None:
        super().set_layout(layout)
        shape = layout.shape
        if shape is None or (self.state is not None and self.state.shape == shape):
            return
        self._store(self._uninitialized(shape))
        self.is_initialized = False

    def _uninitialized(self, shape: tuple[int, ...]) -> torch.Tensor:
        old = self.state
        if old is None:
            return torch.full(shape, math.nan)
        return torch.full(shape, math.nan, dtype=old.dtype, device=old.device)

    @torch.no_grad()
    def set(self, scale: torch.Tensor) -> None:
        """Store a scale of shape () or (channels,)."""
        state = self.state
        if state is None:
            raise ValueError(f"{self.owner}: the number of channels is unknown; pass channels=")
        state.copy_(scale)
        if not self.is_initialized:
            self.is_initialized = True

    def freeze(self, frozen: bool) -> None:
        """Stop or resume changes by training."""
        self.frozen = frozen

    def can_initialize(self, x: torch.Tensor) -> bool:
        """Return whether the state has to be taken from x."""
        return (
            not (self.is_initialized or self.frozen)
            and self.state is not None
            and x.numel() > 0
            and not self.check_initialized()
        )

    def check_initialized(self) -> bool:
        """Return whether the state is set, by anything at all."""
        # Averages of weights and other ranks write into it without a notice.
        if not (self.is_initialized or torch.compiler.is_compiling()):
            self._read_state()
        return self.is_initialized

    def _read_state(self) -> None:
        if self.state is not None and not self.state.is_meta:
            self.is_initialized = not bool(self.state.isnan().any())

    def stored(self) -> torch.Tensor:
        """Return the stored scale; RuntimeError, with the remedy, before it is initialized."""
        state = self.state
        if state is None:
            raise RuntimeError(f"{self.owner}: the number of channels is unknown; pass channels=")
        if not self.check_initialized():
            raise RuntimeError(
                f"the scale of {self.owner} is not known yet: run one batch in training mode, "
                "load a state dict, call initialize(x) or give scale= a number"
            )
        # Scales are computed in float32 at least.
        coarse = state.dtype in (torch.float16, torch.bfloat16)
        return state.float() if coarse else state

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *others: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        if prefix + self.name in state_dict:
            self._read_state()
        else:
            self._restart()

    def _restart(self) -> None:
        """Mark the state as missing, because a state dict without it was loaded."""
        self.is_initialized = False


class FixedScale(StoredScale):
    """Fixed scale: a number, or a tensor with one number per channel, in a buffer."""

    def __init__(
        self,
        value_range: ValueRange,
        layout: Layout,
        power_of_two: bool,
        scale: float | torch.Tensor,
    ) -> None:
        self._device: torch.device | None = None
        if isinstance(scale, torch.Tensor):
            self._device = scale.device
            values = scale.detach().flatten()
        else:
            # The default device may be "meta", which stores no values.
            values = torch.tensor([scale], device="cpu")
        if not values.is_floating_point():
            values = values.to(torch.get_default_dtype())
        check_scale(values, scale)
        if values.numel() != 1 and not layout.per_channel:
            raise ValueError(
                f'a scale with {values.numel()} values needs granularity="per-channel"'
            )
        self._values = values
        if values.numel() > 1 and layout.channels is None:
            layout = replace(layout, channels=values.numel())
        super().__init__(value_range, layout, power_of_two)

    def set_layout(self, layout: Layout) -> None:
        if layout.channels is not None and self._values.numel() not in (1, layout.channels):
            raise ValueError(f"{layout.channels} channels, but {self._values.numel()} scales")
        super().set_layout(layout)
        if self.state is not None and not self.is_initialized:
            self.set(self._values if self.state.ndim else self._values[0])

    def _uninitialized(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.full(shape, math.nan, dtype=self._values.dtype, device=self._device)

    def _restart(self) -> None:
        """Keep the scale, which does not depend on the tensors."""

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return self.stored()


class LearnedScale(StoredScale):
    """Learned scale as in LSQ (Esser et al., 2020), with its threshold as the parameter.

    The threshold t = scale * Q, with the largest code Q, is the largest magnitude that is not
    clipped. Optimizers such as Adam step by the learning rate, whatever the gradient is. For
    weights up to 0.5 in 8 bits, a step is small next to t = 0.5, but large next to scale = 0.004.

    In training mode the gradient of t is multiplied by 1 / sqrt(N), for N elements of a weight or
    of one sample that share the scale. LSQ has 1 / sqrt(N Q) for the scale, which is the same for
    Q = 1. The threshold starts from `initialize`, or from the first x in training mode, as
    `ValueRange.initial_scale`. The ranks of a process group start with their mean.

    Source: https://arxiv.org/abs/1902.08153
    """

    name = "threshold"
    _learned = True

    def _store(self, state: torch.Tensor | None) -> None:
        self.register_parameter(self.name, None if state is None else torch.nn.Parameter(state))

    def set(self, scale: torch.Tensor) -> None:
        super().set(scale * self.value_range.largest)

    def stored(self) -> torch.Tensor:
        # Some devices divide by a number with a multiplication, which rounds differently.
        return super().stored() * (1 / self.value_range.largest)

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.can_initialize(x):
            self.set(average_over_ranks(self.initial_scale(x)))
        scale = self.stored()
        if not self.training:
            return scale
        # The value is the same bit for bit; only the gradient is multiplied.
        return scale.detach().lerp(scale, max(self.layout.count_shared(x), 1) ** -0.5)

    def freeze(self, frozen: bool) -> None:
        state = self.state
        if state is not None and frozen and not self.frozen:
            # Optimizers apply momentum to parameters with a gradient, even if it is 0.
            self._learned, state.grad = state.requires_grad, None
            state.requires_grad_(False)
        elif state is not None and self.frozen and not frozen:
            state.requires_grad_(self._learned)
        super().freeze(frozen)

    def initial_scale(self, x: torch.Tensor) -> torch.Tensor:
        return self.value_range.initial_scale(zero_nonfinite(x), self.layout.shared_axes(x))

    def initialize(self, x: torch.Tensor) -> None:
        self.set(self.initial_scale(x))


class EmaScale(StoredScale):
    """Exponential moving average of the scale of "absmax", updated in training mode.

    value = momentum * value + (1 - momentum) * new, before it is used; the first x sets it. It does
    not change in eval mode, or where activation checkpointing repeats a forward pass. It is a
    buffer without a gradient. DistributedDataParallel copies that of rank 0 to all ranks before
    each step, so that batches of other ranks do not count.
    """

    def __init__(
        self, value_range: ValueRange, layout: Layout, power_of_two: bool, momentum: float = 0.9
    ) -> None:
        super().__init__(value_range, layout, power_of_two)
        self.momentum = momentum

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.can_initialize(x):
            self.initialize(x)
        elif self.training and not self.frozen and x.numel() and not _is_recomputing():
            value = self.stored()
            self.set(value.lerp(self._absmax(x).to(value.dtype), 1 - self.momentum))
        return self.stored()

    def initialize(self, x: torch.Tensor) -> None:
        self.set(self._absmax(x))

    def _absmax(self, x: torch.Tensor) -> torch.Tensor:
        return self.value_range.absmax_scale(zero_nonfinite(x), self.layout.shared_axes(x))


def _is_recomputing() -> bool:
    """Return whether a backward pass repeats this forward pass, whose batch was counted."""
    # Compilers cannot trace this call; passes that they repeat have no effects.
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def freeze_scales(model: torch.nn.Module) -> None:
    """Stop changes of the learned and "ema" scales of a model or of a part of it.

    Learned scales get no gradient, so that optimizers leave them alone, whatever their momentum;
    "ema" scales do not count further batches. Weights go on learning. Eval mode, exports and state
    dicts stay the same; copies and pickles stay frozen. "absmax" scales have no state to freeze.
    """
    _freeze(model, True)


def unfreeze_scales(model: torch.nn.Module) -> None:
    """Resume changes of the scales that `freeze_scales` has stopped."""
    _freeze(model, False)


def _freeze(model: torch.nn.Module, frozen: bool) -> None:
    for module in model.modules():
        if isinstance(module, StoredScale):
            module.freeze(frozen)
