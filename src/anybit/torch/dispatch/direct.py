# SPDX-License-Identifier: Apache-2.0
"""Calls of the kernels for plain tensors without the dispatcher.

The dispatcher would call the same kernels, but its overhead exceeds the time of a small tensor. All
features that may see or change a call have a dispatch key, of a tensor or of the thread. Calls with
a key other than those of dense tensors on one CPU or GPU are left to the dispatcher.
"""

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from anybit import _native
from anybit.ops import Operator
from anybit.torch.dispatch import cpu, gpu
from anybit.torch.dispatch.parameters import NUMBERS, ONLY_X, Attributes, SplitArguments

# A function that returns the result, or None for a call that is left to the dispatcher.
Direct = Callable[[tuple[Any, ...], Attributes], torch.Tensor | None]
ComputeResult = Callable[[tuple[Any, ...], Attributes], torch.Tensor]
Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]
_Inputs = tuple[SplitArguments, tuple[Any, ...]]
_BackwardPlan = tuple[tuple[str, ...], Pick, Pick]
_Layout = tuple[tuple[int, ...], Pick, tuple[int, ...]]
CarryBack = Callable[[Any, torch.Tensor], tuple[Any, ...]]


def _get_plain_keys(device: str) -> int:
    """Return, as bits, the keys with which a dense tensor reaches the kernel of its device."""
    keys = 0
    names = (device, "ADInplaceOrView", f"Autograd{device}", f"Autocast{device}", "BackendSelect")
    for name in names:
        keys |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return keys


def _make_plain_tensors() -> Callable[[tuple[Any, ...]], tuple[Any, ...] | None]:
    """Create `plain_tensors`, which uses private functions of PyTorch.

    Without one of these functions, it returns None for all inputs.
    """
    try:
        as_bits = torch._C.DispatchKeySet.raw_repr
        int(forward_ad._current_level)  # read at each call
        return _native.plain_tensors(
            (torch.Tensor, torch.nn.Parameter),
            torch._C._dispatch_keys,
            torch._C._dispatch_tls_local_include_set,
            # The function itself; a method object would add a call.
            getattr(as_bits, "__func__", as_bits),
            [_get_plain_keys("CPU"), _get_plain_keys("CUDA")],
            (torch._C._len_torch_function_stack, torch._C._autograd._profiler_enabled),
            forward_ad,
            "_current_level",
        )
    except (AttributeError, TypeError):
        return lambda inputs: None


# A function that returns the tensors among inputs, which begin with a tensor. It returns None
# unless they are dense tensors of CPUs or GPUs without any hook, mode, transform or subclass.
plain_tensors = _make_plain_tensors()


def are_direct(*tensors: torch.Tensor) -> bool:
    """Return whether the tensors are plain."""
    return plain_tensors(tensors) is not None


def make_direct_call(operator: Operator, carry_back: CarryBack | None) -> Direct:
    """Return the operator for plain tensors. `carry_back` is its derivative for others."""
    on_cpu, on_gpu = cpu.make_native_result(operator), gpu.make_result(operator)
    apply = carry_back and _make_differentiable(operator, on_cpu, on_gpu, carry_back)
    layout_of = _cache_layouts(operator)

    def direct(inputs: tuple[Any, ...], attributes: Attributes) -> torch.Tensor | None:
        tensors = plain_tensors(inputs)
        if tensors is None:
            return None
        try:
            if is_grad_enabled():
                for tensor in tensors:
                    if tensor.requires_grad:
                        if apply is None:
                            return None
                        if len(tensors) == 1:
                            return apply(((attributes, inputs[1:], ONLY_X), inputs), tensor)
                        indices, pick, fixed = layout_of(tuple(map(type, inputs)))
                        for index in fixed:
                            if inputs[index].requires_grad:
                                return None  # the caller raises: it does not have a gradient
                        return apply(
                            ((attributes, pick((None, *inputs)), indices), inputs), *tensors
                        )
            return (on_gpu if tensors[0].is_cuda else on_cpu)(inputs, attributes)
        except (TypeError, ValueError):
            return None  # the caller raises, so that errors have one wording

    return direct


