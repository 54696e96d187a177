# SPDX-License-Identifier: Apache-2.0
"""Plain CPU tensors straight to the native kernels, past the dispatcher.

The dispatcher would end in the same kernels, but asks autograd, Python and itself on the way, which
takes longer than a small tensor does. Whatever may see a call that goes through the dispatcher, or
change it, is told from its keys: of the tensors, and of the thread. With any key but those of
dense CPU tensors, nothing is done here.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from anybit._native import _core
from anybit.ops import Operator
from anybit.torch.dispatch.autograd import keep, kept
from anybit.torch.dispatch.cpu import native_gradients, native_result
from anybit.torch.dispatch.parameters import NUMBERS

Attributes = dict[str, Any]
# The result, or None for a call that is the dispatcher's.
Direct = Callable[[Sequence[Any], Attributes], torch.Tensor | None]
CarryBack = Callable[[Any, torch.Tensor], tuple[Any, ...]]

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_keys_of = torch._C._dispatch_keys
_keys_of_thread = torch._C._dispatch_tls_local_include_set
_function_modes = torch._C._len_torch_function_stack
_is_profiled = torch._C._autograd._profiler_enabled


def _other_keys() -> int:
    """All keys but those under which a dense CPU tensor ends in the CPU kernel, as bits."""
    own = 0
    for name in ("CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU", "BackendSelect"):
        own |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return ~own


_OTHERS = _other_keys()


def is_direct() -> bool:
    """Whether nothing in this thread watches, records, transforms or replaces calls."""
    return not (
        _keys_of_thread().raw_repr() & _OTHERS
        or _function_modes()
        or _is_profiled()
        or forward_ad._current_level >= 0
    )


def is_plain(value: Any) -> bool:
    """Whether it is a dense CPU tensor that no class, view or transformation makes another one."""
    return type(value) in _TENSORS and not _keys_of(value).raw_repr() & _OTHERS


def direct_call(operator: Operator, carry_back: CarryBack | None) -> Direct:
    """The operator for plain calls. `carry_back` is its derivative for all that are not."""
    call = native_result(operator)
    apply = carry_back and _differentiable(operator, call, carry_back)
    fixed = [
        place
        for place, declared in enumerate(operator.inputs)
        if place and declared.name not in operator.differentiable
    ]

    def direct(inputs: Sequence[Any], attributes: Attributes) -> torch.Tensor | None:
        if not is_direct() or type(inputs[0]) in NUMBERS:
            return None
        needs = False
        for value in inputs:
            if type(value) in NUMBERS:
                continue
            if not is_plain(value):
                return None
            needs = needs or value.requires_grad
        try:
            if not needs or not torch.is_grad_enabled():
                return call(inputs, attributes)
            # What has no gradient and requires one is refused there.
            if apply is None or any(_requires_gradient(inputs[place]) for place in fixed):
                return None
            return apply(attributes, *inputs)
        except (TypeError, ValueError):
            return None  # so that there is one wording of what is refused

    return direct


def _requires_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _differentiable(
    operator: Operator,
    call: Callable[[Sequence[Any], Attributes], torch.Tensor],
    carry_back: CarryBack,
) -> Callable[..., Any]:
    gradients = native_gradients(operator)
    names = [declared.name for declared in operator.inputs]
    native = frozenset(_core.descriptions[operator.name]["differentiable"])

    @functools.cache
    def asked(needs: tuple[bool, ...]) -> tuple[list[str], bool]:
        """The inputs that need a gradient, and whether all of them have a native one."""
        wanted = [name for name, need in zip(names, needs[1:], strict=True) if need]
        return wanted, native.issuperset(wanted)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, attributes: Attributes, *inputs: Any) -> torch.Tensor:
            keep(ctx, attributes, *inputs)
            return call(inputs, attributes)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
            needs = ctx.needs_input_grad
            wanted, is_native = asked(needs)
            if not is_native or torch.is_grad_enabled() or not is_direct():
                return carry_back(ctx, gradient)
            saved = ctx.saved_tensors
            if not all(map(is_plain, (gradient, *saved))):
                return carry_back(ctx, gradient)
            found = iter(gradients(gradient, kept(ctx, saved), wanted, ctx.attributes))
            return tuple([next(found) if need else None for need in needs])

    # Function.apply looks for functorch first, which has no say here.
    apply: Callable[..., Any] = super(torch.autograd.Function, Direct).apply
    return apply
