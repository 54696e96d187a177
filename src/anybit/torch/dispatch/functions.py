# SPDX-License-Identifier: Apache-2.0
"""The operators as functions of tensors and numbers, with the signatures of the NumPy ones."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from anybit.ops import Operator
from anybit.torch.checks import check_out
from anybit.torch.dispatch.autograd import (
    differentiable_call,
    refuse_gradients,
    refuse_tangents,
)
from anybit.torch.dispatch.direct import direct_call
from anybit.torch.dispatch.library import define, define_out
from anybit.torch.dispatch.parameters import NUMBERS, apart, as_tensors


def function_of(operator: Operator) -> Callable[..., Any]:
    """The public function: numbers, lists and arrays become tensors on x's device."""
    overload, backward = define(operator)
    writing = define_out(operator)
    differentiable, carry_back = (
        differentiable_call(operator, overload, backward) if backward else (None, None)
    )
    direct = direct_call(operator, carry_back)
    defaults = {item.name: item.default for item in operator.attributes}
    kinds = {name: type(default) for name, default in defaults.items()}
    reads = {item.name: item.read for item in operator.attributes}
    count = len(operator.inputs)

    def read(keywords: dict[str, Any]) -> dict[str, Any]:
        for name, value in keywords.items():
            if type(value) is not kinds[name]:
                return {name: reads[name](value) for name, value in keywords.items()}
        return keywords

    @functools.wraps(operator.function)
    def function(*arguments: Any, out: torch.Tensor | None = None, **keywords: Any) -> Any:
        if len(arguments) != count or (keywords and not keywords.keys() <= defaults.keys()):
            arguments, keywords = _sorted(operator, arguments, keywords)
        x = arguments[0]
        attributes = keywords and read(keywords)
        if out is None and not is_compiling():
            result = direct(arguments, attributes)
            if result is not None:
                return result
        _check_tensor(x, operator.inputs[0].name, operator)
        _, *parameters = as_tensors(operator, arguments)
        if out is not None:
            _check_tensor(out, "out", operator)
        if differentiable is not None:
            refuse_tangents(operator, (x, *parameters))
        hidden = differentiable is not None and out is None and _inside_functional_gradient()
        if not hidden and not _needs_gradient(x, *parameters, out) and not _is_lazy(out):
            if out is None:
                return overload(x, *parameters, **attributes)
            writing(x, *parameters, out=out, **attributes)
            return out
        refuse_gradients(operator, parameters)
        # Compilers and torch.export know the derivatives of the operators themselves.
        if differentiable is not None and not is_compiling():
            inputs = [
                given if type(given) in NUMBERS else tensor
                for given, tensor in zip(arguments, (x, *parameters), strict=True)
            ]
            call, tensors = apart(inputs, attributes)
            result = differentiable(call, *tensors)
        else:
            result = overload(x, *parameters, **attributes)
        return result if out is None else _copied(operator, result, x, out, attributes)

    return function


def _sorted(
    operator: Operator, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All inputs, in their order, and the attributes."""
    rest = dict(keywords)
    given = list(arguments)
    for declared in operator.inputs[len(arguments) :]:
        if declared.name in rest:
            given.append(rest.pop(declared.name))
        elif declared.optional:
            given.append(None)
    known = {item.name for item in operator.attributes}
    if len(given) != len(operator.inputs) or not rest.keys() <= known:
        # Raises what Python raises for missing, unknown and repeated arguments.
        inspect.signature(operator.function).bind(*arguments, **keywords)
    return tuple(given), rest


def _needs_gradient(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )


def _is_lazy(out: torch.Tensor | None) -> bool:
    """Whether memory holds other numbers than `out` shows, which no kernel writes to."""
    # Compilers cannot follow the question.
    if out is None or is_compiling():
        return False
    return bool(out.is_neg() or out.is_conj())


def _inside_functional_gradient() -> bool:
    """Whether `torch.func` differentiates: vmap hides of what is batched that it does."""
    # Compilers, which know all tensors, cannot follow the question.
    if is_compiling() or not torch._C._are_functorch_transforms_active():
        return False
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Grad for level in levels)


def _copied(
    operator: Operator,
    result: torch.Tensor,
    x: torch.Tensor,
    out: torch.Tensor,
    attributes: dict[str, Any],
) -> torch.Tensor:
    """`out`, through which gradients go as through the result."""
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
            f"anybit.{operator.name} takes other arrays"
        )
    if value.is_nested:
        raise TypeError(f"{name} must not be nested; call {operator.name} on {name}.values()")
