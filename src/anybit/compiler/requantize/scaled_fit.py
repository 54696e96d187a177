# SPDX-License-Identifier: Apache-2.0
"""Integer epilogues: a multiplication, an addition and a shift that equal a step function.

Let y(x) = multiplier * x + term, and let index k begin at threshold t_k. Both functions are equal
if y(t_k) reaches k << shift and y(t_k - 1) does not, for every k: two linear inequalities per
threshold, without those on unreachable accumulators. For a given multiplier and shift, the terms
that fulfill all of them are an interval of integers, which is computed exactly. Its width is a
concave function of the multiplier, whose maximum is searched in floats.

No line may fit if ties go to even, or if float32 rounds a product before the offset is added.
Then steps of the line may come one accumulator before those of the function, and bits say which.
"""

from dataclasses import dataclass, fields

import numpy as np

from anybit.compiler.partition.expressions import IntegerRange
from anybit.compiler.program.program import MOST_RIGHT_SHIFT, Scaled
from anybit.compiler.program.reference import scale_down, split_words
from anybit.compiler.requantize.step_function import StepFunction, orient
from anybit.onnx.graph.constants import Array

_ROUNDS = 60
_GOLDEN = (np.sqrt(5.0) - 1) / 2
_TOLERANCE = 1e-6
_ROUNDING = 2.0**-48
_FIRST_ROUNDS, _FEW = 10, 24
_SAMPLED = 16
_MOST_MULTIPLIER = 2**31 - 1
_NEVER = 2**62

_MORE_BITS = 12
"""Bits of multipliers by which lines with late steps are made more exact."""


def fit_scaled(stairs: StepFunction, reach: IntegerRange) -> Scaled | None:
    """Return an integer epilogue that equals a step function on a range; None if none is found.

    Every channel has the smallest right shift of those tried, and so the smallest numbers.

    Args:
        stairs: The step function.
        reach: The accumulators that count.
    """
    lowest, highest = orient(reach, stairs.directions)
    thresholds = stairs.within(reach).thresholds
    lines = _Steps.within(thresholds, lowest, highest, 0).fit_lines()
    rest = np.flatnonzero(~lines.exist)
    if rest.size:
        steps = _Steps.within(thresholds[:, rest], lowest[rest], highest[rest], 1)
        lines.replace(rest, steps.fit_lines())
    if not lines.exist.all():
        return None
    epilogue = Scaled(
        (lines.multipliers * stairs.directions).astype(np.int32),
        split_words(lines.terms),
        lines.shifts.astype(np.uint8),
        _find_late(lines, thresholds, lowest),
    )
    near = np.concatenate([thresholds, thresholds - 1, [lowest, highest]])
    points = np.clip(near, lowest, highest) * stairs.directions
    same = np.array_equal(scale_down(epilogue, points, len(thresholds) + 1), stairs(points))
    return epilogue if same else None


@dataclass(frozen=True, eq=False)
class _Lines:
    """y >> shift for y = multiplier * x + term, per channel, where it exists."""

    multipliers: Array
    terms: Array
    shifts: Array
    exist: Array

    @staticmethod
    def none(channels: int) -> "_Lines":
        multipliers, terms, shifts = (np.zeros(channels, np.int64) for _ in range(3))
        return _Lines(multipliers, terms, shifts, np.zeros(channels, bool))

    def replace(self, channels: Array, lines: "_Lines") -> None:
        """Replace the lines of some channels."""
        for field in fields(self):
            getattr(self, field.name)[channels] = getattr(lines, field.name)


