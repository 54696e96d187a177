# SPDX-License-Identifier: Apache-2.0
"""Affine epilogues: one multiplication, one addition and a rounding instead of many thresholds.

Index k begins in (threshold - 1, threshold]. A line through all these gaps at k - 1/2 gives the
same indices. It is found as the middle of the narrowest strip around the gaps. In float32 it is
only a candidate, which must equal the step function on both sides of every step. As both are
monotonic, they are then equal everywhere.
"""

import numpy as np

from anybit.compiler.partition.expressions import IntegerRange
from anybit.compiler.program.program import Affine
from anybit.compiler.program.reference import compute_index
from anybit.compiler.requantize.step_function import StepFunction, orient
from anybit.onnx.graph.constants import Array

_ROUNDS, _FIRST_ROUNDS = 60, 10
_FEW = 24
_FARTHEST = 2.0**40
_ROUNDING = 2.0**-48
_NEIGHBOURS = 8
_TRIALS = 41
_GOLDEN = (np.sqrt(5.0) - 1) / 2


def fit_affine(
    wide: StepFunction,
    far: IntegerRange,
    reach: IntegerRange,
    levels: int,
    shift: int,
    guess: Affine | None = None,
) -> Affine | None:
    """Return an affine epilogue that equals a step function on a range; None if there is none.

    Args:
        wide: The step function, with steps beyond `reach`, which determine the line better.
        far: The range on which it is found.
        reach: The range that counts.
        levels: Number of indices.
        shift: Shift of the epilogue: ties go to the even index if it is even.
        guess: An epilogue with the same shift, which is tried as well.
    """
    stairs = wide.within(reach)
    lowest, highest = orient(reach, stairs.directions)
    near = np.concatenate([stairs.thresholds, stairs.thresholds - 1, [lowest, highest]])
    points = np.clip(near, lowest, highest) * stairs.directions
    expected = stairs(points)

    def missed(tried: Affine) -> Array:
        different = (compute_index(tried, points, levels) != expected).any(axis=0)
        finite = np.isfinite(tried.gains) & np.isfinite(tried.offsets)
        return np.asarray(different | ~finite | (tried.gains * stairs.directions < 0))

    fitted = _fit_middle(wide, far, stairs, reach, shift)
    off = missed(fitted)
    if guess is not None and off.any():
        right = ~missed(guess)
        fitted.gains[right], fitted.offsets[right] = guess.gains[right], guess.offsets[right]
        off &= ~right
    for channel in np.flatnonzero(off):
        gain = (fitted if guess is None else guess).gains[channel]
        near_by = _search_nearby(gain, points[:, channel], expected[:, channel], levels, shift)
        if near_by is None:
            return None
        fitted.gains[channel], fitted.offsets[channel] = near_by
    return None if missed(fitted).any() else fitted


def locate_steps(affine: Affine, levels: int) -> Array:
    """Return the approximate first accumulators of indices 1, 2, ..., levels - 1 x channels.

    These are thresholds of direction * accumulator; 0 where an epilogue is constant.
    """
    starts = np.arange(1, levels)[:, None] - 0.5 - affine.shift - affine.offsets.astype(np.float64)
    with np.errstate(all="ignore"):
        places = np.ceil(starts / np.abs(affine.gains.astype(np.float64)))
    return np.where(np.abs(places) < _FARTHEST, places, 0).astype(np.int64)


def _fit_middle(
    wide: StepFunction, far: IntegerRange, stairs: StepFunction, reach: IntegerRange, shift: int
) -> Affine:
    """Return the middle of the narrowest strip; a channel without steps is constant."""
    lowest, highest = orient(reach, stairs.directions)
    start, end = orient(far, stairs.directions)
    inside = (stairs.thresholds > lowest) & (stairs.thresholds <= highest)
    inner_steps = (wide.thresholds > start) & (wide.thresholds <= end)
    # x = width * k + first where index k begins.
    width, first = _fit_line(
        wide.thresholds - 0.5, np.where(inner_steps.any(axis=0), inner_steps, True)
    )
    constant = ~inside.any(axis=0)
    gains = np.where(constant, 0, stairs.directions / width)
    offsets = np.where(constant, (stairs.thresholds <= lowest).sum(axis=0), -0.5 - first / width)
    return Affine(gains.astype(np.float32), (offsets - shift).astype(np.float32), shift)


