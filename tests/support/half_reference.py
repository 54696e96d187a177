# SPDX-License-Identifier: Apache-2.0
"""The expected results of whole arrays: pick one of the two grid values around each element.

A second oracle, fast enough for exhaustive sweeps. It shares no code with the package or with the
slow oracle: grids are built from integers, and an element is compared with the exact middle of its
neighbours. Only the float32 operations that the definition writes around the rounding (division,
addition, multiplication) are left to the hardware.
"""

import math
from collections.abc import Callable

import numpy as np

# Does a magnitude strictly between its neighbours go to the upper one?
GOES_UP: dict[str, Callable[..., np.ndarray]] = {
    "ROUND": lambda value, middle, odd, negative: (value > middle) | ((value == middle) & odd),
    "CEIL": lambda value, middle, odd, negative: ~negative,
    "FLOOR": lambda value, middle, odd, negative: negative,
    "UP": lambda value, middle, odd, negative: np.ones_like(odd),
    "DOWN": lambda value, middle, odd, negative: np.zeros_like(odd),
    "HALF_UP": lambda value, middle, odd, negative: value >= middle,
    "HALF_DOWN": lambda value, middle, odd, negative: value > middle,
}


def round_to_neighbour(
    y: np.ndarray, lower: np.ndarray, upper: np.ndarray, odd: np.ndarray, mode: str
) -> np.ndarray:
    """y rounded to the neighbours of its magnitude; `odd` marks a lower one of odd count."""
    magnitude = np.abs(y).astype(np.float64)
    up = GOES_UP[mode](magnitude, (lower + upper) / 2, odd, np.signbit(y))
    rounded = np.where(up & (magnitude != lower), upper, lower)
    return np.where(np.isnan(y), y, np.copysign(rounded, y)).astype(y.dtype)


def minifloat_grid(e: int, m: int, bias: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the values >= 0, ascending, and a mask of the odd multiples of their spacing."""
    counts = [(count, 1 - bias - m) for count in range(2**m)]
    for code in range(1, 2**e):
        counts += [(count, code - bias - m) for count in range(2**m, 2 ** (m + 1))]
    values = np.array([math.ldexp(count, exponent) for count, exponent in counts])
    return values, np.array([count % 2 == 1 for count, _ in counts])


def float_quant(
    x: np.ndarray, scale: float, e: int, m: int, bias: int, modes: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """FloatQuant of a float16 or bfloat16 array in each of the modes."""
    values, is_odd = minifloat_grid(e, m, bias)
    with np.errstate(all="ignore"):
        factor = np.float32(scale)
        y = x.astype(np.float32) / factor
        y = np.where(np.isinf(y), np.float32(np.nan), y)
        below = np.searchsorted(values, np.abs(y).astype(np.float64), side="right") - 1
        # Beyond the largest value both neighbours are that value: the clip.
        above = np.minimum(below + 1, len(values) - 1)
        around = values[below], values[above], is_odd[below]
        return {
            mode: (round_to_neighbour(y, *around, mode) * factor).astype(x.dtype) for mode in modes
        }


def int_quant(
    x: np.ndarray, scale: float, zero_point: float, range_: tuple[int, int], modes: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """IntQuant of a float16 or bfloat16 array in each of the modes; a range of small integers."""
    with np.errstate(all="ignore"):
        factor, zero = np.float32(scale), np.float32(zero_point)
        y = x.astype(np.float32) / factor + zero
        y = np.where(y > range_[1], np.float32(range_[1]), y)
        y = np.where(y < range_[0], np.float32(range_[0]), y)
        lower = np.floor(np.abs(y).astype(np.float64))
        around = lower, lower + 1, lower % 2 == 1
        return {
            mode: ((round_to_neighbour(y, *around, mode) - zero) * factor).astype(x.dtype)
            for mode in modes
        }
