# SPDX-License-Identifier: Apache-2.0
"""Operators as functions of JAX arrays, with the NumPy signatures.

Values that exist when a program is traced are checked here: dtypes always, values of numbers, NumPy
arrays and concrete JAX arrays.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anybit.jax import _programs
from anybit.ops import Input, Operator
from anybit.ops.arrays import check_x, convert_to_integers, convert_values, is_foreign

FrozenAttributes = tuple[tuple[str, bool | int | str], ...]

# Dtypes that both the kernels and XLA support.
_READABLE = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_READABLE |= {"bool", "float16", "bfloat16", "float32", "float64"}


def make_function(operator: Operator) -> Callable[..., Any]:
    """Return the public function of an operator."""
    signature = inspect.signature(operator.function)

    @functools.wraps(operator.function)
    def function(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        values = bound.arguments
        if values.pop("out") is not None:
            raise TypeError("out must be None: JAX arrays cannot be written to")
        inputs = [values.pop(declared.name) for declared in operator.inputs]
        attributes = _freeze_attributes(operator, values)
        arrays = _vary_alike(_convert_to_arrays(operator, inputs))
        return _make_differentiable(operator, attributes)(*arrays)

    return function


@functools.cache
def _make_differentiable(operator: Operator, attributes: FrozenAttributes) -> Callable[..., Any]:
    """Return the operator with its gradient, for fixed attributes."""
    keywords = dict(attributes)

    @jax.custom_vjp
    def evaluate(*inputs: Any) -> Any:
        return _programs.evaluate(operator, keywords, inputs)

    def forward(*inputs: Any) -> tuple[Any, Any]:
        names = _get_perturbed_names(operator, [primal.perturbed for primal in inputs])
        values = tuple(primal.value for primal in inputs)
        return evaluate(*values), (values, _Names(tuple(names)))

    def backward(residuals: tuple[Any, Any], gradient: Any) -> tuple[Any, ...]:
        inputs, targets = residuals
        if isinstance(gradient, jax.custom_derivatives.SymbolicZero) or not targets.names:
            return (None,) * len(inputs)
        gradients = _programs.compute_gradients(operator, keywords, targets.names, gradient, inputs)
        return tuple(gradients.get(declared.name) for declared in operator.inputs[: len(inputs)])

    evaluate.defvjp(forward, backward, symbolic_zeros=True)
    compiled: Callable[..., Any] = jax.jit(evaluate)
    return compiled


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Names:
    """Names of inputs, as a static residual between the forward and the backward pass."""

    names: tuple[str, ...]


def _get_perturbed_names(operator: Operator, perturbed: list[bool]) -> list[str]:
    """Return the names of the inputs with a tangent; TypeError for one without a derivative.

    Integer results have no derivatives, which is not an error: their cotangents are dropped.
    """
    pairs = zip(operator.inputs, perturbed, strict=False)
    names = [declared.name for declared, is_perturbed in pairs if is_perturbed]
    if not operator.differentiable:
        return []
    for name in names:
        if name not in operator.differentiable:
            raise TypeError(
                f"{operator.name} has no derivative with respect to {name}, only to "
                f"{', '.join(operator.differentiable)}; use jax.lax.stop_gradient({name})"
            )
    return names


def _convert_to_arrays(operator: Operator, values: list[Any]) -> list[jax.Array]:
    """Convert x and its parameters, without optional ones that are missing at the end."""
    first = operator.inputs[0]
    if hasattr(values[0], "dtype"):  # before JAX narrows it
        check_x(values[0], first.domain, first.name)
    x = jnp.asarray(values[0])
    check_x(x, first.domain, first.name)
    while values[-1] is None and operator.inputs[len(values) - 1].optional:
        values = values[:-1]
    parameters = zip(operator.inputs[1:], values[1:], strict=False)
    return [x, *(_convert_parameter(value, declared, x) for declared, value in parameters)]


def _convert_parameter(value: Any, declared: Input, x: jax.Array) -> jax.Array:
    if value is None:
        raise TypeError(f"{declared.name} is missing")
    if isinstance(value, np.ndarray | np.generic):
        value = _make_readable(value, declared)
    if not is_foreign(value):
        return _convert_from_host(
            convert_values(value, declared.domain, declared.name), declared, x
        )
    # NumPy, because computations with a concrete JAX array would become part of the program.
    is_concrete = not isinstance(value, jax.core.Tracer) and value.is_fully_addressable
    array = _make_readable(np.asarray(value) if is_concrete else value, declared)
    convert_values(array, declared.domain, declared.name)
    return _make_readable(value, declared)


def _make_readable(values: Any, declared: Input) -> Any:
    """Convert narrow types, such as float8 and int4, to a common type; exact."""
    if declared.domain.dtypes or values.dtype.name in _READABLE:
        return values
    if jnp.isdtype(values.dtype, "integral"):
        return values.astype(np.int32)
    return values.astype(np.float32) if jnp.isdtype(values.dtype, "real floating") else values


def _convert_from_host(values: np.ndarray, declared: Input, x: jax.Array) -> jax.Array:
    """Convert a NumPy array: round it to the compute type of x, or to integers."""
    if not declared.domain.integer:
        wide = x.dtype == np.float64
        with np.errstate(over="ignore"):
            return jnp.asarray(values.astype(np.float64 if wide else np.float32))
    whole = convert_to_integers(values)
    # Large integers with few significant bits are exact in 32 bits.
    for narrow in (np.int32, np.float32):
        converted = whole.astype(narrow)
        if (converted.astype(np.longdouble) == whole).all():
            return jnp.asarray(converted)
    if jax.config.jax_enable_x64:
        return jnp.asarray(whole)
    wrong = whole[whole != whole.astype(np.int32)]
    raise ValueError(
        f"{declared.name} must fit 32 bits unless jax_enable_x64 is set, got {wrong[0]}"
    )


def _freeze_attributes(operator: Operator, values: dict[str, Any]) -> FrozenAttributes:
    """Return the attributes as hashable pairs; TypeError for invalid types."""
    return tuple(
        (attribute.name, attribute.parse(values[attribute.name]))
        for attribute in operator.attributes
    )


def _get_varying_axes(x: Any) -> frozenset[str]:
    kind: Any = jax.typeof(x) if hasattr(jax, "typeof") else None
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def _vary_alike(arrays: list[Any]) -> list[Any]:
    """Make all arrays vary along the same axes of the mesh of `shard_map`.

    Custom calls require that. JAX has tracked these axes since 0.7; nothing is done in older
    versions. The cotangent of an array that did not vary is summed along those axes.
    """
    union = frozenset().union(*map(_get_varying_axes, arrays))
    return [_vary_along(x, tuple(sorted(union - _get_varying_axes(x)))) for x in arrays]


def _vary_along(x: Any, axes: tuple[str, ...]) -> Any:
    if not axes:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)
