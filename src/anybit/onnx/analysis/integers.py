# SPDX-License-Identifier: Apache-2.0
"""Common properties of sets of integers."""

import numpy as np

from anybit.onnx.graph.constants import Array

_MOST_MEMBERS = 2**12
_MOST_COUNTED = 2**16
_BLOCK = 2**14


def summarize_members(members: Array) -> tuple[int, frozenset[int] | None]:
    """Return the largest step of a range that contains all integers.

    The integers are returned, too, if the range contains others.
    """
    distinct = _find_distinct(members)
    count = int(distinct[-1] - distinct[0])
    step = int(np.gcd.reduce(np.diff(distinct))) if count else 1
    full = distinct.size == count // step + 1
    exact = None if full or distinct.size > _MOST_MEMBERS else frozenset(map(int, distinct))
    return step, exact


def _find_distinct(members: Array) -> Array:
    lowest, highest = int(members.min()), int(members.max())
    if highest - lowest > _MOST_COUNTED:
        return np.unique(members)
    places = np.subtract(members, lowest, dtype=np.int64).ravel()
    return np.asarray(np.flatnonzero(np.bincount(places)) + lowest)


def find_divisor(integers: Array) -> int:
    """Return the greatest common divisor; 1 if all are 0."""
    flat, divisor = np.ravel(integers), 0
    for at in range(0, flat.size, _BLOCK):
        divisor = int(np.gcd.reduce(flat[at : at + _BLOCK], initial=divisor))
        if divisor == 1:
            break
    return divisor or 1
