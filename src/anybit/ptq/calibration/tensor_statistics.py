# SPDX-License-Identifier: Apache-2.0
"""Histogram and extremes of a tensor: one pass, bounded memory, mergeable.

Counts are integers and extremes do not depend on order, so that any split of the data, merged in
any order, gives the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from anybit._native import count_values
from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array

# The sign, the exponent and the first bits of the fraction of a float32: 64 bins per octave.
_FRACTION_BITS = 6
_SHIFT = 23 - _FRACTION_BITS
BINS = 1 << (32 - _SHIFT)


@dataclass
class TensorStatistics:
    """The values of one tensor.

    Attributes:
        name: The tensor's, for messages.
        axis: The axis of its channels, from the end; None without statistics of channels.
        count: The number of values.
        lowest, highest: The extremes.
        channels: The extremes per channel, two rows of them; None until there are some.
        counts: The number of values in each bin of the float32 numbers.
    """

    name: str
    axis: int | None = None
    count: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    channels: Array | None = None
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64), repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return a compact state: few bins have values."""
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
        return add_arrays([self], [array])[0]

    def find_channel_axis(self, array: Array) -> int | None:
        """Return the channel axis of an array; None without statistics of channels."""
        return None if self.axis is None else self.axis % array.ndim

    def merge(self, other: "TensorStatistics") -> None:
        """Count what another has counted.

        Raises:
            ModelError: That had other numbers of channels.
        """
        self.count += other.count
        self.counts += other.counts
        self.lowest = min(self.lowest, other.lowest)
        self.highest = max(self.highest, other.highest)
        if other.channels is not None:
            mine, theirs = self.channels, other.channels
            self.channels = (
                theirs.copy() if mine is None else _merge_extremes(self.name, mine, theirs)
            )

    @property
    def values_per_channel(self) -> float:
        """The number of values per channel; of all values without statistics of channels."""
        return self.count / (1 if self.channels is None else self.channels.shape[1])

    def compute_cumulative_counts(self) -> tuple[Array, Array]:
        """Ascending bounds, and how many of the values lie below each, as even in bins."""
        order = _order_bins()
        order = order[self.counts[order] > 0]
        low, high = (np.clip(edge, self.lowest, self.highest) for edge in _compute_edges(order))
        above = np.cumsum(self.counts[order])
        bounds = np.stack([low, high], axis=1).ravel().astype(np.float64)
        below = np.stack([above - self.counts[order], above], axis=1).ravel()
        return bounds, below


def add_arrays(statistics: Sequence[TensorStatistics], arrays: Sequence[Array]) -> list[float]:
    """Count the values of an array for each of several tensors, and give the largest magnitudes.

    All are counted in one call, without the interpreter's lock: many short ones of several threads
    would wait for one another.

    Raises:
        ModelError: NaN or infinity, which no range holds; other numbers of channels than before.
    """
    plain = [_to_float32(array) for array in arrays]
    axes = [
        tensor.find_channel_axis(array) for tensor, array in zip(statistics, plain, strict=True)
    ]
    channels = [
        _get_extremes(tensor, array.shape[axis]) if axis is not None and array.size else None
        for tensor, array, axis in zip(statistics, plain, axes, strict=True)
    ]
    axes = [None if room is None else axis for axis, room in zip(axes, channels, strict=True)]
    extremes = count_values(plain, axes, [tensor.counts for tensor in statistics], channels)
    reaches = []
    for tensor, array, room, (low, high) in zip(statistics, plain, channels, extremes, strict=True):
        if array.size:
            if not low <= high:
                raise ModelError(
                    f"{tensor.name!r} holds NaN or infinity for these data: keep its layers as "
                    "floats (--keep), or leave those data out"
                )
            tensor.count += array.size
            tensor.lowest, tensor.highest = min(tensor.lowest, low), max(tensor.highest, high)
            tensor.channels = room
        reaches.append(max(abs(low), abs(high)) if array.size else 0.0)
    return reaches


def _to_float32(array: Array) -> Array:
    """Convert to contiguous float32."""
    with np.errstate(over="ignore"):  # infinity, then, which is refused
        return np.ascontiguousarray(array, np.float32)


def _get_extremes(statistics: TensorStatistics, channels: int) -> Array:
    """Return the extremes of channels so far."""
    extremes = statistics.channels
    if extremes is None:
        return np.repeat(np.array([[np.inf], [-np.inf]], np.float32), channels, axis=1)
    _check_channels(statistics.name, extremes.shape[1], channels)
    return extremes


def _check_channels(name: str, one: int, other: int) -> None:
    if one != other:
        raise ModelError(
            f"{name!r} has {one} channels in one sample and {other} in another: keep its layers as "
            "floats (--keep), or leave those data out"
        )


def _merge_extremes(name: str, mine: Array, theirs: Array) -> Array:
    _check_channels(name, mine.shape[1], theirs.shape[1])
    return np.array([np.minimum(mine[0], theirs[0]), np.maximum(mine[1], theirs[1])])


@cache
def _order_bins() -> Array:
    """Return the bins in the order of their values: the negative ones backwards."""
    half = BINS // 2
    return np.concatenate([np.arange(BINS - 1, half - 1, -1), np.arange(half)])


def _compute_edges(bins: Array) -> tuple[Array, Array]:
    """Return the least and the largest value of bins."""
    first = (bins.astype(np.uint32) << _SHIFT).view(np.float32)
    last = ((bins.astype(np.uint32) << _SHIFT) | np.uint32((1 << _SHIFT) - 1)).view(np.float32)
    return np.minimum(first, last), np.maximum(first, last)
