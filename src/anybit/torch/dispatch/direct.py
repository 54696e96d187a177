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

from anybit._native import differentiable
from anybit.ops import Operator
from anybit.torch.dispatch import cpu, gpu
from anybit.torch.dispatch.parameters import Attributes, Call, apart, joined

# The result, or None for a call that is the dispatcher's.
Direct = Callable[[Sequence[Any], Attributes], torch.Tensor | None]
Result = Callable[[Sequence[Any], Attributes], torch.Tensor]
Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]
_Given = tuple[Call, Sequence[Any]]
CarryBack = Callable[[Any, torch.Tensor], tuple[Any, ...]]

_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


def _other_keys(device: str) -> int:
    """All keys but those under which a dense tensor ends in the kernel of its device, as bits."""
    own = 0
    names = (device, "ADInplaceOrView", f"Autograd{device}", f"Autocast{device}", "BackendSelect")
    for name in names:
        own |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return ~own


def _question() -> Callable[..., bool]:
    """`are_direct`, which asks private functions of PyTorch: False where there is one no longer."""
    try:
        keys_of = torch._C._dispatch_keys
        keys_of_thread = torch._C._dispatch_tls_local_include_set
        as_bits = torch._C.DispatchKeySet.raw_repr
        # What is called, without the layer that makes a method of it.
        as_bits = getattr(as_bits, "__func__", as_bits)
        function_modes = torch._C._len_torch_function_stack
        is_profiled = torch._C._autograd._profiler_enabled
        not_cpu, not_gpu = _other_keys("CPU"), _other_keys("CUDA")
        int(forward_ad._current_level)  # read at each call
    except AttributeError:
        return lambda *tensors: False

    def are_direct(*tensors: Any) -> bool:
        keys = as_bits(keys_of_thread())
        for tensor in tensors:
            if type(tensor) not in _TENSORS:
                return False
            keys |= as_bits(keys_of(tensor))
        if keys & not_cpu and keys & not_gpu:
            return False
        return not (function_modes() or is_profiled() or forward_ad._current_level >= 0)

    return are_direct


# Whether these are dense tensors of a CPU, or of GPUs, that nothing watches, records, transforms or
# replaces.
are_direct = _question()


def direct_call(operator: Operator, carry_back: CarryBack | None) -> Direct:
    """The operator for plain calls. `carry_back` is its derivative for all that are not."""
    on_cpu, on_gpu = cpu.native_result(operator), gpu.result(operator)
    apply = carry_back and _differentiable(operator, on_cpu, on_gpu, carry_back)
    fixed = _without_gradient(operator)

    def direct(inputs: Sequence[Any], attributes: Attributes) -> torch.Tensor | None:
        call, tensors = apart(inputs, attributes)
        if not are_direct(*tensors):
            return None
        try:
            if is_grad_enabled():
                for tensor in tensors:
                    if tensor.requires_grad:
                        # What has no gradient and requires one is refused there.
                        if apply is None or (len(tensors) > 1 and _any_requires(inputs, fixed)):
                            return None
                        return apply((call, inputs), *tensors)
            return (on_gpu if tensors[0].is_cuda else on_cpu)(inputs, attributes)
        except (TypeError, ValueError):
            return None  # so that there is one wording of what is refused

    return direct


def _without_gradient(operator: Operator) -> list[int]:
    """The places of parameters that have no gradient."""
    return [
        place
        for place, declared in enumerate(operator.inputs)
        if place and declared.name not in operator.differentiable
    ]


def _any_requires(inputs: Sequence[Any], places: Sequence[int]) -> bool:
    for place in places:
        if isinstance(inputs[place], torch.Tensor) and inputs[place].requires_grad:
            return True
    return False


def _picks(operator: Operator) -> Callable[..., tuple[tuple[str, ...], Pick] | None]:
    """What a backward pass asks for, of the places of tensors and whether they need a gradient.

    The inputs that do, and what puts None beside their gradients; None if not all are native.
    """
    names = [declared.name for declared in operator.inputs]
    native = differentiable(operator.name)

    @functools.cache
    def asked(
        places: tuple[int, ...], needs: tuple[bool, ...]
    ) -> tuple[tuple[str, ...], Pick] | None:
        wanted = [place for place, need in zip(places, needs[1:], strict=True) if need]
        if not native.issuperset(names[place] for place in wanted):
            return None
        found = [None, *wanted]
        order = [found.index(place if place in wanted else None) for place in (None, *places)]
        return tuple(names[place] for place in wanted), itemgetter(*order)

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
            if is_compiling() or is_grad_enabled() or not are_direct(gradient, *saved):
                return carry_back(ctx, gradient)
            call = ctx.call
            gradients = back_on_gpu if gradient.is_cuda else back_on_cpu
            if only_x and len(saved) == 1:
                return None, gradients(gradient, (*saved, *call[1]), only_x, call[0])[0]
            found = asked(call[2], ctx.needs_input_grad)
            if found is None:
                return carry_back(ctx, gradient)
            wanted, pick = found
            return pick((None, *gradients(gradient, joined(call, saved), wanted, call[0])))

    # Nodes call `apply`, which asks each time which function is the derivative.
    node = getattr(Direct, "_backward_cls", None)
    if node is not None:
        node.apply = Direct.backward
    # Function.apply looks for functorch first, which has no say here.
    without = super(torch.autograd.Function, Direct)
    apply: Callable[..., torch.Tensor] | None = getattr(without, "apply", None)
    return apply or Direct.apply
