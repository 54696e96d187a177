# SPDX-License-Identifier: Apache-2.0
"""Programs of XLA that round quotients and sums of float32 once, with integers of 64 bits.

On GPUs XLA divides float32 numbers with errors in the last place. The quotient of float32 numbers
in float64, rounded to float32, is the one that IEEE 754 asks for: 53 bits are more than twice 24
and two, so that the first rounding makes no tie and hides none. Sums are those of the kernels for
CPUs, but for the order of float64's additions.
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
# Functions within a program, most of them the array library's own.
_CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call")


def rounded_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of arrays, whose result is a tree of arrays.

    It has no loops, and no rules of derivatives of its own, as references have none.
    """

    def run(*arrays: Any) -> Any:
        with enable_x64(True):
            traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arrays)
            found = _evaluated(traced.jaxpr, traced.consts, arrays)
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return run


def _evaluated(program: Any, constants: Any, arrays: Any) -> list[Any]:
    """What the program gives, with other quotients and sums."""
    known = dict(zip([*program.constvars, *program.invars], [*constants, *arrays], strict=True))

    def value(each: Any) -> Any:
        return each.val if isinstance(each, jax.extend.core.Literal) else known[each]

    for equation in program.eqns:
        found = _applied(equation, list(map(value, equation.invars)))
        known.update(zip(equation.outvars, found, strict=True))
    return list(map(value, program.outvars))


def _applied(equation: Any, values: list[Any]) -> list[Any]:
    primitive = equation.primitive
    if primitive.name in _CALLS:
        inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
        return _evaluated(inner.jaxpr, inner.consts, values)
    wide = primitive in _WIDENED and equation.outvars[0].aval.dtype == jnp.float32
    if wide:
        values = [jax.lax.convert_element_type(each, jnp.float64) for each in values]
    found = primitive.bind(*values, **equation.params)
    if primitive.multiple_results:
        return list(found)
    return [_narrowed(found) if wide else found]


def _narrowed(y: Any) -> Any:
    """y in float32.

    Compilers know that conversions around a division could be left out if it were one of float32,
    and take the liberty to leave out those to float32 and back again. Not so beside other work.
    """
    return _unchanged(jax.lax.convert_element_type(_unchanged(y), jnp.float32))


def _unchanged(y: Any) -> Any:
    return jnp.where(jnp.isfinite(y), y - (y - y), y)
