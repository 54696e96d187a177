# SPDX-License-Identifier: Apache-2.0
"""What is kept of the values of a tensor: in one pass, in bounded memory, and to be merged.

Counts are integers and extremes do not depend on order, so that any split of the data, merged in
any order, gives the same bits.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array

# The sign, the exponent and the first bits of the fraction of a float32: 64 bins per octave.
_FRACTION_BITS = 6
_SHIFT = 23 - _FRACTION_BITS
BINS = 1 << (32 - _SHIFT)
# Values that are counted at a time: their bins take twice as many bytes.
_TOGETHER = 2**20


@dataclass
class Statistics:
    """The values of one tensor.

    Attributes:
        name: The tensor's, for messages.
        axis: The axis of its channels, from the end; None if nobody asks for them.
        counts: How many values fell into each bin of the float32 numbers.
        lowest, highest: The extremes.
        channels: The extremes per channel, two rows of them; None until there are some.
    """

    name: str
    axis: int | None = None
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64), repr=False)
    lowest: float = np.inf
    highest: float = -np.inf
    channels: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to others: few bins have values."""
        bins = np.flatnonzero(self.counts)
        return vars(self) | {"counts": (bins.astype(np.uint16), self.counts[bins])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        bins, counts = state["counts"]
        vars(self).update(state, counts=np.zeros(BINS, np.int64))
        self.counts[bins] = counts

    def add(self, array: Array) -> float:
        """Count the values of an array, and give their largest magnitude.

        Raises:
            ModelError: NaN or infinity, which no range holds.
        """
        if not array.size:
            return 0.0
        flat = np.ascontiguousarray(array, np.float32).ravel()
        low, high = float(flat.min()), float(flat.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ModelError(
                f"{self.name!r} holds NaN or infinity for these data: keep its layers as floats "
                "(--keep), or leave those data out"
            )
        self.lowest, self.highest = min(self.lowest, low), max(self.highest, high)
        for start in range(0, flat.size, _TOGETHER):
            bits = flat[start : start + _TOGETHER].view(np.uint32)
            self.counts += np.bincount(bits >> _SHIFT, minlength=BINS)
        if self.axis is not None:
            axis = self.axis + array.ndim if self.axis < 0 else self.axis
            others = tuple(each for each in range(array.ndim) if each != axis)
            self._widen(np.stack([array.min(axis=others), array.max(axis=others)]))
        return max(abs(low), abs(high))

    def merge(self, other: "Statistics") -> None:
        """Count what another has counted."""
        self.counts = self.counts + other.counts
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        if other.channels is not None:
            self._widen(other.channels)

    def _widen(self, channels: Array) -> None:
        mine = channels if self.channels is None else self.channels
        self.channels = np.stack(
            [np.minimum(mine[0], channels[0]), np.maximum(mine[1], channels[1])]
        )

    @property
    def count(self) -> int:
        """How many values there were."""
        return int(self.counts.sum())

    @property
    def per_channel(self) -> float:
        """How many values there were of each channel; of all where nobody asks for channels."""
        return self.count / (1 if self.channels is None else self.channels.shape[1])

    def quantiles(self, share: float) -> tuple[float, float]:
        """The range that leaves out so many of the values, at each end; by whole bins."""
        order = _ascending()
        counts = self.counts[order]
        total = int(counts.sum())
        below = np.cumsum(counts)
        most = int(share * total)
        first = int(np.searchsorted(below, most, side="right"))
        last = int(np.searchsorted(below, total - most, side="left"))
        low, high = _edges(order[[first, min(last, len(order) - 1)]])
        return max(self.lowest, float(low.min())), min(self.highest, float(high.max()))

    def cumulated(self) -> tuple[Array, Array]:
        """Ascending bounds, and how many of the values lie below each, as even in bins."""
        order = _ascending()
        order = order[self.counts[order] > 0]
        low, high = (np.clip(each, self.lowest, self.highest) for each in _edges(order))
        above = np.cumsum(self.counts[order])
        bounds = np.stack([low, high], axis=1).ravel().astype(np.float64)
        below = np.stack([above - self.counts[order], above], axis=1).ravel()
        return bounds, below


def _ascending() -> Array:
    """The bins in the order of their values: the negative ones backwards."""
    half = BINS // 2
    return np.concatenate([np.arange(BINS - 1, half - 1, -1), np.arange(half)])


def _edges(bins: Array) -> tuple[Array, Array]:
    """The least and the largest value of bins."""
    first = (bins.astype(np.uint32) << _SHIFT).view(np.float32)
    last = ((bins.astype(np.uint32) << _SHIFT) | np.uint32((1 << _SHIFT) - 1)).view(np.float32)
    return np.minimum(first, last), np.maximum(first, last)
