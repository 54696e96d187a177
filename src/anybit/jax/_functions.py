# SPDX-License-Identifier: Apache-2.0
"""The operators as functions of JAX arrays, with the signatures of the NumPy ones."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from anybit.jax import _arguments, _native, _varying
from anybit.ops import Operator
from anybit.ops._arrays import cast, compute_type
from anybit.ops._gradient import carried_back


def function_of(operator: Operator) -> Callable[..., Any]:
    """The public function."""
    signature = inspect.signature(operator.function)

    @functools.wraps(operator.function)
    def function(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given = bound.arguments
        if given.pop("out") is not None:
            raise TypeError("out must be None: JAX arrays cannot be written to")
        inputs = [given.pop(declared.name) for declared in operator.inputs]
        attributes = _arguments.static(operator, given)
        arrays = _varying.all_alike(_arguments.arrays(operator, inputs))
        return _differentiable(operator, attributes)(*arrays)

    return function


@functools.cache
def _differentiable(operator: Operator, attributes: _arguments.Attributes) -> Callable[..., Any]:
    """The operator with its gradient, for given attributes."""
    given = dict(attributes)

    @jax.custom_vjp
    def evaluate(*inputs: Any) -> Any:
        return _evaluate(operator, given, inputs)

    def forward(*inputs: Any) -> tuple[Any, Any]:
        _refuse_others(operator, [each.perturbed for each in inputs])
        values = tuple(each.value for each in inputs)
        return evaluate(*values), values

    def backward(inputs: tuple[Any, ...], gradient: Any) -> tuple[Any, ...]:
        return _carried_back(operator, given, inputs, gradient)

    evaluate.defvjp(forward, backward, symbolic_zeros=True)
    return jax.jit(evaluate)


def _evaluate(operator: Operator, attributes: Mapping[str, Any], inputs: tuple[Any, ...]) -> Any:
    """The kernel on CPUs and the reference elsewhere.

    Both are traced on every platform, so that both refuse what they do not take.
    """

    def traced(*inputs: Any) -> Any:
        result = operator.reference(*_unfolded(operator, inputs), **attributes)
        return jax.lax.convert_element_type(result, result.dtype)  # no weak type

    native = functools.partial(_native.call, operator, attributes)
    return jax.lax.platform_dependent(*inputs, cpu=native, default=traced)


def _unfolded(operator: Operator, inputs: tuple[Any, ...]) -> list[Any]:
    """Inputs for the reference, with parameters that XLA does not take for repeated ones.

    It would replace x / scale by x * (1 / scale), which rounds twice, if it saw that there is one
    scale for many elements.
    """
    x, *parameters = inputs
    if operator.result_dtype is not None:  # its parameters broadcast by a rule of their own
        return list(inputs)
    return [
        x,
        *(
            value if declared.domain.integer else _elementwise(cast(value, compute_type(x)), x)
            for declared, value in zip(operator.inputs[1:], parameters, strict=False)
        ),
    ]


def _elementwise(value: Any, x: Any) -> Any:
    return jnp.where(x == x, value, jax.lax.optimization_barrier(jax.lax.stop_gradient(value)))


def _refuse_others(operator: Operator, perturbed: list[bool]) -> None:
    if not operator.differentiable:
        return
    for declared, moves in zip(operator.inputs, perturbed, strict=False):
        if moves and declared.name not in operator.differentiable:
            raise TypeError(
                f"{operator.name} has no derivative with respect to {declared.name}; "
                f"pass it through jax.lax.stop_gradient, or differentiate by "
                f"{', '.join(operator.differentiable)}"
            )


def _carried_back(
    operator: Operator, attributes: Mapping[str, Any], inputs: tuple[Any, ...], gradient: Any
) -> tuple[Any, ...]:
    names = [declared.name for declared in operator.inputs]
    by_name = dict(zip(names, inputs, strict=False))
    wanted = [
        name
        for name, value in by_name.items()
        if name in operator.differentiable and jnp.isdtype(value.dtype, "real floating")
    ]
    if isinstance(gradient, jax.custom_derivatives.SymbolicZero) or not wanted:
        return tuple(None for _ in inputs)
    partials = operator.partials(*_unfolded(operator, inputs), **attributes)
    found = carried_back(gradient, by_name, partials, wanted)
    return tuple(found.get(name) for name in by_name)
