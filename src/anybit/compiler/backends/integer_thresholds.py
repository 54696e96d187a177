# SPDX-License-Identifier: Apache-2.0
"""Thresholds of float32 numbers as integers, for targets that have no floats.

The key of a number is its bits, read as an int32, or minus the lower 31 bits if the sign is set:
`bits < 0 ? -(bits & 0x7fffffff) : bits`. Keys compare as the numbers do, -0 and 0 are equal, and
those of all numbers but NaN are within +-HIGHEST_KEY.
"""

import numpy as np

from anybit.compiler.program import program as p
from anybit.onnx.graph.constants import Array

HIGHEST_KEY = 0x7F800000
"""Key of infinity; a number is NaN if the magnitude of its key is greater."""


def order_floats(x: Array) -> Array:
    """Return the int64 keys of float32 numbers."""
    bits = x.astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def unorder_floats(keys: Array) -> Array:
    """Return the float32 numbers of keys, 0 and not -0."""
    bits = np.where(keys < 0, -keys | 0x80000000, keys)
    return bits.astype(np.uint32).view(np.float32)


def order_thresholds(at: p.Quantize, levels: int) -> tuple[Array, Array]:
    """Return thresholds of keys that give the index of a quantizer for every number but NaN.

    Factors and offsets become part of the thresholds of their channels: float32 rounds them, but
    the result rises or falls with x. Thresholds of channels become those of all if they are equal.

    Returns:
        Thresholds, ascending, one row for all channels or one for each, and as many directions, or
        one.
    """
    steps = levels - 1
    thresholds = at.thresholds.reshape(max(at.thresholds.size // max(steps, 1), 1), steps)
    scaled = at.factors.size or at.offsets.size
    falls = at.factors < 0 if at.factors.size else np.zeros(at.offsets.size or 1, bool)
    keys = _bisect(at, thresholds, falls) if scaled else order_floats(thresholds)
    directions = np.where(falls, -at.directions, at.directions)
    return _share_row(keys), _share_row(directions)


def _share_row(rows: Array) -> Array:
    return rows[:1] if np.all(rows == rows[0]) else rows


def _bisect(at: p.Quantize, thresholds: Array, falls: Array) -> Array:
    """Return the least keys whose results reach thresholds; or do not, where results fall."""
    falls = falls[:, None]
    thresholds = np.where(falls, thresholds[:, ::-1], thresholds)
    low = np.full(thresholds.shape, -HIGHEST_KEY)
    high = np.full(thresholds.shape, HIGHEST_KEY + 1)  # no number has this key
    while np.any(low < high):
        middle = np.minimum((low + high) // 2, HIGHEST_KEY)
        with np.errstate(all="ignore"):
            y = unorder_floats(middle)
            y = y * at.factors[:, None] if at.factors.size else y
            y = y + at.offsets[:, None] if at.offsets.size else y
        reached = (y >= thresholds) != falls
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    return low
