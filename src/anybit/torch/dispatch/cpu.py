# SPDX-License-Identifier: Apache-2.0
"""The native kernels on CPU tensors, without copies and with PyTorch's thread limit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import empty_like

from anybit import _native
from anybit.arrays import Array
from anybit.ops import Operator
from anybit.torch.checks import check, check_backward, check_out
from anybit.torch.dispatch.reference import make_partials_backward
from anybit.torch.results import make_empty_result

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# The C functions of DLPack.
_EXCHANGE = torch.Tensor.__dlpack_c_exchange_api__
_FORWARD_KEYWORDS, _BACKWARD_KEYWORDS = ("out", "exchange"), ("requested", "out", "exchange")
# The smallest number of elements that kernels divide among threads.
_MIN_PARALLEL = 4096


def make_forward_kernel(operator: Operator) -> Callable[..., torch.Tensor]:
    call = make_native_result(operator)

    def kernel(*inputs: Any, **attributes: Any) -> torch.Tensor:
        try:
            return call(inputs, attributes)
        except TypeError:
            check(operator, inputs, attributes)
            raise

    return kernel


def make_out_kernel(operator: Operator) -> Callable[..., None]:
    native = _native.get_kernel(operator.name)

    def kernel(*inputs: Any, out: torch.Tensor, **attributes: Any) -> None:
        try:
            # The kernel copies arrays that `out` overlaps.
            *arrays, target = [_view(value) for value in (*inputs, out)]
        except TypeError:
            check(operator, inputs, attributes)
            check_out(operator, inputs[0], out, attributes)
            raise
        check_out(operator, inputs[0], out, attributes)
        _run(native, *arrays, out=target, **attributes)
        # Autograd must know that the tensor was overwritten.
        torch.autograd.graph.increment_version(out)

    return kernel


def make_backward_kernel(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    """Return the backward kernel: native for x and real parameters, else the reference."""
    native = make_native_gradients(operator)
    fast = _native.get_differentiable_inputs(operator.name)
    slow = make_partials_backward(operator)

    def kernel(
        gradient: torch.Tensor, *inputs: Any, requested: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        natively = [name for name in requested if name in fast]
        rest = [name for name in requested if name not in fast]
        by_name = {}
        if natively:
            try:
                gradients = native(gradient, inputs, natively, attributes)
            except TypeError:
                check_backward(operator, gradient, inputs, requested, attributes)
                raise
            by_name = dict(zip(natively, gradients, strict=True))
        if rest:
            by_name |= zip(rest, slow(gradient, *inputs, requested=rest, **attributes), strict=True)
        return [by_name[name] for name in requested]

    return kernel


def make_native_result(
    operator: Operator,
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], torch.Tensor]:
    """Return the operator for a tensor and parameters that are tensors or numbers."""
    native = _native.get_spread_variant(_native.get_kernel(operator.name))
    has_dtype_of_x = operator.result_dtype is None

    def call(inputs: tuple[Any, ...], attributes: Mapping[str, Any]) -> torch.Tensor:
        x = inputs[0]
        result = empty_like(x) if has_dtype_of_x else make_empty_result(operator, x, attributes)
        if x.numel() < _MIN_PARALLEL:
            native(inputs, attributes, _FORWARD_KEYWORDS, result, _EXCHANGE)
        else:
            _run(native, inputs, attributes, _FORWARD_KEYWORDS, result, _EXCHANGE)
        return result

    return call


def make_native_gradients(operator: Operator) -> Callable[..., Sequence[torch.Tensor]]:
    """Return the function for the gradients of inputs that native kernels differentiate.

    Without such a kernel, it is the reference.
    """
    if not _native.get_differentiable_inputs(operator.name):
        slow = make_partials_backward(operator)
        return lambda gradient, inputs, requested, attributes: slow(
            gradient, *inputs, requested=[*requested], **attributes
        )
    native = _native.get_spread_variant(_native.get_backward_kernel(operator.name))
    x_name = operator.inputs[0].name

    def call(
        gradient: torch.Tensor,
        inputs: Sequence[Any],
        requested: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> Sequence[torch.Tensor]:
        x = inputs[0]
        # The gradient of x is a tensor created by PyTorch, as tracing assumes its strides.
        out = empty_like(x) if x_name in requested else None
        if x.numel() < _MIN_PARALLEL:
            gradients: list[Any] = native(
                (gradient, *inputs), attributes, _BACKWARD_KEYWORDS, requested, out, _EXCHANGE
            )
        else:
            every = (gradient, *inputs)
            gradients = _run(
                native, every, attributes, _BACKWARD_KEYWORDS, requested, out, _EXCHANGE
            )
        if len(gradients) == 1 and out is not None:
            return gradients
        return [array if array is out else _as_tensor(array) for array in gradients]

    return call


def _view(value: Any) -> Any:
    """Return a tensor's memory as an array, with bfloat16 of ml_dtypes; None stays None."""
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
    """Run a kernel with the thread limit of PyTorch in this thread."""
    previous = _native.limit_threads(torch.get_num_threads())
    try:
        return native(*arguments, **keywords)
    finally:
        _native.limit_threads(previous)
