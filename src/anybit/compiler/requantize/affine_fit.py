# SPDX-License-Identifier: Apache-2.0
"""One multiplication, one addition and a rounding in the place of many thresholds.

Index k begins in (threshold - 1, threshold]. A line that passes through all these gaps at
k - 1/2 gives the same indices; where there is one, it is found as the middle of the narrowest
strip. In float32 it is only a candidate: it counts if it equals the staircase at every step, and
both never fall, so that they are equal everywhere.
"""

import numpy as np

from anybit.compiler.program.program import Affine
from anybit.compiler.program.reference import index_of
from anybit.compiler.requantize.step_function import Range, StepFunction, oriented
from anybit.onnx.graph.constants import Array

_ROUNDS = 60
_NEIGHBOURS = 8
_TRIALS = 41
_GOLDEN = (np.sqrt(5.0) - 1) / 2


def fit_affine(
    wide: StepFunction,
    far: Range,
    reach: Range,
    levels: int,
    shift: int,
    guess: Affine | None = None,
) -> Affine | None:
    """What gives the indices of a staircase at every point that can be reached; None if nothing.

    Args:
        wide: The staircase far beyond what can be reached: more of its steps tell more of the line.
        far: The range on which it is known.
        reach: The range that counts.
        levels: How many indices there are.
        shift: That of the affine function: ties go to the even index if it is even.
        guess: What is tried as well, with the same shift.
    """
    stairs = wide.within(reach)
    lowest, highest = oriented(reach, stairs.directions)
    near = np.concatenate([stairs.thresholds, stairs.thresholds - 1, [lowest, highest]])
    points = np.clip(near, lowest, highest) * stairs.directions
    wanted = stairs(points)

    def missed(tried: Affine) -> Array:
        different = (index_of(tried, points, levels) != wanted).any(axis=0)
        finite = np.isfinite(tried.gains) & np.isfinite(tried.offsets)
        return np.asarray(different | ~finite | (tried.gains * stairs.directions < 0))

    found = _middle(wide, far, stairs, reach, shift)
    off = missed(found)
    if guess is not None and off.any():
        right = ~missed(guess)
        found.gains[right], found.offsets[right] = guess.gains[right], guess.offsets[right]
        off &= ~right
    for channel in np.flatnonzero(off):
        gain = (found if guess is None else guess).gains[channel]
        near_by = _near(gain, points[:, channel], wanted[:, channel], levels, shift)
        if near_by is None:
            return None
        found.gains[channel], found.offsets[channel] = near_by
    return None if missed(found).any() else found


def _middle(
    wide: StepFunction, far: Range, stairs: StepFunction, reach: Range, shift: int
) -> Affine:
    """The middle of the narrowest strip; a channel without steps is constant."""
    lowest, highest = oriented(reach, stairs.directions)
    start, end = oriented(far, stairs.directions)
    inside = (stairs.thresholds > lowest) & (stairs.thresholds <= highest)
    known = (wide.thresholds > start) & (wide.thresholds <= end)
    # x = width * k + first where index k begins.
    width, first = _line(wide.thresholds - 0.5, np.where(known.any(axis=0), known, True))
    constant = ~inside.any(axis=0)
    gains = np.where(constant, 0, stairs.directions / width)
    offsets = np.where(constant, (stairs.thresholds <= lowest).sum(axis=0), -0.5 - first / width)
    return Affine(gains.astype(np.float32), (offsets - shift).astype(np.float32), shift)


def _near(
    nearest: np.float32, points: Array, wanted: Array, levels: int, shift: int
) -> tuple[np.float32, np.float32] | None:
    """Gain and offset that differ by roundings, of a channel whose strip is as narrow as these."""
    neighbours = np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1, dtype=np.float32)
    gains = nearest + np.spacing(nearest) * neighbours
    products = points.astype(np.float32)[:, None] * gains
    rest = wanted[:, None] - shift - products.astype(np.float64)
    # The sum lies within half a unit of the index, but beyond the first and the last.
    above = np.where(wanted[:, None] > 0, rest - 0.5, -np.inf).max(axis=0)
    below = np.where(wanted[:, None] < levels - 1, rest + 0.5, np.inf).min(axis=0)
    # Which way float32 rounds at the narrowest places is a matter of trying.
    width = np.maximum(below - above, 0) + levels * 2.0**-23
    for share in np.linspace(-0.5, 0.5, _TRIALS):
        offsets = ((above + below) / 2 + share * width).astype(np.float32)
        tried = Affine(gains, offsets, shift)
        same = (index_of(tried, points[:, None], levels) == wanted[:, None]).all(axis=0)
        if same.any():
            chosen = int(same.argmax())
            return tried.gains[chosen], tried.offsets[chosen]
    return None


def _line(points: Array, used: Array) -> tuple[Array, Array]:
    """Slope and value at 0 of the line nearest to the points at 1, 2, ... of each column.

    Nearest is that whose largest distance is least. The distance is convex in the slope, so that a
    golden section finds it.
    """
    at = np.arange(1, len(points) + 1)[:, None]

    def spread(slope: Array) -> tuple[Array, Array, Array]:
        rest = points - slope * at
        top = np.where(used, rest, -np.inf).max(axis=0)
        bottom = np.where(used, rest, np.inf).min(axis=0)
        return top - bottom, top, bottom

    low, high = _slopes(points, at, used)
    for _ in range(_ROUNDS):
        inner = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        left = spread(inner[0])[0] <= spread(inner[1])[0]
        low, high = np.where(left, low, inner[0]), np.where(left, inner[1], high)
    slope = (low + high) / 2
    _, top, bottom = spread(slope)
    return slope, (top + bottom) / 2


def _slopes(points: Array, at: Array, used: Array) -> tuple[Array, Array]:
    """Between which the slope lies: those of the outermost points, give and take two units."""
    first, last = used.argmax(axis=0), len(used) - 1 - used[::-1].argmax(axis=0)
    columns = np.arange(points.shape[1])
    span = np.maximum(last - first, 1)
    mean = (points[last, columns] - points[first, columns]) / span
    mean = np.where(last > first, mean, 1.0)
    return np.maximum(mean - 2.0 / span, mean * 1e-3), mean + 2.0 / span