def _find_late(lines: _Lines, thresholds: Array, lowest: Array) -> Array:
    """Return the bits of steps that come one after those of the lines; none if no step does."""
    indices = np.arange(len(thresholds) + 1)[:, None]
    multipliers = np.maximum(lines.multipliers, 1)
    starts = -((lines.terms - (indices << lines.shifts)) // multipliers)
    late = np.zeros(starts.shape, np.uint8)
    is_step = (thresholds > lowest) & (lines.multipliers > 0)
    late[1:] = is_step & (starts[1:] == thresholds - 1)
    return np.packbits(late.T.ravel(), bitorder="little") if late.any() else np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class _Steps:
    """Inequalities that lines have to fulfill: one row per threshold, one column per channel.

    Attributes:
        thresholds: Thresholds t of direction * accumulator.
        indices: The index k that begins at each, a column.
        early: Number of accumulators before t at which a line may reach k, 0 or 1.
        reached: Whether t is reachable, so that y(t) has to reach k << shift.
        avoided: Whether t - 1 is reachable, so that y must not reach it at t - 1 - early.
    """

    thresholds: Array
    indices: Array
    early: int
    reached: Array
    avoided: Array

    @staticmethod
    def within(thresholds: Array, lowest: Array, highest: Array, early: int) -> "_Steps":
        indices = np.arange(1, len(thresholds) + 1)[:, None]
        reached, avoided = thresholds <= highest, thresholds > lowest
        return _Steps(thresholds, indices, early, reached, avoided)

    def fit_lines(self) -> _Lines:
        """Return the line of each channel with the smallest shift that fulfills all inequalities.

        Lines with late steps have a larger shift: then fewer steps are late.
        """
        slopes, sample = self._find_slopes(), self._sample()
        lines = _Lines.none(slopes.size)
        possible = self._measure_width(slopes) >= -_TOLERANCE
        for shift in range(MOST_RIGHT_SHIFT + 1):
            multipliers = np.rint(np.ldexp(slopes, shift)).astype(np.int64)
            fitting = multipliers <= _MOST_MULTIPLIER
            tried = np.flatnonzero(possible & ~lines.exist & fitting)
            if not tried.size:
                break
            least, most = sample._bound_terms(tried, multipliers[tried], shift)
            tried = tried[least <= most]
            least, most = self._bound_terms(tried, multipliers[tried], shift)
            fits = least <= most
            right = tried[fits]
            lines.multipliers[right], lines.shifts[right] = multipliers[right], shift
            lines.terms[right] = _choose_terms(least[fits], most[fits])
            lines.exist[right] = True
        if self.early:
            self._refine(lines, slopes)
        return lines

    def _refine(self, lines: _Lines, slopes: Array) -> None:
        """Give lines more bits, and the terms with which the fewest steps are early."""
        for channel in np.flatnonzero(lines.exist).tolist():
            for extra in range(_MORE_BITS, 0, -1):
                shift = int(lines.shifts[channel]) + extra
                multiplier = round(np.ldexp(slopes[channel], shift))
                if shift > MOST_RIGHT_SHIFT or multiplier > _MOST_MULTIPLIER:
                    continue
                term = self._find_term(channel, multiplier, shift)
                if term is not None:
                    lines.multipliers[channel], lines.shifts[channel] = multiplier, shift
                    lines.terms[channel] = term
                    break

    def _find_term(self, channel: int, multiplier: int, shift: int) -> int | None:
        """Return the term with the most steps in their places; None if no line fits."""
        columns, multipliers = np.array([channel]), np.array([multiplier])
        least, most = (int(b[0]) for b in self._bound_terms(columns, multipliers, shift))
        if least > most or least == -_NEVER or most == _NEVER:
            return None
        inner = self.reached[:, channel] & self.avoided[:, channel]
        rest = (self.indices[inner, 0] << shift) - self.thresholds[inner, channel] * multiplier
        ends = rest + multiplier - 1
        terms = np.unique(np.clip(np.concatenate([[least, most], rest, ends]), least, most))
        begun = np.searchsorted(np.sort(rest), terms, side="right")
        ended = np.searchsorted(np.sort(ends), terms, side="left")
        return int(terms[(begun - ended).argmax()])

    def _sample(self) -> "_Steps":
        """Return some inequalities, which reject most multipliers that do not fit."""
        parts = self.thresholds, self.indices, self.reached, self.avoided
        thresholds, indices, reached, avoided = (part[::_SAMPLED] for part in parts)
        return _Steps(thresholds, indices, self.early, reached, avoided)

    def _bound_terms(self, channels: Array, multipliers: Array, shift: int) -> tuple[Array, Array]:
        """Return the least and the greatest term of channels; none if the least is greater."""
        rest = (self.indices << shift) - self.thresholds[:, channels] * multipliers
        before = rest + multipliers * (1 + self.early) - 1
        least = np.where(self.reached[:, channels], rest, -_NEVER).max(axis=0, initial=-_NEVER)
        most = np.where(self.avoided[:, channels], before, _NEVER).min(axis=0, initial=_NEVER)
        return least, most

    def _find_slopes(self) -> Array:
        """Return the slope with the widest interval of terms per channel, in indices."""
        low, high = self._narrow(*self._bound_slopes(), _FIRST_ROUNDS)
        tightest = self._find_tightest(low, high)
        few = tightest.sum(axis=0) <= _FEW
        order = np.argsort(~tightest[:, few], axis=0, kind="stable")[:_FEW]
        everything = np.broadcast_to(self.indices - 1, tightest.shape)[:, ~few]
        for channels, rows in ((few, order), (~few, everything)):
            steps = self._select(channels, rows)
            low[channels], high[channels] = steps._narrow(
                low[channels], high[channels], _ROUNDS - _FIRST_ROUNDS
            )
        return np.asarray((low + high) / 2)

    def _narrow(self, low: Array, high: Array, rounds: int) -> tuple[Array, Array]:
        """Return bounds of the slopes after rounds of golden-section search."""
        for _ in range(rounds):
            inner = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
            left = self._measure_width(inner[0]) >= self._measure_width(inner[1])
            low, high = np.where(left, low, inner[0]), np.where(left, inner[1], high)
        return low, high

    def _find_tightest(self, low: Array, high: Array) -> Array:
        """Return which inequalities can bound terms for slopes of an interval.

        Both bounds are linear in the slope, so those are useless that the tightest one at the
        middle exceeds at both ends.
        """
        tightest = np.zeros(self.thresholds.shape, bool)
        middle = self._bound_each((low + high) / 2)
        first, last = middle[0].argmax(axis=0)[None], middle[1].argmin(axis=0)[None]
        rounding = _ROUNDING * (len(tightest) + np.abs(high * self.thresholds).max(axis=0))
        for least, most in (self._bound_each(low), self._bound_each(high)):
            tightest |= self.reached & (least >= np.take_along_axis(least, first, 0) - rounding)
            tightest |= self.avoided & (most <= np.take_along_axis(most, last, 0) + rounding)
        return tightest

    def _select(self, channels: Array, rows: Array) -> "_Steps":
        """Return rows of some channels, which are those of a column each."""
        return _Steps(
            np.take_along_axis(self.thresholds[:, channels], rows, 0),
            rows + 1,
            self.early,
            np.take_along_axis(self.reached[:, channels], rows, 0),
            np.take_along_axis(self.avoided[:, channels], rows, 0),
        )

    def _measure_width(self, slopes: Array) -> Array:
        least, most = self._bound_each(slopes)
        return np.asarray(most.min(axis=0, initial=np.inf) - least.max(axis=0, initial=-np.inf))

    def _bound_each(self, slopes: Array) -> tuple[Array, Array]:
        """Return the least and the greatest term, in indices, of every inequality alone."""
        rest = self.indices - slopes * self.thresholds
        before = rest + slopes * (1 + self.early)
        return np.where(self.reached, rest, -np.inf), np.where(self.avoided, before, np.inf)

    def _bound_slopes(self) -> tuple[Array, Array]:
        """Return bounds of the slopes by the outermost steps; 0 where there are none."""
        both = self.reached & self.avoided
        columns = np.arange(both.shape[1])
        first, last = both.argmax(axis=0), len(both) - 1 - both[::-1].argmax(axis=0)
        span = self.thresholds[last, columns] - self.thresholds[first, columns]
        slack = 1 + self.early
        low = (last - first) / (span + slack)
        steep = (last - first) / np.maximum(span - slack, 1)
        some = both.any(axis=0)
        high = np.where(span > slack, steep, len(both))
        return np.where(some, low, 0.0), np.where(some, high, 0.0)


def _choose_terms(least: Array, most: Array) -> Array:
    """Return the middle of each interval, or its only bound."""
    bounded_below, bounded_above = least > -_NEVER, most < _NEVER
    low = np.where(bounded_below, least, np.where(bounded_above, most, 0))
    high = np.where(bounded_above, most, low)
    return np.asarray(low + (high - low) // 2)
