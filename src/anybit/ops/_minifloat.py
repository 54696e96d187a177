# SPDX-License-Identifier: Apache-2.0
"""The grid of a minifloat: the spacing of its values and the largest of them."""

from typing import Any

from anybit.ops._arrays import namespace
from anybit.ops._powers import floor_log2, power_of_two, times_power_of_two
from anybit.ops._rounding import round_to_integer

# More mantissa bits than any compute type has: a finer grid changes no value.
_PLENTY = 60


def round_to_grid(y: Any, mantissa_bitwidth: Any, exponent_bias: Any, mode: str) -> Any:
    """y rounded to the values with that many mantissa bits, spaced evenly below 2^(1 - bias).

    Infinities give NaN. The range is not limited.
    """
    xp = namespace(y)
    exponent = floor_log2(y)
    step = xp.maximum(
        exponent - xp.clip(mantissa_bitwidth, 0, _PLENTY),
        # In the subnormal range the spacing is that of the smallest normal number.
        xp.maximum(1 - exponent_bias - mantissa_bitwidth, exponent - _PLENTY),
    )
    steps = times_power_of_two(y, -step)
    # Far below the grid the product could underflow to 0, which UP and CEIL must not see.
    quarter = xp.where(y < 0, xp.full_like(y, -0.25), xp.full_like(y, 0.25))
    steps = xp.where((y != 0) & (exponent < step - 2), quarter, steps)
    rounded = times_power_of_two(round_to_integer(steps, mode), step)
    return xp.where(xp.isfinite(y), rounded, xp.full_like(y, float("nan")))


def largest_value(
    exponent_bitwidth: Any, mantissa_bitwidth: Any, exponent_bias: Any, dtype: Any
) -> Any:
    """(2 - 2^-m) * 2^(2^e - 1 - bias): the largest value if no code is reserved."""
    xp = namespace(exponent_bitwidth)
    codes = xp.bitwise_left_shift(
        xp.ones_like(exponent_bitwidth), xp.clip(exponent_bitwidth, 0, 62)
    )
    significand = 2 - power_of_two(-mantissa_bitwidth, dtype)
    return times_power_of_two(significand, codes - 1 - exponent_bias)
