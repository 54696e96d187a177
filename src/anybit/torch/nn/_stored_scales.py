# SPDX-License-Identifier: Apache-2.0
"""Scales with a state: fixed, learned, and moving averages."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from anybit.torch.nn._scales import Layout, Scale, check_scale
from anybit.torch.nn._statistics import Reach, finite, over_ranks


class StoredScale(Scale):
    """A scale with a state of shape () or (channels,): NaN until it is known.

    A state of which the shape is not known yet is None.
    """

    # The name of the state, in state dicts too.
    name = "value"
    # Whether training leaves it as it is; not part of the state.
    frozen = False

    def __init__(self, reach: Reach, layout: Layout, power_of_two: bool) -> None:
        super().__init__(reach, layout, power_of_two)
        # Whether the state is known: read in each call, so that no call has to look at the values.
        self.is_known = False
        self._store(None)
        self.lay_out(layout)

    @property
    def state(self) -> torch.Tensor | None:
        # Where modules keep it: looked up in a tenth of the time that `getattr` takes.
        state: torch.Tensor | None = self._buffers.get(self.name)
        if state is None:
            state = self._parameters.get(self.name)
        # Parametrizations and FSDP take it away from there.
        return getattr(self, self.name) if state is None else state

    def _store(self, state: torch.Tensor | None) -> None:
        self.register_buffer(self.name, state)

    def lay_out(self, layout: Layout) -> None:
        super().lay_out(layout)
        shape = layout.shape
        if shape is None or (self.state is not None and self.state.shape == shape):
            return
        self._store(self._unknown(shape))
        self.is_known = False

    def _unknown(self, shape: tuple[int, ...]) -> torch.Tensor:
        old = self.state
        if old is None:
            return torch.full(shape, math.nan)
        return torch.full(shape, math.nan, dtype=old.dtype, device=old.device)

    @torch.no_grad()
    def set(self, scale: torch.Tensor) -> None:
        """Store a scale of shape () or (channels,)."""
        state = self.state
        assert state is not None
        state.copy_(scale)
        if not self.is_known:
            self.is_known = True

    def freeze(self, frozen: bool) -> None:
        """Stop to change, or go on."""
        self.frozen = frozen

    def can_start(self, x: torch.Tensor) -> bool:
        """Whether the state is to be taken from x."""
        return (
            not (self.is_known or self.frozen)
            and self.state is not None
            and x.numel() > 0
            and not self.has_started()
        )

    def has_started(self) -> bool:
        """Whether the state is known."""
        # Averages of weights and other ranks write into it without a notice.
        if not (self.is_known or torch.compiler.is_compiling()):
            self._look()
        return self.is_known

    def _look(self) -> None:
        if self.state is not None and not self.state.is_meta:
            self.is_known = not bool(self.state.isnan().any())

    def known(self) -> torch.Tensor:
        """The stored scale. RuntimeError, with the remedy, if there is none yet."""
        state = self.state
        if state is None:
            raise RuntimeError(
                f"{self.owner} does not know how many channels there are: give channels="
            )
        if not self.has_started():
            raise RuntimeError(
                f"the scale of {self.owner} is not known yet: run one batch in training mode, "
                "load a state dict, call initialize(x) or give scale= a number"
            )
        # float16 and bfloat16 are too coarse for what follows.
        coarse = state.dtype in (torch.float16, torch.bfloat16)
        return state.float() if coarse else state

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *others: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *others)
        if prefix + self.name in state_dict:
            self._look()
        else:
            self._restart()

    def _restart(self) -> None:
        """The state dict is one of a float model: the scale is to be taken from its tensors."""
        self.is_known = False


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
        check_scale(given, scale)
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
        if self.state is not None and not self.is_known:
            self.set(self._given if self.state.ndim else self._given[0])

    def _unknown(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.full(shape, math.nan, dtype=self._given.dtype, device=self._device)

    def _restart(self) -> None:
        """Whatever the tensors are, the scale stays."""

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        return self.known()


class LearnedScale(StoredScale):
    """Learned by its threshold; else as in LSQ (Esser et al., 2020), arxiv.org/abs/1902.08153.

    The parameter is the threshold t = scale Q, for the largest code Q: the largest magnitude that
    is not clipped. Optimizers such as Adam step by the learning rate, whatever the gradient is:
    for weights up to 0.5 in 8 bits that is little beside t = 0.5, but much beside scale = 0.004.

    In training mode the gradient of t is multiplied by 1 / sqrt(N), for N elements that share the
    scale (of a weight, or of one sample of an activation), since it is a sum over them. LSQ has
    1 / sqrt(N Q) for the scale, which is the same for Q = 1. It starts from `initialize`, or from
    the first x in training mode, which the ranks of a process group take together: see
    `Reach.initial`.
    """

    name = "threshold"
    _learned = True

    def _store(self, state: torch.Tensor | None) -> None:
        self.register_parameter(self.name, None if state is None else torch.nn.Parameter(state))

    def set(self, scale: torch.Tensor) -> None:
        super().set(scale * self.reach.largest)

    def known(self) -> torch.Tensor:
        # Divisions by a number are multiplications on some devices: other bits.
        return super().known() * (1 / self.reach.largest)

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.can_start(x):
            self.set(over_ranks(self.starting(x)))
        scale = self.known()
        if not self.training:
            return scale
        # The value is unchanged, to the bit; only the gradient is multiplied.
        return scale.detach().lerp(scale, max(self.layout.elements(x), 1) ** -0.5)

    def freeze(self, frozen: bool) -> None:
        state = self.state
        if state is not None and frozen and not self.frozen:
            # Without a gradient, even one of 0, no optimizer moves it on by its momentum.
            self._learned, state.grad = state.requires_grad, None
            state.requires_grad_(False)
        elif state is not None and self.frozen and not frozen:
            state.requires_grad_(self._learned)
        super().freeze(frozen)

    def starting(self, x: torch.Tensor) -> torch.Tensor:
        return self.reach.initial(finite(x), self.layout.reduced(x))

    def initialize(self, x: torch.Tensor) -> None:
        self.set(self.starting(x))


class EmaScale(StoredScale):
    """An exponential moving average of the scale of "absmax", updated in training mode.

    value = momentum * value + (1 - momentum) * new, before it is used; the first x sets it. In
    eval mode it stays, and so it does where activation checkpointing computes a forward pass again.
    It is a buffer, without a gradient: DistributedDataParallel copies that of rank 0 to all ranks
    before each step, so that what other ranks have seen is not in it.
    """

    def __init__(
        self, reach: Reach, layout: Layout, power_of_two: bool, momentum: float = 0.9
    ) -> None:
        super().__init__(reach, layout, power_of_two)
        self.momentum = momentum

    def measured(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.can_start(x):
            self.initialize(x)
        elif self.training and not self.frozen and x.numel() and not _repeating():
            value = self.known()
            self.set(value.lerp(self._covering(x).to(value.dtype), 1 - self.momentum))
        return self.known()

    def initialize(self, x: torch.Tensor) -> None:
        self.set(self._covering(x))

    def _covering(self, x: torch.Tensor) -> torch.Tensor:
        return self.reach.covering(finite(x), self.layout.reduced(x))


def _repeating() -> bool:
    """Whether a backward pass runs this forward pass once more: its batch has been counted."""
    # Compilers cannot follow the question; what they repeat has no effects.
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
