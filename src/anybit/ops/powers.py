# SPDX-License-Identifier: Apache-2.0
"""Exact powers of two and exact exponents, without frexp and ldexp, which the array API lacks.

Math libraries differ in the last bit of `2.0 ** n` and `log2`; these functions do not. A namespace
of this package may define them by the bits of the numbers; tests compare both.
"""

import math
from typing import Any

from anybit.ops.arrays import get_device, get_integer_dtype, get_namespace

# Below and above every exponent of float64, subnormals included, with room for half steps.
_LIMIT = 1100
_POWERS = [math.ldexp(1.0, n) if n < 1024 else math.inf for n in range(-_LIMIT, _LIMIT + 1)]


def power_of_two(exponent: Any, dtype: Any) -> Any:
    """Return 2^exponent for integer exponents: inf above the range of the dtype, 0 below."""
    xp = get_namespace(exponent)
    if hasattr(xp, "power_of_two"):
        return xp.power_of_two(exponent, dtype)
    table = xp.asarray(_POWERS, dtype=dtype, device=get_device(exponent))
    return xp.asarray(table[xp.clip(exponent, -_LIMIT, _LIMIT) + _LIMIT])


def floor_log2(y: Any) -> Any:
    """Return the integer E with 2^E <= |y| < 2^(E+1); undefined for 0, NaN and inf."""
    xp = get_namespace(y)
    if hasattr(xp, "floor_log2"):
        return xp.floor_log2(y)
    ordinary = xp.isfinite(y) & (y != 0)
    magnitude = xp.where(ordinary, xp.abs(y), xp.ones_like(y))
    # The library's log2 is a good estimate; a comparison with exact powers corrects it.
    guess = xp.astype(xp.floor(xp.log2(magnitude)), get_integer_dtype(xp))
    guess = xp.where(power_of_two(guess, y.dtype) > magnitude, guess - 1, guess)
    guess = xp.where(power_of_two(guess + 1, y.dtype) <= magnitude, guess + 1, guess)
    return xp.where(y == 0, xp.full_like(guess, -_LIMIT), guess)


def times_power_of_two(y: Any, exponent: Any) -> Any:
    """Return y * 2^exponent, rounded once, by two factors: 2^exponent may be out of range."""
    xp = get_namespace(y)
    if hasattr(xp, "times_power_of_two"):
        return xp.times_power_of_two(y, exponent)
    widest = 127 if y.dtype == xp.float32 else 1023
    half = xp.clip(exponent // 2, 1 - widest, widest)
    rest = xp.clip(exponent - half, 1 - widest, widest)
    return (y * power_of_two(half, y.dtype)) * power_of_two(rest, y.dtype)
