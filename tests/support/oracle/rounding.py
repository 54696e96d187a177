# SPDX-License-Identifier: Apache-2.0
"""The seven ways to round to an integer, on exact ratios."""

from math import copysign, isfinite

# Per mode: does a magnitude `whole + rest / unit` (0 <= rest < unit) go away from zero?
MODES = {
    "ROUND": lambda whole, rest, unit, negative: 2 * rest + whole % 2 > unit,
    "CEIL": lambda whole, rest, unit, negative: rest > 0 and not negative,
    "FLOOR": lambda whole, rest, unit, negative: rest > 0 and negative,
    "DOWN": lambda whole, rest, unit, negative: False,
    "UP": lambda whole, rest, unit, negative: rest > 0,
    "HALF_UP": lambda whole, rest, unit, negative: 2 * rest >= unit,
    "HALF_DOWN": lambda whole, rest, unit, negative: 2 * rest > unit,
}


def resolve_mode(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"rounding_mode must be a string, got {name!r}")
    mode = name.upper()
    mode = "ROUND" if mode == "HALF_EVEN" else mode
    if mode not in MODES:
        hint = "; use DOWN" if mode == "ROUND_TO_ZERO" else ""
        raise ValueError(f"rounding_mode must be one of {', '.join(MODES)}, got {name!r}{hint}")
    return mode


def round_ratio(numerator: int, denominator: int, mode: str) -> int:
    """numerator / denominator (denominator > 0) as an integer."""
    whole, rest = divmod(abs(numerator), denominator)
    away = MODES[mode](whole, rest, denominator, numerator < 0)
    magnitude = whole + 1 if away else whole
    return -magnitude if numerator < 0 else magnitude


def round_value(value: float, mode: str) -> float:
    """NaN and infinities pass; a zero result carries the operand's sign."""
    if not isfinite(value):
        return value
    return copysign(float(round_ratio(*value.as_integer_ratio(), mode)), value)
