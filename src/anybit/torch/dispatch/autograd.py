# SPDX-License-Identifier: Apache-2.0
"""Derivatives of the operators: registered ones, and those of eager calls.

Operators in the dispatcher have registered derivatives, which compilers and `torch.export` trace.
`torch.func` cannot differentiate those, so that eager calls with gradients go through
`torch.autograd.Function`. Both compute the same.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from anybit.ops import Operator
from anybit.torch.dispatch.parameters import convert_to_tensors, join_call

TensorFunction = Callable[..., Any]


def refuse_gradients(operator: Operator, parameters: Sequence[Any]) -> None:
    """Raise ValueError for a parameter that requires a gradient and does not have one.

    Results of operators without gradients are integers, which PyTorch never differentiates.
    """
    if not operator.differentiable:
        return
    for declared, value in zip(operator.inputs[1:], parameters, strict=False):
        if (
            value is not None
            and declared.name not in operator.differentiable
            and value.requires_grad
        ):
            raise ValueError(
                f"{declared.name} of {operator.name} requires a gradient, which does not exist; "
                f"pass {declared.name}.detach()"
            )


def refuse_tangents(operator: Operator, inputs: Sequence[Any]) -> None:
    """Raise NotImplementedError in forward mode, where PyTorch uses 0 for missing derivatives."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    for value in inputs:
        if (
            value is not None
            and value.is_floating_point()
            and forward_ad.unpack_dual(value).tangent is not None
        ):
            raise NotImplementedError(
                f"anybit::{operator.name} has no derivatives in forward mode; "
                "use torch.func.vjp or jacrev"
            )


def register(operator: Operator, overload: Any, backward: Any, library: Any) -> None:
    """Register the derivatives of an operator and of its backward operator."""

    def remember(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        del output
        refuse_gradients(operator, inputs[1:])
        ctx.save_for_backward(*inputs)
        ctx.attributes = keyword_only_inputs or {}

    def differentiate(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _compute_gradients(operator, backward, ctx, gradient)

    def refuse(ctx: Any, *gradients: Any) -> NoReturn:
        del ctx, gradients
        _refuse_second(operator)

    torch.library.register_autograd(
        overload.name(), differentiate, setup_context=remember, lib=library
    )
    torch.library.register_autograd(backward.name(), refuse, lib=library)


def make_differentiable_call(
    operator: Operator, overload: Any, backward: Any
) -> tuple[TensorFunction, TensorFunction]:
    """Return the operator for eager calls with gradients, and its derivative.

    The operator is a function of (call, *tensors), see `split_call`. The derivative is a function
    of (ctx, gradient), where `ctx.call` is the call, and its tensors are saved in ctx.
    """
    second = _make_backward_function(operator, backward)
    names = [declared.name for declared in operator.inputs]

    def differentiate(gradient: torch.Tensor, *inputs: Any, **keywords: Any) -> Any:
        if torch.is_grad_enabled():
            return second.apply(keywords, gradient, *inputs)
        return backward(gradient, *inputs, **keywords)

    def carry_back(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        attributes, _, places = ctx.call
        inputs = convert_to_tensors(operator, join_call(ctx.call, ctx.saved_tensors))
        needs = ctx.needs_input_grad[1:]
        requested = [names[place] for place, need in zip(places, needs, strict=True) if need]
        gradients = iter(differentiate(gradient, *inputs, requested=requested, **attributes))
        return None, *[next(gradients) if need else None for need in needs]

    class Forward(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(call: Any, *tensors: Any) -> Any:
            return overload(*convert_to_tensors(operator, join_call(call, tensors)), **call[0])

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            del output
            ctx.call, *tensors = inputs
            ctx.save_for_backward(*tensors)

        backward = staticmethod(carry_back)

    # PyTorch computes the signature in each call unless it is stored.
    Forward.forward.__signature__ = inspect.signature(Forward.forward)  # type: ignore[attr-defined]
    return Forward.apply, carry_back


def _make_backward_function(operator: Operator, backward: Any) -> type[torch.autograd.Function]:
    class Backward(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(keywords: dict[str, Any], *inputs: Any) -> Any:
            return tuple(backward(*inputs, **keywords))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> NoReturn:
            _refuse_second(operator)

    return Backward


def _compute_gradients(
    operator: Operator, backward: TensorFunction, ctx: Any, gradient: torch.Tensor
) -> tuple[Any, ...]:
    """Return the gradients of all inputs, None for those that are not needed."""
    names = [declared.name for declared in operator.inputs]
    requested = [name for name, need in zip(names, ctx.needs_input_grad, strict=False) if need]
    gradients = backward(gradient, *ctx.saved_tensors, requested=requested, **ctx.attributes)
    by_name = dict(zip(requested, gradients, strict=True))
    return tuple(by_name.get(name) for name in names)


def _refuse_second(operator: Operator) -> NoReturn:
    raise NotImplementedError(
        f"anybit::{operator.name} has no second derivatives: the first ones are those of a "
        "straight-through estimator; detach them before differentiating again"
    )
