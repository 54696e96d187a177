# SPDX-License-Identifier: Apache-2.0
"""Functions of accumulators that may rise and fall: their values everywhere, block by block."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from anybit.compiler.reason import Unsupported
from anybit.compiler.requantize.step_function import Indices, Range, directions_of
from anybit.onnx.graph.constants import Array

Moves: TypeAlias = Callable[[Array], Array]
"""From accumulators, points x channels, to whether rounding may give each another index."""

_BLOCK = 2**18
"""So many values are computed at a time: what is in between stays in the cache."""

_SAMPLES = 2**16


def evaluate_table(indices: Indices, reach: Range, most_bent: int) -> Array:
    """The indices at all points, points x channels, from the lowest of each channel on.

    What lies behind the highest point of a channel repeats that.

    Args:
        indices: The function.
        reach: The points.
        most_bent: So many values may a function have that is seen to rise and to fall.

    Raises:
        Unsupported: It has more.
    """
    count, channels = reach.longest, reach.lowest.size
    if count * channels > most_bent:
        few = min(count, max(2, _SAMPLES // channels))
        seen = indices(_points(reach, np.linspace(0, count - 1, few).astype(np.int64)))
        if not np.logical_or(*directions_of(seen)).all():
            raise too_large()
    table = np.empty((count, channels), np.int16)
    each = max(1, _BLOCK // channels)
    for first in range(0, count, each):
        block = table[first : first + each]
        block[:] = indices(_points(reach, np.arange(first, first + len(block))))
    return table


def too_large() -> Unsupported:
    """The reason not to use a table."""
    return Unsupported("what follows it rises and falls, and its table would be too large")


def find_risks_in_table(
    table: Array, moves: Moves, reach: Range, radius: int, most: int
) -> tuple[list[tuple[int, int]], bool]:
    """Pairs of a channel and an accumulator that rounding may move, and if there may be more.

    Only who is as near to a step, or to the end, as rounding reaches can be moved.
    """
    count, channels = table.shape
    each = max(1, 4 * _BLOCK // channels)
    lengths = reach.highest - reach.lowest
    found: list[tuple[int, int]] = []
    for first in range(0, count, each):
        last = min(first + each, count)
        rows = np.arange(first, last)[:, None]
        asked = _near_a_step(table, first, last, radius) | (rows >= lengths - radius)
        asked |= rows <= radius
        asked &= rows <= lengths
        found += _moved(asked, first, moves, reach)
        if len(found) > most:
            return found[:most], True
    return found, False


def _near_a_step(table: Array, first: int, last: int, radius: int) -> Array:
    """Which rows from the first to before the last have a step no farther away."""
    start, stop = max(0, first - radius), min(len(table), last + radius)
    part = table[start:stop]
    steps = np.zeros((len(part), table.shape[1]), np.int32)  # until each row, since the first
    np.cumsum(part[1:] != part[:-1], axis=0, out=steps[1:])
    rows = np.arange(first, last)
    above, below = np.minimum(rows + radius, stop - 1), np.maximum(rows - radius, start)
    return np.asarray(steps[above - start] != steps[below - start])


def _moved(asked: Array, first: int, moves: Moves, reach: Range) -> list[tuple[int, int]]:
    """Those of the points that are asked for, in the order of the rows."""
    most = int(asked.sum(axis=0).max(initial=0))
    if not most:
        return []
    # Of each channel those that are asked for come first, and some that are not fill up the rest.
    order = np.argsort(~asked, axis=0, kind="stable")[:most]
    points = np.minimum(reach.lowest + first + order, reach.highest)
    real = np.take_along_axis(asked, order, axis=0)
    rows, channels = np.nonzero(moves(points) & real)
    accumulators = points[rows, channels]
    sort = np.lexsort((channels, order[rows, channels]))
    return list(zip(channels[sort].tolist(), accumulators[sort].tolist(), strict=True))


def _points(reach: Range, offsets: Array) -> Array:
    return np.asarray(np.minimum(reach.lowest + offsets[:, None], reach.highest))
