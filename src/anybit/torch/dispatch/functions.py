# SPDX-License-Identifier: Apache-2.0
"""The operators as functions of tensors and numbers, with the NumPy signatures."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from anybit.ops import Operator
from anybit.torch.checks import check_out
from anybit.torch.dispatch.autograd import (
    make_differentiable_call,
    refuse_gradients,
    refuse_tangents,
)
from anybit.torch.dispatch.direct import make_direct_call
from anybit.torch.dispatch.library import define, define_out
from anybit.torch.dispatch.parameters import NUMBERS, convert_to_tensors, split_call


def make_function(operator: Operator) -> Callable[..., Any]:
    """Return the public function, which converts numbers, lists and arrays to tensors."""
    overload, backward = define(operator)
    writing = define_out(operator)
    differentiable, carry_back = (
        make_differentiable_call(operator, overload, backward) if backward else (None, None)
    )
    direct = make_direct_call(operator, carry_back)
    names = {attribute.name for attribute in operator.attributes}
    read = _make_attribute_reader(operator)
    count = len(operator.inputs)

    @functools.wraps(operator.function)
    def function(*arguments: Any, out: torch.Tensor | None = None, **keywords: Any) -> Any:
        if len(arguments) != count or (keywords and not keywords.keys() <= names):
            arguments, keywords = _bind(operator, arguments, keywords)
        x = arguments[0]
        attributes = keywords and read(keywords)
        if out is None and not is_compiling():
            result = direct(arguments, attributes)
            if result is not None:
                return result
        _check_tensor(x, operator.inputs[0].name, operator)
        _, *parameters = convert_to_tensors(operator, arguments)
        if out is not None:
            _check_tensor(out, "out", operator)
        if differentiable is not None:
            refuse_tangents(operator, (x, *parameters))
        hidden = differentiable is not None and out is None and _is_inside_functional_gradient()
        if not hidden and not _needs_gradient(x, *parameters, out) and not _is_lazy(out):
            if out is None:
                return overload(x, *parameters, **attributes)
            writing(x, *parameters, out=out, **attributes)
            return out
        refuse_gradients(operator, parameters)
        # Compilers and torch.export use the registered derivatives.
        if differentiable is not None and not is_compiling():
            inputs = [
                argument if type(argument) in NUMBERS else tensor
                for argument, tensor in zip(arguments, (x, *parameters), strict=True)
            ]
            call, tensors = split_call(inputs, attributes)
            result = differentiable(call, *tensors)
        else:
            result = overload(x, *parameters, **attributes)
        return result if out is None else _copy_to(operator, result, x, out, attributes)

    return function


def _make_attribute_reader(operator: Operator) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that converts attributes, unless all have the type of their default."""
    kinds = {attribute.name: type(attribute.default) for attribute in operator.attributes}
    readers = {attribute.name: attribute.parse for attribute in operator.attributes}

    def read(keywords: dict[str, Any]) -> dict[str, Any]:
        for name, value in keywords.items():
            if type(value) is not kinds[name]:
                return {name: readers[name](value) for name, value in keywords.items()}
        return keywords

    return read


def _bind(
    operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return all inputs in order, and the attributes; TypeError as Python raises it."""
    rest = dict(keywords)
    inputs = list(arguments)
    for declared in operator.inputs[len(arguments) :]:
        if declared.name in rest:
            inputs.append(rest.pop(declared.name))
        elif declared.optional:
            inputs.append(None)
    names = {item.name for item in operator.attributes}
    if len(inputs) != len(operator.inputs) or not rest.keys() <= names:
        # This raises TypeError for missing, unknown and repeated arguments.
        inspect.signature(operator.function).bind(*arguments, **keywords)
    return tuple(inputs), rest


def _needs_gradient(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )


def _is_lazy(out: torch.Tensor | None) -> bool:
    """Return whether `out` is a lazy negation or conjugate, which kernels cannot write to."""
    # Compilers cannot trace these calls.
    if out is None or is_compiling():
        return False
    return bool(out.is_neg() or out.is_conj())


def _is_inside_functional_gradient() -> bool:
    """Return whether `torch.func` differentiates, which vmap hides for batched tensors."""
    # Compilers cannot trace these calls, and handle all tensors anyway.
    if is_compiling() or not torch._C._are_functorch_transforms_active():
        return False
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Grad for level in levels)


def _copy_to(
    operator: Operator,
    result: torch.Tensor,
    x: torch.Tensor,
    out: torch.Tensor,
    attributes: dict[str, Any],
) -> torch.Tensor:
    """Copy the result to `out`, so that gradients pass through `out`."""
    check_out(operator, x, out, attributes)
    return out.copy_(result)


def _check_tensor(value: Any, name: str, operator: Operator) -> None:
    if isinstance(value, torch.fx.Proxy):
        raise TypeError(
            f"torch.fx cannot trace {operator.name}: use torch.export, and "
            "anybit.torch.fold_batchnorm to fuse batch normalization"
        )
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}; "
            f"use anybit.{operator.name} for other arrays"
        )
    if value.is_nested:
        raise TypeError(f"{name} must not be nested; call {operator.name} on {name}.values()")
