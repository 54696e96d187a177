# SPDX-License-Identifier: Apache-2.0
"""Functions from integers to indices that rise, or fall, step by step: where the steps are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.constants import Array

_SAMPLES = 2**17
_FEWEST_SAMPLES = 128
_NEIGHBOURS = range(-2, 3)

Indices: TypeAlias = Callable[[Array], Array]
"""From int64, points x channels, to the index of each."""


@dataclass(frozen=True, eq=False)
class Range:
    """The integers that there can be, per channel."""

    lowest: Array
    highest: Array

    @property
    def longest(self) -> int:
        """The most integers of any channel."""
        return int((self.highest - self.lowest).max()) + 1


@dataclass(frozen=True, eq=False)
class StepFunction:
    """index = how many thresholds direction * point reaches.

    Attributes:
        directions: 1 or -1 per channel.
        thresholds: int64, levels - 1 x channels, ascending.
    """

    directions: Array
    thresholds: Array

    def __call__(self, points: Array) -> Array:
        """The indices of points x channels."""
        reached = points * self.directions
        found = np.empty(reached.shape, np.int64)
        for channel, thresholds in enumerate(self.thresholds.T):
            found[:, channel] = np.searchsorted(thresholds, reached[:, channel], side="right")
        return found

    def within(self, reach: Range) -> "StepFunction":
        """The same on a range; thresholds beyond lie just outside of it."""
        lowest, highest = oriented(reach, self.directions)
        return StepFunction(self.directions, np.clip(self.thresholds, lowest, highest + 1))


def oriented(reach: Range, directions: Array) -> tuple[Array, Array]:
    """The bounds of direction * point."""
    ends = reach.lowest * directions, reach.highest * directions
    return np.minimum(*ends), np.maximum(*ends)


def bisect_steps(indices: Indices, levels: int, reach: Range) -> StepFunction:
    """The staircase of a function that rises or falls everywhere: log2(range) evaluations."""
    ends = indices(np.stack([reach.lowest, reach.highest]))
    directions = np.where(ends[1] >= ends[0], 1, -1)
    lowest, highest = oriented(reach, directions)
    wanted = np.arange(1, levels)[:, None]
    start, end = np.minimum(ends[0], ends[1]), np.maximum(ends[0], ends[1])
    below, above = np.broadcast_arrays(lowest, highest, np.empty(wanted.shape))[:2]
    below, above = below.copy(), above.copy()
    while np.any(above - below > 1):
        middle = below + (above - below) // 2
        reached = indices(middle * directions) >= wanted
        above = np.where(reached, middle, above)
        below = np.where(reached, below, middle)
    thresholds = np.where(start >= wanted, lowest, np.where(end >= wanted, above, highest + 1))
    return StepFunction(directions, thresholds)


def check(stairs: StepFunction, indices: Indices, reach: Range) -> None:
    """That a function is what its operators say of it, where that is seen at little cost.

    Looked at are points all over the range and those around every step.

    Raises:
        Unsupported: It rises and falls.
    """
    count = min(reach.longest, max(_FEWEST_SAMPLES, _SAMPLES // reach.lowest.size))
    share = np.arange(count)[:, None]
    spread = reach.lowest + (reach.highest - reach.lowest) * share // max(count - 1, 1)
    points = [spread]
    if count < reach.longest:
        points += [stairs.thresholds * stairs.directions + distance for distance in _NEIGHBOURS]
    inside = np.clip(np.concatenate(points), reach.lowest, reach.highest)
    if not np.array_equal(stairs(inside), indices(inside)):
        raise Unsupported("it neither rises nor falls, although its operators do")


def directions_of(table: Array) -> tuple[Array, Array]:
    """Whether each column rises, and whether it falls, all the way."""
    before, behind = table[:-1], table[1:]
    return np.all(behind >= before, axis=0), np.all(behind <= before, axis=0)


def read_steps(table: Array, levels: int, reach: Range) -> StepFunction | None:
    """The staircase of a function known at every point of its range; None if it is none.

    Args:
        table: Indices, points x channels; the first row is that of the lowest point of each
            channel. What lies behind its highest point repeats that.
        levels: How many indices there are.
        reach: The range.
    """
    up, down = directions_of(table)
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
