# SPDX-License-Identifier: Apache-2.0
"""Tails: from a float function of accumulators to what a program does with them.

Only sums have an order. All that comes behind one is a function of a single number, and that is
evaluated as it stands, on float32(accumulator) * scale for the accumulators that there can be. A
tail is what equals it on each of them; among those that do, the cheapest.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from anybit.compiler.partition.element_functions import ElementFunction
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.compiler.requantize.affine_fit import fit_affine
from anybit.compiler.requantize.lookup_table import evaluate_table, find_risks_in_table, too_large
from anybit.compiler.requantize.step_function import (
    Range,
    StepFunction,
    bisect_steps,
    check,
    read_steps,
)
from anybit.onnx.graph.constants import Array

Index: TypeAlias = Callable[[Array], Array]
"""From float32 values on a grid, elements x channels, to indices; Unsupported for others."""

_MOST_EVALUATIONS = 2**24
"""So many values of a function that may rise and fall are computed, in all channels together."""

_MOST_ENTRIES = 2**22

_FEW_ENTRIES = 2**12
"""A table of a channel that is no longer than this is cheaper than many thresholds."""

_MOST_TESTED = 2**24
"""So many accumulators are looked at for risks, the nearest to a step first."""

MOST_RISKS = 2**14
"""So many of them are listed: what is beyond that takes minutes and gigabytes."""

_MOST_NEAR = 2**18
"""At so many accumulators steps and risks are looked for where there are too many for all."""

_FEW_LEVELS = 4
_SEVERAL_LEVELS = 16
_WIDE = 2**22


@dataclass(frozen=True, eq=False)
class Sum:
    """An accumulator and what the float graph has for it, per channel.

    Attributes:
        scales: float32: what one unit is.
        reach: The accumulators that there can be.
        slack: float64: a float32 sum, in whatever order, is at most so far from the exact one. 0
            where it is exact.
    """

    scales: Array
    reach: Range
    slack: Array

    def values(self, accumulators: Array) -> Array:
        """float32(accumulator) * scale, rounded to float32."""
        with np.errstate(all="ignore"):
            return np.asarray(accumulators.astype(np.float32) * self.scales)

    def around(self, accumulators: Array) -> tuple[Array, Array]:
        """Between which numbers the float32 sums are, in whatever order they are added."""
        exact = self.values(accumulators)
        below, above = (
            # One float further, because the bound itself is rounded here.
            np.nextafter((exact + sign * self.slack).astype(np.float32), np.float32(sign * np.inf))
            for sign in (-1, 1)
        )
        return below, above


@dataclass(frozen=True, eq=False)
class Requantization:
    """A function of accumulators to indices, known everywhere.

    Attributes:
        tail: What equals it.
        steps: How many accumulators there are, in all channels, at which the index changes.
        risks: Pairs of a channel and an accumulator at which a float32 sum that is off by rounding
            may give another index.
        more_risks: Whether there may be more, farther from the steps than these.
    """

    tail: p.Tail
    steps: int
    risks: tuple[tuple[int, int], ...] = ()
    more_risks: bool = False


def requantize_exactly(
    function: ElementFunction,
    index: Index,
    levels: int,
    of: Sum,
    shift: int = 0,
    guess: p.Affine | None = None,
) -> Requantization:
    """The tail for a function that ends on a grid. An affine one may be guessed.

    Args:
        function: From the float sum to a value on the grid.
        index: From that to an index.
        levels: How many indices there are.
        of: The sum.
        shift: That of an affine tail.
        guess: An affine tail with that shift.

    Raises:
        Unsupported: It rises and falls over too many accumulators.
    """

    def indices(accumulators: Array) -> Array:
        return index(function(of.values(accumulators)))

    if function.monotone:
        stairs, far = _bisected(indices, levels, of.reach)
        check(stairs, indices, of.reach)
        tail = _of_stairs(stairs, far, levels, of.reach, shift, guess)
        return Requantization(tail, *_risks_of_stairs(stairs, function, index, of))
    if of.reach.longest * of.scales.size > _MOST_EVALUATIONS:
        raise Unsupported("what follows it rises and falls, over too many accumulators")
    table = evaluate_table(indices, of.reach, _MOST_ENTRIES)
    found = read_steps(table, levels, of.reach)
    if found is None and table.size > _MOST_ENTRIES:
        raise too_large()
    risks = _risks_of_table(table, function, index, of)
    if found is not None:
        return Requantization(_of_stairs(found, of.reach, levels, of.reach, shift, guess), *risks)
    first = of.reach.lowest.astype(np.int32)
    return Requantization(p.Table(first, table.T.astype(np.uint8).ravel()), *risks)


def _of_stairs(
    stairs: StepFunction, far: Range, levels: int, reach: Range, shift: int, guess: p.Affine | None
) -> p.Tail:
    """The cheapest tail on a range of a staircase that is known on a longer one, perhaps."""
    inside = stairs.within(reach)
    if levels > _FEW_LEVELS:
        affine = fit_affine(stairs, far, reach, levels, shift, guess)
        if affine is not None:
            return affine
        entries = reach.longest * len(reach.lowest)
        if levels > _SEVERAL_LEVELS and reach.longest <= _FEW_ENTRIES and entries <= _MOST_ENTRIES:
            points = reach.lowest + np.arange(reach.longest)[:, None]
            table = inside(np.minimum(points, reach.highest))
            return p.Table(reach.lowest.astype(np.int32), table.T.astype(np.uint8).ravel())
    return p.Thresholds(
        inside.directions.astype(np.int32), inside.thresholds.T.astype(np.int32).ravel()
    )


def _bisected(
    indices: Callable[[Array], Array], levels: int, reach: Range
) -> tuple[StepFunction, Range]:
    """Where the steps are, and on which range: also far beyond what can be reached.

    They tell more of the line on which they lie then. Few levels have no line.
    """
    if levels > _FEW_LEVELS:
        far = Range(np.minimum(reach.lowest, -_WIDE), np.maximum(reach.highest, _WIDE))
        try:
            return bisect_steps(indices, levels, far), far
        except Unsupported:  # the function has no values there
            pass
    return bisect_steps(indices, levels, reach), reach


def _risks_of_stairs(
    stairs: StepFunction, function: ElementFunction, index: Index, of: Sum
) -> tuple[int, tuple[tuple[int, int], ...], bool]:
    """How many steps there are, where slack moves an element over one, and if that is not all.

    If an accumulator is moved over a step, those between the two are, too: the nearest ones, which
    come first, tell whether there is any.
    """
    inside = stairs.within(of.reach)
    ends = np.sort(np.stack([of.reach.lowest, of.reach.highest]) * inside.directions, axis=0)
    real = (inside.thresholds > ends[0]) & (inside.thresholds <= ends[1])
    real[1:] &= inside.thresholds[1:] != inside.thresholds[:-1]
    steps = int(real.sum())
    if not np.any(of.slack > 0):
        return steps, (), False
    radius = _radius(of)
    # A step just beyond what can be reached is crossed as well.
    starts = np.concatenate([inside.thresholds, ends[:1], ends[1:] + 1])
    asked = np.concatenate([real, np.ones_like(ends, bool)])
    affordable = max(1, _MOST_TESTED // starts.size)
    found = np.empty(0, np.int64)  # channel and accumulator in one number
    far = min(radius, affordable)
    distance = 0
    while distance < far and len(found) < MOST_RISKS:
        for side in (starts + distance, starts - 1 - distance):
            points = np.clip(side, ends[0], ends[1]) * inside.directions
            moved = _moves(points, function, index, of) & asked
            channels = np.broadcast_to(np.arange(points.shape[1]), points.shape)[moved]
            found = np.union1d(found, (channels << 32) + points[moved] + 2**31)
        distance += 1
    risks = zip((found >> 32).tolist(), ((found & 2**32 - 1) - 2**31).tolist(), strict=True)
    return steps, tuple(risks), bool(len(found)) and radius > distance


def _risks_of_table(
    table: Array, function: ElementFunction, index: Index, of: Sum
) -> tuple[int, tuple[tuple[int, int], ...], bool]:
    steps = int(np.count_nonzero(table[1:] != table[:-1]))
    if not np.any(of.slack > 0):
        return steps, (), False

    def moves(points: Array) -> Array:
        return _moves(points, function, index, of)

    listed, more = find_risks_in_table(table, moves, of.reach, _radius(of), MOST_RISKS)
    return steps, tuple(sorted(listed)), more


def find_risks_near_zero(
    tail: p.Tail, function: ElementFunction, index: Index, of: Sum
) -> Requantization:
    """A tail for more accumulators than are looked at: its steps and risks nearest to 0."""
    far = max(1, _MOST_NEAR // of.scales.size // 2)
    reach = of.reach
    lowest = np.clip(-far, reach.lowest, reach.highest)
    near = replace(of, reach=Range(lowest, np.clip(far, lowest, reach.highest)))
    table = evaluate_table(
        lambda points: index(function(of.values(points))), near.reach, 2 * _MOST_NEAR
    )
    steps, risks, _ = _risks_of_table(table, function, index, near)
    return Requantization(tail, steps, risks, bool(np.any(of.slack > 0)))


def _radius(of: Sum) -> int:
    """No accumulator is farther from those that rounding may make of it."""
    with np.errstate(all="ignore"):
        most = of.slack / np.abs(of.scales)
    return int(np.nanmax(np.where(np.isfinite(most), most, 0), initial=0)) + 2


def _moves(points: Array, function: ElementFunction, index: Index, of: Sum) -> Array:
    """At which accumulators a sum that is off by the slack may give another index."""
    own = index(function(of.values(points)))
    moved = np.zeros(points.shape, bool)
    for off in of.around(points):
        moved |= index(function(off)) != own
    return moved & (of.slack > 0)
