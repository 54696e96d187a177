# SPDX-License-Identifier: Apache-2.0
"""What some integers have in common."""

import numpy as np

from anybit.onnx.graph.constants import Array

_MOST_MEMBERS = 2**12
_MOST_COUNTED = 2**16
_BLOCK = 2**14


def few(members: Array) -> tuple[int, frozenset[int] | None]:
    """The largest step of a range that has some integers, and these where it has others, too."""
    distinct = _distinct(members)
    count = int(distinct[-1] - distinct[0])
    step = int(np.gcd.reduce(np.diff(distinct))) if count else 1
    full = distinct.size == count // step + 1
    exact = None if full or distinct.size > _MOST_MEMBERS else frozenset(map(int, distinct))
    return step, exact


def _distinct(members: Array) -> Array:
    lowest, highest = int(members.min()), int(members.max())
    if highest - lowest > _MOST_COUNTED:
        return np.unique(members)
    places = np.subtract(members, lowest, dtype=np.int64).ravel()
    return np.asarray(np.flatnonzero(np.bincount(places)) + lowest)


def divisor_of(integers: Array) -> int:
    """The greatest common divisor; 1 if all are 0."""
    flat, found = np.ravel(integers), 0
    for at in range(0, flat.size, _BLOCK):
        found = int(np.gcd.reduce(flat[at : at + _BLOCK], initial=found))
        if found == 1:
            break
    return found or 1
