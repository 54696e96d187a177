# SPDX-License-Identifier: Apache-2.0
"""XLA programs with a single rounding of float32 quotients and sums, and with 64-bit integers.

On GPUs XLA divides float32 numbers with errors in the last place. The float64 quotient of float32
numbers, rounded to float32, is correctly rounded: float64 has 53 bits, more than 2 * 24 + 2,
so that the first rounding neither creates nor hides a tie. Sums equal those of the CPU kernels,
except for the order of float64 additions.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

try:
    from jax import enable_x64
except ImportError:  # before JAX 0.8
    from jax.experimental import enable_x64

_WIDENED = (jax.lax.div_p, jax.lax.reduce_sum_p)
# Primitives that call a function, most of them functions of the array library.
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call")


def round_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of arrays that returns a tree of arrays.

    Loops and custom derivatives are not supported; references do not have any.
    """

    def run(*arrays: Any) -> Any:
        with enable_x64(True):
            traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arrays)
            results = _evaluate(traced.jaxpr, traced.consts, arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def _evaluate(program: Any, constants: Any, arrays: Any) -> list[Any]:
    """Evaluate a program with other quotients and sums."""
    values = dict(zip([*program.constvars, *program.invars], [*constants, *arrays], strict=True))

    def value_of(atom: Any) -> Any:
        return atom.val if isinstance(atom, jax.extend.core.Literal) else values[atom]

    for equation in program.eqns:
        results = _apply(equation, list(map(value_of, equation.invars)))
        values.update(zip(equation.outvars, results, strict=True))
    return list(map(value_of, program.outvars))


def _apply(equation: Any, values: list[Any]) -> list[Any]:
    primitive = equation.primitive
    if primitive.name in _CALLS:
        inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
        return _evaluate(inner.jaxpr, inner.consts, values)
    wide = primitive in _WIDENED and equation.outvars[0].aval.dtype == jnp.float32
    if wide:
        values = [jax.lax.convert_element_type(value, jnp.float64) for value in values]
    result = primitive.bind(*values, **equation.params)
    if primitive.multiple_results:
        return list(result)
    return [_narrow(result) if wide else result]


def _narrow(y: Any) -> Any:
    """Convert y to float32 in a way that compilers do not remove.

    They replace a float64 division between conversions by a float32 division. Operations between
    the division and the conversion prevent that.
    """
    return _identity(jax.lax.convert_element_type(_identity(y), jnp.float32))


def _identity(y: Any) -> Any:
    return jnp.where(jnp.isfinite(y), y - (y - y), y)
