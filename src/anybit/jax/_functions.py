# SPDX-License-Identifier: Apache-2.0
"""The operators as functions of JAX arrays, with the signatures of the NumPy ones."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from anybit.jax import _arguments, _programs, _varying
from anybit.ops import Operator


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
        return _programs.evaluate(operator, given, inputs)

    def forward(*inputs: Any) -> tuple[Any, Any]:
        wanted = _wanted(operator, [each.perturbed for each in inputs])
        values = tuple(each.value for each in inputs)
        return evaluate(*values), (values, _Names(tuple(wanted)))

    def backward(kept: tuple[Any, Any], gradient: Any) -> tuple[Any, ...]:
        inputs, wanted = kept
        if isinstance(gradient, jax.custom_derivatives.SymbolicZero) or not wanted.names:
            return (None,) * len(inputs)
        found = _programs.gradients(operator, given, wanted.names, gradient, inputs)
        return tuple(found.get(declared.name) for declared in operator.inputs[: len(inputs)])

    evaluate.defvjp(forward, backward, symbolic_zeros=True)
    compiled: Callable[..., Any] = jax.jit(evaluate)
    return compiled


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Names:
    """Names that travel from the forward to the backward pass as a part of the program."""

    names: tuple[str, ...]


def _wanted(operator: Operator, moving: list[bool]) -> list[str]:
    """The inputs by which the result is differentiated. TypeError for one that has no derivative.

    A result of integers has none at all, which is not an error: no cotangent goes further back.
    """
    names = [item.name for item, moves in zip(operator.inputs, moving, strict=False) if moves]
    if not operator.differentiable:
        return []
    for name in names:
        if name not in operator.differentiable:
            raise TypeError(
                f"{operator.name} has no derivative with respect to {name}, only to "
                f"{', '.join(operator.differentiable)}; use jax.lax.stop_gradient({name})"
            )
    return names