def _search_nearby(
    nearest: np.float32, points: Array, expected: Array, levels: int, shift: int
) -> tuple[np.float32, np.float32] | None:
    """Return a gain and an offset within some ulps, for a channel with a very narrow strip."""
    neighbours = np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1, dtype=np.float32)
    gains = nearest + np.spacing(nearest) * neighbours
    products = points.astype(np.float32)[:, None] * gains
    rest = expected[:, None] - shift - products.astype(np.float64)
    # The sum lies within half a unit of the index, except beyond the first and the last.
    above = np.where(expected[:, None] > 0, rest - 0.5, -np.inf).max(axis=0)
    below = np.where(expected[:, None] < levels - 1, rest + 0.5, np.inf).min(axis=0)
    # Where the strip is narrowest, only trials tell which way float32 rounds.
    width = np.maximum(below - above, 0) + levels * 2.0**-23
    for share in np.linspace(-0.5, 0.5, _TRIALS):
        offsets = ((above + below) / 2 + share * width).astype(np.float32)
        tried = Affine(gains, offsets, shift)
        same = (compute_index(tried, points[:, None], levels) == expected[:, None]).all(axis=0)
        if same.any():
            chosen = int(same.argmax())
            return tried.gains[chosen], tried.offsets[chosen]
    return None


def _fit_line(points: Array, used: Array) -> tuple[Array, Array]:
    """Return slope and intercept of the minimax line through the points at 1, 2, ... of a column.

    The largest distance is convex in the slope, so that a golden section search finds its minimum.
    """
    at = np.arange(1, len(points) + 1)[:, None]
    low, high = _bound_slope(points, at, used)
    low, high = _narrow(points, at, used, low, high, _FIRST_ROUNDS)
    outermost = _find_outermost(points, at, used, low, high)
    few = outermost.sum(axis=0) <= _FEW
    rows = np.argsort(~outermost[:, few], axis=0, kind="stable")[:_FEW]
    parts = (
        (few, *(np.take_along_axis(part[:, few], rows, 0) for part in (points, used)), rows + 1),
        (~few, points[:, ~few], used[:, ~few], at),
    )
    for channels, some, used_some, places in parts:
        low[channels], high[channels] = _narrow(
            some, places, used_some, low[channels], high[channels], _ROUNDS - _FIRST_ROUNDS
        )
    slope = (low + high) / 2
    top, bottom = _find_ends(points, at, used, slope)
    return slope, (top + bottom) / 2


def _narrow(
    points: Array, at: Array, used: Array, low: Array, high: Array, rounds: int
) -> tuple[Array, Array]:
    """Return bounds of the slopes after rounds of golden-section search."""

    def spread(slope: Array) -> Array:
        top, bottom = _find_ends(points, at, used, slope)
        return top - bottom

    for _ in range(rounds):
        inner = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        left = spread(inner[0]) <= spread(inner[1])
        low, high = np.where(left, low, inner[0]), np.where(left, inner[1], high)
    return low, high


def _find_ends(points: Array, at: Array, used: Array, slope: Array) -> tuple[Array, Array]:
    """Return the largest and the least distance from a line through 0."""
    rest = points - slope * at
    top = np.where(used, rest, -np.inf).max(axis=0)
    return top, np.where(used, rest, np.inf).min(axis=0)


def _find_outermost(points: Array, at: Array, used: Array, low: Array, high: Array) -> Array:
    """Return which points can be an end for slopes of an interval.

    Distances are linear in the slope: a point exceeded by another one at both bounds is not an end.
    """
    middle = points - (low + high) / 2 * at
    first = np.where(used, middle, -np.inf).argmax(axis=0)[None]
    last = np.where(used, middle, np.inf).argmin(axis=0)[None]
    rounding = _ROUNDING * (np.abs(points).max(axis=0) + np.abs(high) * len(points))
    outermost = np.zeros(used.shape, bool)
    for slope in (low, high):
        rest = points - slope * at
        outermost |= used & (rest >= np.take_along_axis(rest, first, 0) - rounding)
        outermost |= used & (rest <= np.take_along_axis(rest, last, 0) + rounding)
    return outermost


def _bound_slope(points: Array, at: Array, used: Array) -> tuple[Array, Array]:
    """Return bounds of the slope: that of the outermost points, plus or minus two units."""
    first, last = used.argmax(axis=0), len(used) - 1 - used[::-1].argmax(axis=0)
    columns = np.arange(points.shape[1])
    span = np.maximum(last - first, 1)
    mean = (points[last, columns] - points[first, columns]) / span
    mean = np.where(last > first, mean, 1.0)
    return np.maximum(mean - 2.0 / span, mean * 1e-3), mean + 2.0 / span
