# SPDX-License-Identifier: Apache-2.0
"""Plain tensors straight to the kernels, past the dispatcher.

The dispatcher would end in the same kernels, but asks autograd, Python and itself on the way, which
takes longer than a small tensor does. Whatever may see a call that goes through the dispatcher, or
change it, is told from its keys: of the tensors, and of the thread. With any key but those of
dense tensors of one device, a CPU or a GPU, nothing is done here.
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
from anybit.torch.dispatch.parameters import NUMBERS, ONLY_X, Attributes, Call

# The result, or None for a call that is the dispatcher's.
Direct = Callable[[tuple[Any, ...], Attributes], torch.Tensor | None]
Result = Callable[[tuple[Any, ...], Attributes], torch.Tensor]
Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]
_Given = tuple[Call, tuple[Any, ...]]
_Way = tuple[tuple[str, ...], Pick, Pick]
_Layout = tuple[tuple[int, ...], Pick, tuple[int, ...]]
CarryBack = Callable[[Any, torch.Tensor], tuple[Any, ...]]


def _own_keys(device: str) -> int:
    """The keys under which a dense tensor ends in the kernel of its device, as bits."""
    own = 0
    names = (device, "ADInplaceOrView", f"Autograd{device}", f"Autocast{device}", "BackendSelect")
    for name in names:
        own |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return own


def _question() -> Callable[[tuple[Any, ...]], tuple[Any, ...] | None]:
    """`plain_tensors`, which asks private functions of PyTorch.

    None for all inputs where there is one of them no longer, or another.
    """
    try:
        as_bits = torch._C.DispatchKeySet.raw_repr
        int(forward_ad._current_level)  # read at each call
        return _native.plain_tensors(
            (torch.Tensor, torch.nn.Parameter),
            torch._C._dispatch_keys,
            torch._C._dispatch_tls_local_include_set,
            # What is called, without the layer that makes a method of it.
            getattr(as_bits, "__func__", as_bits),
            [_own_keys("CPU"), _own_keys("CUDA")],
            (torch._C._len_torch_function_stack, torch._C._autograd._profiler_enabled),
            forward_ad,
            "_current_level",
        )
    except (AttributeError, TypeError):
        return lambda inputs: None


# The tensors among inputs, which begin with one and may go on with numbers; None unless they are
# dense tensors of a CPU, or of GPUs, that nothing watches, records, transforms or replaces.
plain_tensors = _question()


def are_direct(*tensors: torch.Tensor) -> bool:
    """Whether these are plain."""
    return plain_tensors(tensors) is not None


def direct_call(operator: Operator, carry_back: CarryBack | None) -> Direct:
    """The operator for plain calls. `carry_back` is its derivative for all that are not."""
    on_cpu, on_gpu = cpu.native_result(operator), gpu.result(operator)
    apply = carry_back and _differentiable(operator, on_cpu, on_gpu, carry_back)
    layout_of = _layouts(operator)

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
                        places, pick, fixed = layout_of(tuple(map(type, inputs)))
                        for place in fixed:
                            if inputs[place].requires_grad:
                                return None  # it has no gradient, and is refused there
                        return apply(
                            ((attributes, pick((None, *inputs)), places), inputs), *tensors
                        )
            return (on_gpu if tensors[0].is_cuda else on_cpu)(inputs, attributes)
        except (TypeError, ValueError):
            return None  # so that there is one wording of what is refused

    return direct


def _layouts(operator: Operator) -> Callable[[tuple[type, ...]], _Layout]:
    """What `apart` finds, of the types of the inputs, so that it is found once for each.

    The places of tensors, what takes the parameters from None and the inputs, with None for
    tensors, and the places of tensors that have no gradient.
    """
    names = [declared.name for declared in operator.inputs]

    @functools.cache
    def layout_of(types: tuple[type, ...]) -> _Layout:
        places = tuple(place for place, kind in enumerate(types) if kind not in NUMBERS)
        order = [0 if place in places else place + 1 for place in range(1, len(types))]
        fixed = tuple(place for place in places[1:] if names[place] not in operator.differentiable)
        return places, _picking(order), fixed

    return layout_of


def _picking(order: Sequence[int]) -> Pick:
    """What takes these items of a tuple, as a tuple."""
    if len(order) == 1:
        return lambda items: (items[order[0]],)
    return itemgetter(*order)


def _picks(operator: Operator) -> Callable[..., _Way | None]:
    """The way back, of the places of tensors and whether they need a gradient.

    The inputs that do; what puts the tensors, followed by the parameters, into the order of a call;
    and what puts None beside the gradients. None if not all are native.
    """
    names = [declared.name for declared in operator.inputs]
    native = _native.differentiable(operator.name)

    @functools.cache
    def asked(places: tuple[int, ...], needs: tuple[bool, ...]) -> _Way | None:
        wanted = [place for place, need in zip(places, needs[1:], strict=True) if need]
        if not native.issuperset(names[place] for place in wanted):
            return None
        call = [
            places.index(place) if place in places else len(places) + place - 1
            for place in range(len(names))
        ]
        found = [None, *wanted]
        order = [found.index(place if place in wanted else None) for place in (None, *places)]
        return tuple(names[place] for place in wanted), _picking(call), _picking(order)

    return asked


def _differentiable(
    operator: Operator, on_cpu: Result, on_gpu: Result, carry_back: CarryBack
) -> Callable[..., torch.Tensor]:
    back_on_cpu, back_on_gpu = cpu.native_gradients(operator), gpu.gradients(operator)
    asked = _picks(operator)
    alone = asked((0,), (False, True))
    only_x = alone and alone[0]

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: _Given, *tensors: torch.Tensor) -> torch.Tensor:
            ctx.call, inputs = given
            ctx.to_save = tensors  # what `ctx.save_for_backward` does, without its call
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
            found = asked(call[2], ctx.needs_input_grad)
            if found is None:
                return carry_back(ctx, gradient)
            wanted, in_order, pick = found
            inputs = in_order((*saved, *call[1]))
            return pick((None, *gradients(gradient, inputs, wanted, call[0])))

    # Nodes call `apply`, which asks each time which function is the derivative.
    node = getattr(Direct, "_backward_cls", None)
    if node is not None:
        node.apply = Direct.backward
    # Function.apply looks for functorch first, which has no say here.
    without = super(torch.autograd.Function, Direct)
    apply: Callable[..., torch.Tensor] | None = getattr(without, "apply", None)
    return apply or Direct.apply
