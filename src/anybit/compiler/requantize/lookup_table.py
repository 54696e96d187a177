# SPDX-License-Identifier: Apache-2.0
"""Tables of functions of accumulators that are not monotonic, computed block by block."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from anybit.compiler.partition.expressions import IntegerRange
from anybit.compiler.reason import Unsupported
from anybit.compiler.requantize.step_function import Indices, find_directions
from anybit.onnx.graph.constants import Array

Risks: TypeAlias = Callable[[Array], Array]
"""From accumulators, points x channels, to whether rounding may give another index."""

_BLOCK = 2**18
"""Number of values per block: intermediate results stay in the cache."""

_SAMPLES = 2**16


def evaluate_table(indices: Indices, reach: IntegerRange, most_bent: int) -> Array:
    """Return the indices at all points, points x channels, from the lowest of each channel on.

    Rows after the highest point of a channel repeat that.

    Args:
        indices: The function.
        reach: The points.
        most_bent: Most values of a function that is not monotonic on a sample.

    Raises:
        Unsupported: It has more.
    """
    count, channels = reach.longest, reach.lowest.size
    if count * channels > most_bent:
        few = min(count, max(2, _SAMPLES // channels))
        sample = indices(_shift_points(reach, np.linspace(0, count - 1, few).astype(np.int64)))
        if not np.logical_or(*find_directions(sample)).all():
            raise refuse_size(count * channels, most_bent)
    table = np.empty((count, channels), np.int16)
    rows = max(1, _BLOCK // channels)
    for first in range(0, count, rows):
        block = table[first : first + rows]
        block[:] = indices(_shift_points(reach, np.arange(first, first + len(block))))
    return table


def refuse_size(entries: int, most: int) -> Unsupported:
    """Return the reason not to use a table."""
    return Unsupported(
        f"its epilogue is not monotonic, and a lookup table would have {entries} entries, "
        f"{most} at most; quantize with --integer-only"
    )


def find_risks_in_table(
    table: Array, is_at_risk: Risks, reach: IntegerRange, radius: int, most: int
) -> tuple[list[tuple[int, int]], bool]:
    """Return pairs of channel and accumulator at risk, and whether there may be more.

    Only accumulators within `radius` of a step, or of an end, are at risk.
    """
    count, channels = table.shape
    size = max(1, 4 * _BLOCK // channels)
    lengths = reach.highest - reach.lowest
    risks: list[tuple[int, int]] = []
    for first in range(0, count, size):
        last = min(first + size, count)
        rows = np.arange(first, last)[:, None]
        near = _mark_near_steps(table, first, last, radius) | (rows >= lengths - radius)
        near |= rows <= radius
        near &= rows <= lengths
        risks += _select_risks(near, first, is_at_risk, reach)
        if len(risks) > most:
            return risks[:most], True
    return risks, False


def _mark_near_steps(table: Array, first: int, last: int, radius: int) -> Array:
    """Return which rows from `first` to before `last` have a step within `radius`."""
    start, stop = max(0, first - radius), min(len(table), last + radius)
    part = table[start:stop]
    steps = np.zeros((len(part), table.shape[1]), np.int32)  # until each row, since the first
    np.cumsum(part[1:] != part[:-1], axis=0, out=steps[1:])
    rows = np.arange(first, last)
    above, below = np.minimum(rows + radius, stop - 1), np.maximum(rows - radius, start)
    return np.asarray(steps[above - start] != steps[below - start])


def _select_risks(
    near: Array, first: int, is_at_risk: Risks, reach: IntegerRange
) -> list[tuple[int, int]]:
    """Return the points at risk among those near a step, in the order of the rows."""
    most = int(near.sum(axis=0).max(initial=0))
    if not most:
        return []
    # In every channel the near points come first; others fill up the rest.
    order = np.argsort(~near, axis=0, kind="stable")[:most]
    points = np.minimum(reach.lowest + first + order, reach.highest)
    real = np.take_along_axis(near, order, axis=0)
    rows, channels = np.nonzero(is_at_risk(points) & real)
    accumulators = points[rows, channels]
    sort = np.lexsort((channels, order[rows, channels]))
    return list(zip(channels[sort].tolist(), accumulators[sort].tolist(), strict=True))


def _shift_points(reach: IntegerRange, offsets: Array) -> Array:
    return np.asarray(np.minimum(reach.lowest + offsets[:, None], reach.highest))
