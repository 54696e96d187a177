# SPDX-License-Identifier: Apache-2.0
"""Plain CPU tensors straight to the native kernels, past the dispatcher.

The dispatcher would end in the same kernels, but asks autograd, Python and itself on the way, which
takes longer than a small tensor does. Whatever may see a call that goes through the dispatcher, or
change it, is told from its keys: of the tensors, and of the thread. With any key but those of
dense CPU tensors, nothing is done here.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import empty_like
from torch.autograd import forward_ad

from anybit._native import _core
from anybit.ops import Operator
from anybit.torch.dispatch.autograd import keep
from anybit.torch.dispatch.cpu import SHARED, as_gradients, native_gradients, native_result, run
from anybit.torch.dispatch.parameters import Call, apart, joined
from anybit.torch.results import empty_result

Attributes = Mapping[str, Any]
# The result, or None for a call that is the dispatcher's.
Direct = Callable[[Sequence[Any], Attributes], torch.Tensor | None]
CarryBack = Callable[[Any, torch.Tensor], tuple[Any, ...]]

# DLPack's functions in C, which PyTorch has since 2.10; None before.
_EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


def _other_keys() -> int:
    """All keys but those under which a dense CPU tensor ends in the CPU kernel, as bits."""
    own = 0
    for name in ("CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU", "BackendSelect"):
        own |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return ~own


def _question() -> Callable[..., bool]:
    """`are_direct`, which asks private functions of PyTorch: False where there is one no longer."""
    try:
        keys_of = torch._C._dispatch_keys
        keys_of_thread = torch._C._dispatch_tls_local_include_set
        function_modes = torch._C._len_torch_function_stack
        is_profiled = torch._C._autograd._profiler_enabled
        others = _other_keys()
        int(forward_ad._current_level)  # read at each call
    except AttributeError:
        return lambda *tensors: False

    def are_direct(*tensors: Any) -> bool:
        keys = keys_of_thread().raw_repr()
        for tensor in tensors:
            if type(tensor) not in _TENSORS:
                return False
            keys |= keys_of(tensor).raw_repr()
        return not (
            keys & others or function_modes() or is_profiled() or forward_ad._current_level >= 0
        )

    return are_direct


# Whether these are dense CPU tensors that nothing watches, records, transforms or replaces.
are_direct = _question()


def direct_call(operator: Operator, carry_back: CarryBack | None) -> Direct:
    """The operator for plain calls. `carry_back` is its derivative for all that are not."""
    result = _result(operator)
    apply = carry_back and _differentiable(operator, result, carry_back)
    fixed = [
        place
        for place, declared in enumerate(operator.inputs)
        if place and declared.name not in operator.differentiable
    ]

    def direct(inputs: Sequence[Any], attributes: Attributes) -> torch.Tensor | None:
        call, tensors = apart(inputs, attributes)
        if not are_direct(*tensors):
            return None
        needs = False
        for tensor in tensors:
            needs = needs or tensor.requires_grad
        try:
            if not needs or not torch.is_grad_enabled():
                return result(inputs, attributes)
            # What has no gradient and requires one is refused there.
            if apply is None or (fixed and _any_requires_gradient(inputs, fixed)):
                return None
            return apply(call, *tensors)
        except (TypeError, ValueError):
            return None  # so that there is one wording of what is refused

    return direct


def _any_requires_gradient(inputs: Sequence[Any], places: Sequence[int]) -> bool:
    return any(
        isinstance(inputs[place], torch.Tensor) and inputs[place].requires_grad for place in places
    )


def _result(operator: Operator) -> Callable[[Sequence[Any], Attributes], torch.Tensor]:
    if _EXCHANGE is None:
        return native_result(operator)
    native = getattr(_core, operator.name)
    has_dtype_of_x = operator.result_dtype is None

    def call(inputs: Sequence[Any], attributes: Attributes) -> torch.Tensor:
        x = inputs[0]
        result = empty_like(x) if has_dtype_of_x else empty_result(operator, x, attributes)
        if x.numel() < SHARED:
            native(*inputs, out=result, exchange=_EXCHANGE, **attributes)
        else:
            run(native, x.numel(), *inputs, out=result, exchange=_EXCHANGE, **attributes)
        return result

    return call


def _gradients(operator: Operator) -> Callable[..., Sequence[torch.Tensor]]:
    if _EXCHANGE is None:
        return native_gradients(operator)
    native = getattr(_core, f"{operator.name}_backward")
    x_name = operator.inputs[0].name
    only_x = [x_name]

    def call(
        gradient: torch.Tensor, inputs: Sequence[Any], wanted: list[str], attributes: Attributes
    ) -> Sequence[torch.Tensor]:
        x = inputs[0]
        keywords = {"wanted": wanted, "exchange": _EXCHANGE, **attributes}
        out = None
        if x_name in wanted:
            keywords["out"] = out = empty_like(x)
        if x.numel() < SHARED:
            found = native(gradient, *inputs, **keywords)
        else:
            found = run(native, x.numel(), gradient, *inputs, **keywords)
        return [out] if wanted == only_x else as_gradients(found, wanted, x_name, out)

    return call


def _differentiable(
    operator: Operator,
    result: Callable[[Sequence[Any], Attributes], torch.Tensor],
    carry_back: CarryBack,
) -> Callable[..., Any]:
    gradients = _gradients(operator)
    names = [declared.name for declared in operator.inputs]
    native = frozenset(_core.descriptions[operator.name]["differentiable"])

    @functools.cache
    def asked(places: tuple[int, ...], needs: tuple[bool, ...]) -> tuple[list[str], bool, bool]:
        """The inputs that need a gradient; whether these are all tensors; whether natively."""
        wanted = [names[place] for place, need in zip(places, needs[1:], strict=True) if need]
        return wanted, len(wanted) == len(places), native.issuperset(wanted)

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> torch.Tensor:
            keep(ctx, call, *tensors)
            return result(joined(call, tensors), call[0])

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
            saved = ctx.saved_tensors
            if torch.is_grad_enabled() or not are_direct(gradient, *saved):
                return carry_back(ctx, gradient)
            call, needs = ctx.call, ctx.needs_input_grad
            wanted, is_all, is_native = asked(call[2], needs)
            if not is_native:
                return carry_back(ctx, gradient)
            found = gradients(gradient, joined(call, saved), wanted, call[0])
            if is_all:
                return None, *found
            rest = iter(found)
            return tuple([next(rest) if need else None for need in needs])

    # Function.apply looks for functorch first, which has no say here.
    without = super(torch.autograd.Function, Direct)
    apply: Callable[..., Any] | None = getattr(without, "apply", None)
    return apply or Direct.apply