def _cache_layouts(operator: Operator) -> Callable[[tuple[type, ...]], _Layout]:
    """Return a cached form of `split_call`, by the types of the inputs.

    A layout has the indices of tensors, a function that selects the parameters from None and the
    inputs, and the indices of tensors without a gradient.
    """
    names = [declared.name for declared in operator.inputs]

    @functools.cache
    def layout_of(types: tuple[type, ...]) -> _Layout:
        places = tuple(place for place, kind in enumerate(types) if kind not in NUMBERS)
        order = [0 if place in places else place + 1 for place in range(1, len(types))]
        fixed = tuple(place for place in places[1:] if names[place] not in operator.differentiable)
        return places, _make_item_selector(order), fixed

    return layout_of


def _make_item_selector(order: Sequence[int]) -> Pick:
    """Return a function that selects items of a tuple, as a tuple."""
    if len(order) == 1:
        return lambda items: (items[order[0]],)
    return itemgetter(*order)


def _cache_backward_plans(operator: Operator) -> Callable[..., _BackwardPlan | None]:
    """Return a cached function from the tensors and those with a gradient to a backward plan.

    A plan has the names of the inputs to differentiate, a function that sorts tensors and
    parameters into the order of a call, and one that inserts None between the gradients. It is None
    unless all gradients are native.
    """
    names = [declared.name for declared in operator.inputs]
    native = _native.get_differentiable_inputs(operator.name)

    @functools.cache
    def plan_of(places: tuple[int, ...], needs: tuple[bool, ...]) -> _BackwardPlan | None:
        targets = [place for place, need in zip(places, needs[1:], strict=True) if need]
        if not native.issuperset(names[place] for place in targets):
            return None
        call = [
            places.index(place) if place in places else len(places) + place - 1
            for place in range(len(names))
        ]
        gradients = [None, *targets]
        order = [gradients.index(place if place in targets else None) for place in (None, *places)]
        return (
            tuple(names[place] for place in targets),
            _make_item_selector(call),
            _make_item_selector(order),
        )

    return plan_of


def _make_differentiable(
    operator: Operator, on_cpu: ComputeResult, on_gpu: ComputeResult, carry_back: CarryBack
) -> Callable[..., torch.Tensor]:
    back_on_cpu, back_on_gpu = cpu.make_native_gradients(operator), gpu.make_gradients(operator)
    plan_of = _cache_backward_plans(operator)
    alone = plan_of((0,), (False, True))
    only_x = alone and alone[0]

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, call_and_inputs: _Inputs, *tensors: torch.Tensor) -> torch.Tensor:
            ctx.call, inputs = call_and_inputs
            ctx.to_save = tensors  # as `ctx.save_for_backward` does, without its overhead
            return (on_gpu if tensors[0].is_cuda else on_cpu)(inputs, ctx.call[0])

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
            saved = ctx.saved_tensors
            if is_compiling() or is_grad_enabled() or plain_tensors((gradient, *saved)) is None:
                return carry_back(ctx, gradient)
            call = ctx.call
            gradients = back_on_gpu if gradient.is_cuda else back_on_cpu
            if only_x and len(saved) == 1:
                return None, gradients(gradient, (*saved, *call[1]), only_x, call[0])[0]
            plan = plan_of(call[2], ctx.needs_input_grad)
            if plan is None:
                return carry_back(ctx, gradient)
            names, in_order, pick = plan
            inputs = in_order((*saved, *call[1]))
            return pick((None, *gradients(gradient, inputs, names, call[0])))

    # Nodes call `apply`, which looks up the derivative in each call.
    node = getattr(Direct, "_backward_cls", None)
    if node is not None:
        node.apply = Direct.backward
    # Function.apply checks for functorch first, which is not active here.
    base = super(torch.autograd.Function, Direct)
    apply: Callable[..., torch.Tensor] | None = getattr(base, "apply", None)
    return apply or Direct.apply
