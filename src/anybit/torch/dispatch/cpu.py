# SPDX-License-Identifier: Apache-2.0
"""The native kernels on CPU tensors: no copies, and no more threads than PyTorch may use."""

from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from anybit._native import _core
from anybit.ops import Operator
from anybit.torch.dispatch.checks import check, check_backward, check_out
from anybit.torch.dispatch.reference import backward_by_partials
from anybit.torch.dispatch.results import empty_result

Array: TypeAlias = npt.NDArray[Any]
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Fewer elements are never split over threads.
_SHARED = 4096


def forward_kernel(operator: Operator) -> Callable[..., torch.Tensor]:
    native = getattr(_core, operator.name)

    def kernel(*inputs: Any, **attributes: Any) -> torch.Tensor:
        try:
            arrays = [_view(value) for value in inputs]
        except TypeError:
            check(operator, inputs, attributes)
            raise
        result = empty_result(operator, inputs[0], attributes)
        _run(native, result.numel(), *arrays, out=_view(result), **attributes)
        return result

    return kernel


def out_kernel(operator: Operator) -> Callable[..., None]:
    native = getattr(_core, operator.name)

    def kernel(*inputs: Any, out: torch.Tensor, **attributes: Any) -> None:
        try:
            arrays = [_view(value) for value in (*inputs, out)]
        except TypeError:
            check(operator, inputs, attributes)
            check_out(operator, inputs[0], out, attributes)
            raise
        check_out(operator, inputs[0], out, attributes)
        _run(native, out.numel(), *arrays[:-1], out=arrays[-1], **attributes)
        # Autograd refuses to go back through what was overwritten, and knows it from here only.
        torch.autograd.graph.increment_version(out)

    return kernel


def backward_kernel(operator: Operator) -> Callable[..., list[torch.Tensor]]:
    """Natively for x and the real parameters, by the reference for bit-widths."""
    native = getattr(_core, f"{operator.name}_backward")
    fast = frozenset(_core.descriptions[operator.name]["differentiable"])
    slow = backward_by_partials(operator)

    def kernel(
        gradient: torch.Tensor, *inputs: Any, wanted: list[str], **attributes: Any
    ) -> list[torch.Tensor]:
        natively = [name for name in wanted if name in fast]
        rest = [name for name in wanted if name not in fast]
        found = {}
        if natively:
            found = _native_gradients(native, operator, gradient, inputs, natively, attributes)
        if rest:
            found |= zip(rest, slow(gradient, *inputs, wanted=rest, **attributes), strict=True)
        return [found[name] for name in wanted]

    return kernel


def _native_gradients(
    native: Callable[..., list[Array]],
    operator: Operator,
    gradient: torch.Tensor,
    inputs: tuple[Any, ...],
    wanted: list[str],
    attributes: dict[str, Any],
) -> dict[str, torch.Tensor]:
    try:
        arrays = [_view(value) for value in (gradient, *inputs)]
    except TypeError:
        check_backward(operator, gradient, inputs, wanted, attributes)
        raise
    # The gradient of x goes into a tensor of PyTorch's, whose strides are known when tracing.
    x_name = operator.inputs[0].name
    x_gradient = torch.empty_like(inputs[0]) if x_name in wanted else None
    found = _run(
        native, gradient.numel(), *arrays, wanted=wanted, out=_view(x_gradient), **attributes
    )
    return {
        name: x_gradient if x_gradient is not None and name == x_name else _tensor(array)
        for name, array in zip(wanted, found, strict=True)
    }


def _view(value: torch.Tensor | None) -> Array | None:
    """The tensor's memory as an array; NumPy has no bfloat16 of its own."""
    if value is None:
        return None
    if value.requires_grad:
        value = value.detach()
    if value.dtype == torch.bfloat16:
        array: Array = value.view(torch.int16).numpy().view(_BFLOAT16)
    else:
        array = value.numpy()
    return array


def _tensor(array: Array) -> torch.Tensor:
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _run(native: Callable[..., Any], size: int, *arguments: Any, **keywords: Any) -> Any:
    """The kernel on no more threads than PyTorch may use in this thread."""
    if size < _SHARED:
        return native(*arguments, **keywords)
    previous = _core.limit_threads(torch.get_num_threads())
    try:
        return native(*arguments, **keywords)
    finally:
        _core.limit_threads(previous)
