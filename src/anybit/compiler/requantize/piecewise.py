# SPDX-License-Identifier: Apache-2.0
"""Functions of accumulators that are not monotonic, as piecewise constant functions.

An interval of accumulators on which the bounds of the function have one index is done. Others are
divided, down to a few accumulators, on which the function is evaluated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from anybit.compiler.partition.element_functions import ElementFunction
from anybit.compiler.partition.expressions import Accumulators, IntegerRange
from anybit.compiler.reason import Unsupported
from anybit.compiler.requantize.interval_arithmetic import Enclosure
from anybit.compiler.requantize.step_function import Index, StepFunction, iterate_samples
from anybit.onnx.graph.constants import Array

_MOST_EVALUATIONS = 2**24
"""Most intervals and accumulators at which a function is evaluated, in all channels together."""

_MOST_FOR_RISKS = 2**18
"""The same for the search of accumulators at risk."""

_FEW = 16
"""Intervals of at most this many accumulators are evaluated one by one."""

_FIRST_PARTS, _PARTS = 64, 8
"""Numbers of parts of the reach, and of an interval that is divided."""

_BLOCK = 2**18

_SAMPLED = 4
"""One of this many steps is compared with the function, although it is proven."""

_BUCKET_BITS = 11
"""Kernels have at most this power of two of buckets before, and after, the lowest index."""

_MOST_DISTANCE = 2**23 - 1
"""Most accumulators that kernels divide into these buckets."""

_LARGEST = 2**31 - 1

_MOST_SEARCHED = 64
"""One of this many buckets may need a search."""


@dataclass(frozen=True, eq=False)
class _Intervals:
    """Intervals of accumulators, sorted by their channels.

    Attributes:
        channel: The channel of each interval.
        first, last: The accumulators at its ends.
    """

    channel: Array
    first: Array
    last: Array

    @classmethod
    def covering(cls, reach: IntegerRange) -> "_Intervals":
        return cls(np.arange(reach.lowest.size), reach.lowest, reach.highest).divided(_FIRST_PARTS)

    def __len__(self) -> int:
        return self.channel.size

    def where(self, mask: Array) -> "_Intervals":
        return _Intervals(self.channel[mask], self.first[mask], self.last[mask])

    def divided(self, count: int) -> "_Intervals":
        """Return the parts of the intervals, `count` of each or fewer."""
        length = (self.last - self.first + 1)[:, None]
        ends = self.first[:, None] + length * np.arange(count + 1) // count
        parts = _Intervals(
            np.repeat(self.channel, count), ends[:, :-1].ravel(), ends[:, 1:].ravel() - 1
        )
        return parts.where(parts.first <= parts.last)

    def points(self) -> "_Intervals":
        """Return the accumulators of short intervals as intervals of their own."""
        return self.divided(int((self.last - self.first).max(initial=0)) + 1)


@dataclass(frozen=True, eq=False)
class PiecewiseConstant:
    """A piecewise constant function per channel.

    Attributes:
        channels: Number of channels.
        channel, first: The channel of each piece, ascending, and its first accumulator.
        index: The index on the piece.
    """

    channels: int
    channel: Array
    first: Array
    index: Array

    @property
    def counts(self) -> Array:
        """The number of pieces of each channel."""
        return np.bincount(self.channel, minlength=self.channels)

    def rows(self) -> tuple[Array, Array]:
        """Return starts after the first piece, and indices, channels x pieces.

        The last piece of a channel with fewer pieces than others is repeated.
        """
        counts = self.counts
        begins = np.cumsum(counts) - counts
        piece = np.arange(counts.max())
        at = begins[:, None] + np.minimum(piece, counts[:, None] - 1)
        return self.first[at[:, 1:]], self.index[at]

    @property
    def is_fast(self) -> bool:
        """True if kernels look most accumulators up.

        They divide the reach before, and after, the lowest index into buckets, and search the
        pieces where a bucket has several steps, or one that is not 1 away from the lowest index.
        """
        ends = np.cumsum(self.counts).tolist()
        return all(
            _is_fast(self.first[start:end], self.index[start:end])
            for start, end in zip([0, *ends], ends, strict=False)
        )

    def __call__(self, points: Array) -> Array:
        """Return the indices of points x channels."""
        starts, index = self.rows()
        result = np.empty(points.shape, np.int64)
        for channel, own in enumerate(starts):
            result[:, channel] = index[channel][np.searchsorted(own, points[:, channel], "right")]
        return result

    def find_steps(self, levels: int, reach: IntegerRange) -> StepFunction | None:
        """Return the function as steps; None if it is not monotonic in some channel."""
        change = np.diff(self.index) * (np.diff(self.channel) == 0)
        rises, falls = (
            np.bincount(self.channel[1:][mask], minlength=self.channels) > 0
            for mask in (change > 0, change < 0)
        )
        if np.any(rises & falls):
            return None
        targets = np.arange(1, levels)
        thresholds = np.empty((levels - 1, self.channels), np.int64)
        for channel, falling in enumerate(falls):
            own = self.channel == channel
            first, index = self.first[own], self.index[own]
            if falling:  # the negated last accumulator of each piece
                first = 1 - np.append(first[1:], reach.highest[channel] + 1)[::-1]
                index = index[::-1]
            never = reach.highest[channel] + 1 if not falling else 1 - reach.lowest[channel]
            at = np.searchsorted(index, targets)
            thresholds[:, channel] = np.append(first, never)[at]
        return StepFunction(np.where(falls, -1, 1), thresholds)


class IndexBounds:
    """Bounds of the index of a function on intervals of accumulators.

    Attributes:
        sums: The accumulators.

    Raises:
        Unsupported: The nodes of the function have no known bounds.
    """

    def __init__(self, function: ElementFunction, index: Index, sums: Accumulators) -> None:
        self._function, self._index, self.sums = function, index, sums
        self._enclose = Enclosure(function)
        self._most = self._left = 0

    def limit(self, most: int) -> None:
        """Allow this many evaluations from now on."""
        self._most = self._left = most

    def evaluate(self, points: Array) -> Array:
        """Return the indices of points x channels."""
        return self._index(self._function(self.sums.values(points)))

    def index(self, at: _Intervals) -> Array:
        """Return the index at the first accumulators."""
        if not len(at):
            return np.zeros(0, np.int64)
        return self._per_channel(lambda first, _: (self.evaluate(first),), at)[0]

    def is_same(self, at: _Intervals, *, risks: bool) -> tuple[Array, Array]:
        """Return whether an interval has one index, and that.

        Args:
            at: The intervals.
            risks: Whether the sums may have their largest errors.
        """

        def bound(first: Array, last: Array) -> tuple[Array, ...]:
            get = self.sums.bounds if risks else lambda points: (self.sums.values(points),)
            ends = *get(first), *get(last)
            results = self._enclose(reduce(np.minimum, ends), reduce(np.maximum, ends))
            low, high = self._index(results.low), self._index(results.high)
            return (low == high) & results.valid, low

        if not len(at):
            return np.zeros(0, bool), np.zeros(0, np.int64)
        same, index = self._per_channel(bound, at)
        return same.astype(bool), index

    def _per_channel(
        self, function: Callable[[Array, Array], tuple[Array, ...]], at: _Intervals
    ) -> list[Array]:
        """Return the results of a function of points x channels, interval by interval."""
        self._left -= len(at)
        if self._left < 0:
            raise Unsupported(
                "its epilogue is not monotonic: codes of all accumulators need more than "
                f"{self._most} evaluations; quantize with --integer-only"
            )
        channels = self.sums.scales.size
        counts = np.bincount(at.channel, minlength=channels)
        row = np.arange(len(at)) - (np.cumsum(counts) - counts)[at.channel]
        first, last = (
            np.broadcast_to(self.sums.reach.lowest, (counts.max(initial=0), channels)).copy()
            for _ in range(2)
        )
        first[row, at.channel], last[row, at.channel] = at.first, at.last
        size = max(1, _BLOCK // channels)
        parts = [
            function(first[start : start + size], last[start : start + size])
            for start in range(0, len(first), size)
        ]
        return [np.concatenate(arrays)[row, at.channel] for arrays in zip(*parts, strict=True)]


def _is_fast(first: Array, index: Array) -> bool:
    """Return whether kernels look most accumulators of a channel up, by its pieces."""
    if len(first) == 1:
        return True
    # The first piece has no start. The last one is the lowest if no other is as low.
    length = np.concatenate([[_LARGEST], np.diff(first[1:]), [0]])
    lowest = np.flatnonzero(index == index.min())
    pivot = min(lowest[np.argmax(length[lowest])] + 1, len(first) - 1)
    before, after = first[pivot] - first[1:pivot], first[pivot + 1 :] - first[pivot]
    steps = np.diff(index)
    return _has_few_searched(before[::-1], -steps[: pivot - 1][::-1]) and _has_few_searched(
        after, steps[pivot:]
    )


def _has_few_searched(distance: Array, step: Array) -> bool:
    """Return whether few of the buckets of a side need a search, by its steps."""
    end = int(distance[-1]) if len(distance) else 0
    shift = max(end.bit_length() - _BUCKET_BITS, 0)
    bucket = distance >> shift
    changed, counts = np.unique(bucket, return_counts=True)
    is_plain = (step == 1) | (bucket << shift == distance)
    searched = np.union1d(changed[counts > 1], bucket[~is_plain])
    return end <= _MOST_DISTANCE and len(searched) * _MOST_SEARCHED <= end >> shift


def find_pieces(bounds: IndexBounds) -> PiecewiseConstant:
    """Return a function of accumulators as a piecewise constant function.

    Raises:
        Unsupported: It has too many pieces.
    """
    sums = bounds.sums
    bounds.limit(_MOST_EVALUATIONS)
    at = _Intervals.covering(sums.reach)
    done: list[tuple[_Intervals, Array]] = []
    while len(at):
        same, own = bounds.is_same(at, risks=False)
        done.append((at.where(same), own[same]))
        short = ~same & (at.last - at.first < _FEW)
        if short.any():
            points = at.where(short).points()
            done.append((points, bounds.index(points)))
        at = at.where(~same & ~short).divided(_PARTS)
    pieces = _join(done, sums.scales.size)
    # The proof does not cover errors in this code: a sample is compared all the same.
    for sample in iterate_samples(pieces.rows()[0].T[::_SAMPLED], sums.reach):
        if not np.array_equal(pieces(sample), bounds.evaluate(sample)):
            raise Unsupported("its results are not within their bounds")
    return pieces


def _join(done: list[tuple[_Intervals, Array]], channels: int) -> PiecewiseConstant:
    """Join adjacent intervals of the same index."""
    channel = np.concatenate([at.channel for at, _ in done])
    first = np.concatenate([at.first for at, _ in done])
    index = np.concatenate([own for _, own in done])
    order = np.argsort(_join_keys(channel, first), kind="stable")
    channel, first, index = channel[order], first[order], index[order]
    starts = np.ones(len(channel), bool)
    starts[1:] = (np.diff(channel) != 0) | (np.diff(index) != 0)
    return PiecewiseConstant(channels, channel[starts], first[starts], index[starts])


def _join_keys(channel: Array, point: Array) -> Array:
    """Return integers in the order of channels, then of accumulators."""
    return (channel << 33) + point


def find_risks_of_pieces(
    bounds: IndexBounds, pieces: PiecewiseConstant, most: int
) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Return pairs of channel and accumulator at risk, and whether there may be more.

    At risk is an accumulator whose bounds, widened by the largest error of the sum, have several
    indices. If there are more than `most` next to steps alone, only the two nearest to each step
    are tested.
    """
    sums = bounds.sums
    exact = sums.slack <= 0
    if exact.all():
        return (), False
    with np.errstate(all="ignore"):
        around = pieces.counts * np.where(exact, 0, sums.slack / np.abs(sums.scales)) * 2
    more = not around.sum() <= most
    if not more:
        bounds.limit(_MOST_FOR_RISKS)
        try:
            at = _search_risks(bounds, ~exact)
        except Unsupported:
            more = True
    if more:
        at = _test_neighbors(bounds, pieces, ~exact)
    more |= len(at) > most
    order = np.argsort(_join_keys(at.channel, at.first))[:most]
    return tuple(zip(at.channel[order].tolist(), at.first[order].tolist(), strict=True)), more


def _search_risks(bounds: IndexBounds, tested: Array) -> _Intervals:
    """Return all accumulators at risk in the tested channels."""
    at = _Intervals.covering(bounds.sums.reach)
    at = at.where(tested[at.channel])
    while len(at) and (at.last > at.first).any():
        at = at.where(~bounds.is_same(at, risks=True)[0]).divided(_PARTS)
    return at.where(~bounds.is_same(at, risks=True)[0])


def _test_neighbors(bounds: IndexBounds, pieces: PiecewiseConstant, tested: Array) -> _Intervals:
    """Return the accumulators at risk among both neighbors of each step."""
    keys = _join_keys(pieces.channel, pieces.first)
    keys = np.unique(np.concatenate([keys, keys - 1]))
    channel = keys + 2**32 >> 33
    point = keys - (channel << 33)
    inside = (point >= bounds.sums.reach.lowest[channel]) & tested[channel]
    at = _Intervals(channel[inside], point[inside], point[inside])
    bounds.limit(len(at))
    return at.where(~bounds.is_same(at, risks=True)[0])
