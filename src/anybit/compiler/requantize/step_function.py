# SPDX-License-Identifier: Apache-2.0
"""Monotonic step functions from integers to indices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from anybit.compiler.partition.expressions import IntegerRange
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.constants import Array

_SAMPLES = 2**17
_FEWEST_SAMPLES = 128
_NEIGHBOURS = range(-2, 3)
_NEAR = 2
"""Distance from a guess within which steps are expected."""

Index: TypeAlias = Callable[[Array], Array]
"""From float32 values, elements x channels, to indices; raises OffGridError off the grid."""

Indices: TypeAlias = Callable[[Array], Array]
"""From int64 points, points x channels, to indices."""


@dataclass(frozen=True, eq=False)
class StepFunction:
    """index = the number of thresholds that direction * point reaches.

    Attributes:
        directions: 1 or -1 per channel.
        thresholds: int64, levels - 1 x channels, ascending.
    """

    directions: Array
    thresholds: Array

    def __call__(self, points: Array) -> Array:
        """Return the indices of points x channels."""
        reached = points * self.directions
        indices = np.empty(reached.shape, np.int64)
        for channel, thresholds in enumerate(self.thresholds.T):
            indices[:, channel] = np.searchsorted(thresholds, reached[:, channel], side="right")
        return indices

    def within(self, reach: IntegerRange) -> "StepFunction":
        """Return the function on a range: thresholds beyond it are moved just outside."""
        lowest, highest = orient(reach, self.directions)
        return StepFunction(self.directions, np.clip(self.thresholds, lowest, highest + 1))


def orient(reach: IntegerRange, directions: Array) -> tuple[Array, Array]:
    """Return the bounds of direction * point."""
    ends = reach.lowest * directions, reach.highest * directions
    return np.minimum(*ends), np.maximum(*ends)


def bisect_steps(
    indices: Indices, levels: int, reach: IntegerRange, guess: Array | None = None
) -> StepFunction:
    """Return the steps of a monotonic function, found in log2(range) evaluations at most.

    Args:
        indices: The function.
        levels: Number of indices.
        reach: The points.
        guess: Thresholds, levels - 1 x channels: steps near them are found in few evaluations.
    """
    ends = indices(np.stack([reach.lowest, reach.highest]))
    directions = np.where(ends[1] >= ends[0], 1, -1)
    lowest, highest = orient(reach, directions)
    targets = np.arange(1, levels)[:, None]
    start, end = np.minimum(ends[0], ends[1]), np.maximum(ends[0], ends[1])
    below, above = np.broadcast_arrays(lowest, highest, np.empty(targets.shape))[:2]
    below, above = below.copy(), above.copy()
    middles = [] if guess is None else [guess - 1 - _NEAR, guess + _NEAR, guess - 1, guess]
    while np.any(above - below > 1):
        middle = below + (above - below) // 2
        if middles:
            middle = np.clip(middles.pop(0), below, above)
        reached = indices(middle * directions) >= targets
        above = np.where(reached, middle, above)
        below = np.where(reached, below, middle)
    thresholds = np.where(start >= targets, lowest, np.where(end >= targets, above, highest + 1))
    return StepFunction(directions, thresholds)


def check_steps(stairs: StepFunction, indices: Indices, reach: IntegerRange) -> None:
    """Check that a function is as monotonic as its operators are, on a sample.

    The sample has points of the whole range and those around every step.

    Raises:
        Unsupported: It is not.
    """
    inside = np.concatenate(list(iterate_samples(stairs.thresholds * stairs.directions, reach)))
    if not np.array_equal(stairs(inside), indices(inside)):
        raise Unsupported("its result is not monotonic, although each of its operators is")


def iterate_samples(steps: Array, reach: IntegerRange) -> Iterator[Array]:
    """Yield points of the whole range, points x channels, and those around every step."""
    count = min(reach.longest, max(_FEWEST_SAMPLES, _SAMPLES // reach.lowest.size))
    share = np.arange(count)[:, None]
    yield reach.lowest + (reach.highest - reach.lowest) * share // max(count - 1, 1)
    if count < reach.longest:
        for distance in _NEIGHBOURS:
            yield np.clip(steps + distance, reach.lowest, reach.highest)


def find_directions(table: Array) -> tuple[Array, Array]:
    """Return whether the columns increase everywhere, and whether they decrease."""
    before, after = table[:-1], table[1:]
    return np.all(after >= before, axis=0), np.all(after <= before, axis=0)


def read_steps(table: Array, levels: int, reach: IntegerRange) -> StepFunction | None:
    """Return the steps of a tabulated function; None if it is not monotonic.

    Args:
        table: Indices, points x channels, from the lowest point of each channel on. Rows after its
            highest point repeat that.
        levels: Number of indices.
        reach: The points.
    """
    up, down = find_directions(table)
    if not np.all(up | down):
        return None
    above = np.empty((levels - 1, table.shape[1]), np.int64)
    for channel, column in enumerate(table.T):
        rising = column if up[channel] else column[::-1]
        above[:, channel] = len(table) - np.searchsorted(rising, np.arange(1, levels))
    # The row of the highest point is repeated, and so counted too often where it is above.
    overhang = len(table) - 1 - (reach.highest - reach.lowest)
    rising = reach.lowest + len(table) - above
    falling = 1 - reach.lowest - above + np.where(above == len(table), overhang, 0)
    thresholds = np.where(up, rising, falling)
    return StepFunction(np.where(up, 1, -1), thresholds).within(reach)
