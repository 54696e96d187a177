# SPDX-License-Identifier: Apache-2.0
"""Exact epilogues: integer code for float functions of accumulators.

The nodes after a sum are a function of a single number. It is evaluated on
float32(accumulator) * scale for all reachable accumulators. The cheapest epilogue that equals it on
all of them is chosen.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from anybit.compiler.lower.requantization import Requantization
from anybit.compiler.partition.element_functions import ElementFunction
from anybit.compiler.partition.expressions import Accumulators, IntegerRange
from anybit.compiler.program import program as p
from anybit.compiler.reason import UNSUPPORTED
from anybit.compiler.requantize.affine_fit import fit_affine, locate_steps
from anybit.compiler.requantize.lookup_table import evaluate_table, find_risks_in_table, refuse_size
from anybit.compiler.requantize.piecewise import (
    IndexBounds,
    PiecewiseConstant,
    find_pieces,
    find_risks_of_pieces,
)
from anybit.compiler.requantize.step_function import (
    Index,
    StepFunction,
    bisect_steps,
    check_steps,
    read_steps,
)
from anybit.onnx.graph.constants import Array

_MOST_EVALUATIONS = 2**24
"""Most evaluations of a function that is not monotonic, in all channels together."""

_MOST_ENTRIES = 2**22

_FEW_ENTRIES = 2**12
"""A table of at most this many entries per channel is cheaper than many thresholds."""

_MOST_TESTED = 2**24
"""Most accumulators that are tested for risks, the nearest to a step first."""

MOST_RISKS = 2**14
"""Most risks that are listed: more take minutes and gigabytes."""

_MOST_NEAR = 2**18
"""Number of accumulators next to 0 that are tested where there are too many for all."""

_FEW_LEVELS = 4
_SEVERAL_LEVELS = 16
_WIDE = 2**22


def requantize_exactly(
    function: ElementFunction,
    index: Index,
    levels: int,
    sums: Accumulators,
    shift: int = 0,
    guess: p.Affine | None = None,
) -> Requantization:
    """Return the cheapest epilogue that equals a function onto a grid.

    Args:
        function: From the float32 sum to a value on the grid.
        index: From that to an index.
        levels: Number of indices.
        sums: The accumulators.
        shift: Shift of an affine epilogue.
        guess: An affine epilogue with that shift, which is tried.

    Raises:
        Unsupported: It is not monotonic over too many accumulators.
        OffGridError: It leaves the grid.
    """

    def indices(points: Array) -> Array:
        return index(function(sums.values(points)))

    if function.monotone:
        stairs, far = _find_steps(indices, levels, sums.reach, guess)
        check_steps(stairs, indices, sums.reach)
        epilogue = _select_cheapest(stairs, far, levels, sums.reach, shift, guess)
        return Requantization(epilogue, *_find_step_risks(stairs, function, index, sums))
    count = sums.reach.longest * sums.scales.size
    if count > _MOST_EVALUATIONS:
        raise refuse_size(count, _MOST_ENTRIES)
    table = evaluate_table(indices, sums.reach, _MOST_ENTRIES)
    steps = read_steps(table, levels, sums.reach)
    if steps is None and table.size > _MOST_ENTRIES:
        raise refuse_size(table.size, _MOST_ENTRIES)
    risks = _find_table_risks(table, function, index, sums)
    if steps is not None:
        return Requantization(
            _select_cheapest(steps, sums.reach, levels, sums.reach, shift, guess), *risks
        )
    first = sums.reach.lowest.astype(np.int32)
    return Requantization(p.Table(first, table.T.astype(np.uint8).ravel()), *risks)


def requantize_piecewise(
    function: ElementFunction,
    index: Index,
    levels: int,
    sums: Accumulators,
    shift: int = 0,
) -> Requantization | None:
    """Return the epilogue that equals a function that is not monotonic; None if none is cheap.

    All accumulators at risk are listed, or the note that there may be more.
    """
    try:
        bounds = IndexBounds(function, index, sums)
        pieces = find_pieces(bounds)
        epilogue = _select_for_pieces(pieces, levels, sums.reach, shift)
        if epilogue is None:
            return None
        risks, more_risks = find_risks_of_pieces(bounds, pieces, MOST_RISKS)
    except UNSUPPORTED:
        return None
    changes = len(pieces.channel) - pieces.channels
    return Requantization(epilogue, changes, risks, more_risks)


def _select_for_pieces(
    pieces: PiecewiseConstant, levels: int, reach: IntegerRange, shift: int
) -> p.Epilogue | None:
    """Return an epilogue that costs less than a replay in floats would; None if there is none."""
    many = levels > _SEVERAL_LEVELS
    if many and pieces.is_fast and pieces.counts.max() <= p.MOST_PIECES:
        starts, entries = pieces.rows()
        return p.Piecewise(starts.astype(np.int32).ravel(), entries.astype(np.uint8).ravel())
    steps = pieces.find_steps(levels, reach)
    if steps is None:
        return None
    epilogue = _select_cheapest(steps, reach, levels, reach, shift, None)
    return None if many and isinstance(epilogue, p.Thresholds) else epilogue


def _select_cheapest(
    stairs: StepFunction,
    far: IntegerRange,
    levels: int,
    reach: IntegerRange,
    shift: int,
    guess: p.Affine | None,
) -> p.Epilogue:
    """Return the cheapest epilogue that equals a step function on `reach`.

    Args:
        stairs: The step function.
        far: The range on which its steps are found, which may be longer.
        levels: Number of indices.
        reach: The accumulators that can occur.
        shift: Shift of an affine epilogue.
        guess: An affine epilogue with that shift, which is tried.
    """
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


def _find_steps(
    indices: Callable[[Array], Array], levels: int, reach: IntegerRange, guess: p.Affine | None
) -> tuple[StepFunction, IntegerRange]:
    """Return the step function of a monotonic function, and the range on which it is found.

    With many levels, steps are also searched far beyond the reachable accumulators: more steps
    determine an affine fit better.
    """
    near = None if guess is None else locate_steps(guess, levels)
    if levels > _FEW_LEVELS:
        far = IntegerRange(np.minimum(reach.lowest, -_WIDE), np.maximum(reach.highest, _WIDE))
        try:
            return bisect_steps(indices, levels, far, near), far
        except UNSUPPORTED:  # the function has no values there
            pass
    return bisect_steps(indices, levels, reach, near), reach


def _find_step_risks(
    stairs: StepFunction, function: ElementFunction, index: Index, sums: Accumulators
) -> tuple[int, tuple[tuple[int, int], ...], bool]:
    """Return the number of steps, the accumulators at risk, and whether there may be more.

    If rounding moves an accumulator over a step, it moves those between the two as well: the
    nearest ones, which come first, tell whether there is any.
    """
    inside = stairs.within(sums.reach)
    ends = np.sort(np.stack([sums.reach.lowest, sums.reach.highest]) * inside.directions, axis=0)
    real = (inside.thresholds > ends[0]) & (inside.thresholds <= ends[1])
    real[1:] &= inside.thresholds[1:] != inside.thresholds[:-1]
    steps = int(real.sum())
    if not np.any(sums.slack > 0):
        return steps, (), False
    radius = _bound_error(sums)
    # A step just beyond the range can be crossed, too.
    starts = np.concatenate([inside.thresholds, ends[:1], ends[1:] + 1])
    tested = np.concatenate([real, np.ones_like(ends, bool)])
    affordable = max(1, _MOST_TESTED // starts.size)
    risky = np.empty(0, np.int64)  # channel and accumulator in one number
    far = min(radius, affordable)
    distance = 0
    while distance < far and len(risky) < MOST_RISKS:
        for side in (starts + distance, starts - 1 - distance):
            points = np.clip(side, ends[0], ends[1]) * inside.directions
            moved = _is_at_risk(points, function, index, sums) & tested
            if not moved.any():
                continue
            channels = np.broadcast_to(np.arange(points.shape[1]), points.shape)[moved]
            risky = np.union1d(risky, (channels << 32) + points[moved] + 2**31)
        distance += 1
    risks = zip((risky >> 32).tolist(), ((risky & 2**32 - 1) - 2**31).tolist(), strict=True)
    return steps, tuple(risks), bool(len(risky)) and radius > distance


def _find_table_risks(
    table: Array, function: ElementFunction, index: Index, sums: Accumulators
) -> tuple[int, tuple[tuple[int, int], ...], bool]:
    steps = int(np.count_nonzero(table[1:] != table[:-1]))
    if not np.any(sums.slack > 0):
        return steps, (), False

    def is_at_risk(points: Array) -> Array:
        return _is_at_risk(points, function, index, sums)

    listed, more = find_risks_in_table(
        table, is_at_risk, sums.reach, _bound_error(sums), MOST_RISKS
    )
    return steps, tuple(sorted(listed)), more


def find_risks_near_zero(
    epilogue: p.Epilogue, function: ElementFunction, index: Index, sums: Accumulators
) -> Requantization:
    """Return an epilogue with its steps and risks nearest to 0, for too many accumulators."""
    far = max(1, _MOST_NEAR // sums.scales.size // 2)
    reach = sums.reach
    lowest = np.clip(-far, reach.lowest, reach.highest)
    near = replace(sums, reach=IntegerRange(lowest, np.clip(far, lowest, reach.highest)))
    table = evaluate_table(
        lambda points: index(function(sums.values(points))), near.reach, 2 * _MOST_NEAR
    )
    steps, risks, _ = _find_table_risks(table, function, index, near)
    return Requantization(epilogue, steps, risks, bool(np.any(sums.slack > 0)))


def _bound_error(sums: Accumulators) -> int:
    """Return the largest error of float32 sums, in accumulators, rounded up."""
    with np.errstate(all="ignore"):
        most = sums.slack / np.abs(sums.scales)
    return int(np.nanmax(np.where(np.isfinite(most), most, 0), initial=0)) + 2


def _is_at_risk(
    points: Array, function: ElementFunction, index: Index, sums: Accumulators
) -> Array:
    """Return at which accumulators a sum with the largest error may give another index."""
    own = index(function(sums.values(points)))
    moved = np.zeros(points.shape, bool)
    for bound in sums.bounds(points):
        moved |= index(function(bound)) != own
    return moved & (sums.slack > 0)
