# SPDX-License-Identifier: Apache-2.0
"""What is kept of the values of a tensor: in one pass, in bounded memory, and to be merged.

Counts are integers and extremes do not depend on order, so that any split of the data, merged in
any order, gives the same bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array

# The sign, the exponent and the first bits of the fraction of a float32: 64 bins per octave.
_FRACTION_BITS = 6
_SHIFT = 23 - _FRACTION_BITS
BINS = 1 << (32 - _SHIFT)
# Values that are counted at a time, at most and at least: counting takes eight bytes for each, and
# looks at every bin.
_TOGETHER, _FEWEST = 2**20, BINS
# Small arrays that wait to be counted, at most: each takes some hundred bytes.
_MOST_WAITING = 1024


@dataclass
class Statistics:
    """The values of one tensor.

    Attributes:
        name: The tensor's, for messages.
        axis: The axis of its channels, from the end; None if nobody asks for them.
        count: How many values there were.
        lowest, highest: The extremes.
        channels: The extremes per channel, two rows of them; None until there are some.
    """

    name: str
    axis: int | None = None
    count: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    channels: Array | None = None
    _counted: Array = field(default_factory=lambda: np.zeros(BINS, np.int64), repr=False)
    _waiting: list[Array] = field(default_factory=list, repr=False)
    _waiting_values: int = field(default=0, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to others: few bins have values."""
        bins = np.flatnonzero(self.counts)
        return vars(self) | {"_counted": (bins.astype(np.uint16), self.counts[bins])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        bins, counts = state["_counted"]
        vars(self).update(state, _counted=np.zeros(BINS, np.int64))
        self._counted[bins] = counts

    @property
    def counts(self) -> Array:
        """How many values fell into each bin of the float32 numbers."""
        self._count()
        return self._counted

    def _count(self) -> None:
        if self._waiting:
            self._counted += np.bincount(np.concatenate(self._waiting), minlength=BINS)
            self._waiting.clear()
            self._waiting_values = 0

    def add(self, array: Array) -> float:
        """Count the values of an array, and give their largest magnitude.

        Raises:
            ModelError: NaN or infinity, which no range holds.
        """
        if not array.size:
            return 0.0
        channels = self._channels_of(array)
        ends = array if channels is None else channels
        low, high = float(np.float32(ends.min())), float(np.float32(ends.max()))
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ModelError(
                f"{self.name!r} holds NaN or infinity for these data: keep its layers as floats "
                "(--keep), or leave those data out"
            )
        self.count += array.size
        self.lowest, self.highest = min(self.lowest, low), max(self.highest, high)
        flat = np.ascontiguousarray(array, np.float32).ravel()
        for start in range(0, flat.size, _TOGETHER):
            bits = flat[start : start + _TOGETHER].view(np.uint32)
            self._waiting.append(bits >> _SHIFT)
            self._waiting_values += bits.size
            if self._waiting_values >= _FEWEST or len(self._waiting) >= _MOST_WAITING:
                self._count()
        if channels is not None:
            self._widen(channels)
        return max(abs(low), abs(high))

    def _channels_of(self, array: Array) -> Array | None:
        """The extremes per channel; None if nobody asks for them."""
        if self.axis is None:
            return None
        axis = self.axis + array.ndim if self.axis < 0 else self.axis
        others = tuple(each for each in range(array.ndim) if each != axis)
        return np.array([array.min(axis=others), array.max(axis=others)])

    def merge(self, other: "Statistics") -> None:
        """Count what another has counted."""
        self.count += other.count
        self._count()
        self._counted += other.counts
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        if other.channels is not None:
            self._widen(other.channels)

    def _widen(self, channels: Array) -> None:
        mine = channels if self.channels is None else self.channels
        self.channels = np.array(
            [np.minimum(mine[0], channels[0]), np.maximum(mine[1], channels[1])]
        )

    @property
    def per_channel(self) -> float:
        """How many values there were of each channel; of all where nobody asks for channels."""
        return self.count / (1 if self.channels is None else self.channels.shape[1])

    def quantiles(self, *shares: float) -> Iterator[tuple[float, float]]:
        """For each share the range that leaves out so many of the values, at each end; by whole
        bins."""
        order = _ascending()
        below = np.cumsum(self.counts[order])
        total = self.count
        for share in shares:
            most = int(share * total)
            first = int(np.searchsorted(below, most, side="right"))
            last = int(np.searchsorted(below, total - most, side="left"))
            low, high = _edges(order[[first, min(last, len(order) - 1)]])
            yield max(self.lowest, float(low.min())), min(self.highest, float(high.max()))

    def cumulated(self) -> tuple[Array, Array]:
        """Ascending bounds, and how many of the values lie below each, as even in bins."""
        order = _ascending()
        order = order[self.counts[order] > 0]
        low, high = (np.clip(each, self.lowest, self.highest) for each in _edges(order))
        above = np.cumsum(self.counts[order])
        bounds = np.stack([low, high], axis=1).ravel().astype(np.float64)
        below = np.stack([above - self.counts[order], above], axis=1).ravel()
        return bounds, below


@cache
def _ascending() -> Array:
    """The bins in the order of their values: the negative ones backwards."""
    half = BINS // 2
    return np.concatenate([np.arange(BINS - 1, half - 1, -1), np.arange(half)])


def _edges(bins: Array) -> tuple[Array, Array]:
    """The least and the largest value of bins."""
    first = (bins.astype(np.uint32) << _SHIFT).view(np.float32)
    last = ((bins.astype(np.uint32) << _SHIFT) | np.uint32((1 << _SHIFT) - 1)).view(np.float32)
    return np.minimum(first, last), np.maximum(first, last)
