# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call as JAX wants them: arrays, and attributes that are part of the program.

Whatever is known when a program is traced is checked here: dtypes always, values of numbers, NumPy
arrays and concrete JAX arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anybit.ops import Input, Operator
from anybit.ops.arrays import as_integers, check_x, checked, is_foreign

Attributes = tuple[tuple[str, bool | int | str], ...]

# What both the kernels and XLA have.
_READABLE = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_READABLE |= {"bool", "float16", "bfloat16", "float32", "float64"}


def arrays(operator: Operator, given: list[Any]) -> list[jax.Array]:
    """x and its parameters; parameters that are left out at the end are left out."""
    first = operator.inputs[0]
    if hasattr(given[0], "dtype"):  # JAX would narrow it first
        check_x(given[0], first.domain, first.name)
    x = jnp.asarray(given[0])
    check_x(x, first.domain, first.name)
    while given[-1] is None and operator.inputs[len(given) - 1].optional:
        given = given[:-1]
    parameters = zip(operator.inputs[1:], given[1:], strict=False)
    return [x, *(_parameter(value, declared, x) for declared, value in parameters)]


def _parameter(value: Any, declared: Input, x: jax.Array) -> jax.Array:
    if value is None:
        raise TypeError(f"{declared.name} is missing")
    if isinstance(value, np.ndarray | np.generic):
        value = _readable(value, declared)
    if not is_foreign(value):
        return _from_host(checked(value, declared.domain, declared.name), declared, x)
    # Computing with a concrete array while a program is traced would be traced too.
    known = not isinstance(value, jax.core.Tracer) and value.is_fully_addressable
    seen = _readable(np.asarray(value) if known else value, declared)
    checked(seen, declared.domain, declared.name)
    return _readable(value, declared)


def _readable(values: Any, declared: Input) -> Any:
    """Numbers of few bits, such as float8 and int4, in a type that all have; exact."""
    if declared.domain.dtypes or values.dtype.name in _READABLE:
        return values
    if jnp.isdtype(values.dtype, "integral"):
        return values.astype(np.int32)
    return values.astype(np.float32) if jnp.isdtype(values.dtype, "real floating") else values


def _from_host(values: np.ndarray, declared: Input, x: jax.Array) -> jax.Array:
    """An array for values that NumPy has: rounded to the compute type of x, or integers."""
    if not declared.domain.integer:
        wide = x.dtype == np.float64
        with np.errstate(over="ignore"):
            return jnp.asarray(values.astype(np.float64 if wide else np.float32))
    whole = as_integers(values)
    # Large integers that are powers of two or nearly so need no 64 bits.
    for narrow in (np.int32, np.float32):
        found = whole.astype(narrow)
        if (found.astype(np.longdouble) == whole).all():
            return jnp.asarray(found)
    if jax.config.jax_enable_x64:
        return jnp.asarray(whole)
    wrong = whole[whole != whole.astype(np.int32)]
    raise ValueError(
        f"{declared.name} must fit 32 bits unless jax_enable_x64 is set, got {wrong[0]}"
    )


def static(operator: Operator, given: dict[str, Any]) -> Attributes:
    """The attributes by name, hashable. TypeError for what they cannot be."""
    return tuple((each.name, each.read(given[each.name])) for each in operator.attributes)
