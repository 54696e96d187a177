# SPDX-License-Identifier: Apache-2.0
"""The seven rounding modes. A zero result carries the operand's sign; NaN and infinities pass."""

from enum import StrEnum
from typing import Any

from anybit.ops.arrays import get_namespace


class RoundingMode(StrEnum):
    """Rounding of a value between two integers. Names are case-insensitive.

    `HALF_EVEN` is another name of `ROUND`.
    """

    ROUND = "ROUND"
    """To nearest, ties to even."""
    CEIL = "CEIL"
    """Toward +infinity."""
    FLOOR = "FLOOR"
    """Toward -infinity."""
    UP = "UP"
    """Away from zero."""
    DOWN = "DOWN"
    """Toward zero."""
    HALF_UP = "HALF_UP"
    """To nearest, ties away from zero."""
    HALF_DOWN = "HALF_DOWN"
    """To nearest, ties toward zero."""
    HALF_EVEN = "ROUND"

    @classmethod
    def parse(cls, name: str) -> "RoundingMode":
        """Return the mode of that name. ValueError if unknown, TypeError if not a string."""
        if not isinstance(name, str):
            raise TypeError(f"rounding_mode must be a string, got {name!r}")
        try:
            return cls[name.upper()]
        except KeyError:
            hint = "; Brevitas's ROUND_TO_ZERO is DOWN" if name.upper() == "ROUND_TO_ZERO" else ""
            names = ", ".join(cls.__members__)
            raise ValueError(f"rounding_mode must be one of {names}, got {name!r}{hint}") from None


def round_to_integer(y: Any, mode: str) -> Any:
    """Round y to integers. `floor(|y| + 0.5)` would be wrong at 0.49999997 and above 2^23."""
    xp = get_namespace(y)
    if hasattr(xp, "round_to_integer"):  # a namespace of this package, see `powers`
        return xp.round_to_integer(y, mode)
    match RoundingMode.parse(mode):
        case RoundingMode.ROUND:
            return xp.round(y)
        case RoundingMode.CEIL:
            return xp.ceil(y)
        case RoundingMode.FLOOR:
            return xp.floor(y)
        case RoundingMode.DOWN:
            return xp.trunc(y)
        case RoundingMode.UP:
            return xp.where(y < 0, xp.floor(y), xp.ceil(y))
        case RoundingMode.HALF_UP:
            whole = xp.trunc(y)
            return xp.where(xp.abs(y - whole) >= 0.5, whole + xp.sign(y), whole)
        case RoundingMode.HALF_DOWN:
            whole = xp.trunc(y)
            return xp.where(xp.abs(y - whole) > 0.5, whole + xp.sign(y), whole)
