# SPDX-License-Identifier: Apache-2.0
"""The native kernels on CPU tensors: no copies, and no more threads than PyTorch may use."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import empty_like

from anybit import _native
from anybit.ops import Operator
from anybit.torch.checks import check, check_backward, check_out
from anybit.torch.dispatch.reference import backward_by_partials
from anybit.torch.results import empty_result

Array: TypeAlias = npt.NDArray[Any]
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# DLPack's functions in C.
_EXCHANGE = torch.Tensor.__dlpack_c_exchange_api__
_OUT, _WANTED = ("out", "exchange"), ("wanted", "out", "exchange")
# Fewer elements are never split over threads.
_SHARED = 4096


def forward_kernel(operator: Operator) -> Callable[..., torch.Tensor]:
    call = native_result(operator)

    def kernel(*inputs: Any, **attributes: Any) -> torch.Tensor:
        try:
            return call(inputs, attributes)
        except TypeError:
            check(operator, inputs, attributes)
            raise

    return kernel


def out_kernel(operator: Operator) -> Callable[..., None]:
    native = _native.kernel(operator.name)

    def kernel(*inputs: Any, out: torch.Tensor, **attributes: Any) -> None:
        try:
            # Arrays, which the kernel copies where `out` overlaps them.
            *arrays, target = [_view(value) for value in (*inputs, out)]
        except TypeError:
            check(operator, inputs, attributes)
            check_out(operator, inputs[0], out, attributes)
            raise
        check_out(operator, inputs[0], out, attributes)
        _run(native, *arrays, out=target, **attributes)
        # Autograd refuses to go back through what was overwritten, and knows it from here only.
        torch.autograd.graph.increment_version(out)

    return kernel


def backward_kernel(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    """Natively for x and the real parameters, by the reference for bit-widths."""
    native = native_gradients(operator)
    fast = _native.differentiable(operator.name)
    slow = backward_by_partials(operator)

    def kernel(
        gradient: torch.Tensor, *inputs: Any, wanted: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        natively = [name for name in wanted if name in fast]
        rest = [name for name in wanted if name not in fast]
        found = {}
        if natively:
            try:
                gradients = native(gradient, inputs, natively, attributes)
            except TypeError:
                check_backward(operator, gradient, inputs, wanted, attributes)
                raise
            found = dict(zip(natively, gradients, strict=True))
        if rest:
            found |= zip(rest, slow(gradient, *inputs, wanted=rest, **attributes), strict=True)
        return [found[name] for name in wanted]

    return kernel


def native_result(
    operator: Operator,
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], torch.Tensor]:
    """The operator on tensors, and numbers beside the first."""
    native = _native.spread(_native.kernel(operator.name))
    has_dtype_of_x = operator.result_dtype is None

    def call(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> torch.Tensor:
        x = inputs[0]
        result = empty_like(x) if has_dtype_of_x else empty_result(operator, x, attributes)
        if x.numel() < _SHARED:
            native(inputs, attributes, _OUT, result, _EXCHANGE)
        else:
            _run(native, inputs, attributes, _OUT, result, _EXCHANGE)
        return result

    return call


def native_gradients(operator: Operator) -> Callable[..., Sequence[torch.Tensor]]:
    """The gradients that are wanted, in that order, of inputs that are differentiated natively."""
    native = _native.spread(_native.backward_kernel(operator.name))
    x_name = operator.inputs[0].name

    def call(
        gradient: torch.Tensor,
        inputs: Sequence[Any],
        wanted: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> Sequence[torch.Tensor]:
        x = inputs[0]
        # The gradient of x goes into a tensor of PyTorch's, whose strides are known when tracing.
        out = empty_like(x) if x_name in wanted else None
        if x.numel() < _SHARED:
            found: list[Any] = native(
                (gradient, *inputs), attributes, _WANTED, wanted, out, _EXCHANGE
            )
        else:
            every = (gradient, *inputs)
            found = _run(native, every, attributes, _WANTED, wanted, out, _EXCHANGE)
        if len(found) == 1 and out is not None:
            return found
        # The kernel hands `out` back as it is.
        return [each if each is out else _as_tensor(each) for each in found]

    return call


def _view(value: Any) -> Any:
    """The tensor's memory as an array; NumPy has no bfloat16 of its own. None stays."""
    if value is None:
        return None
    if value.requires_grad:
        value = value.detach()
    if value.dtype == torch.bfloat16:
        array: Array = value.view(torch.int16).numpy().view(_BFLOAT16)
    else:
        array = value.numpy()
    return array


def _as_tensor(array: Array) -> torch.Tensor:
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _run(native: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """The kernel on no more threads than PyTorch may use in this thread."""
    previous = _native.limit_threads(torch.get_num_threads())
    try:
        return native(*arguments, **keywords)
    finally:
        _native.limit_threads(previous)
