# SPDX-License-Identifier: Apache-2.0
"""Statistics of a tensor and its quantizer, in bounded memory."""

import math

import numpy as np

from anybit.formats import LARGEST_FLOAT32
from anybit.inspection.factors import Factor
from anybit.inspection.model_report import Histogram, QuantizedTensor
from anybit.metrics.sqnr import noise_to_sqnr
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Coding, Grid, IntegerGrid
from anybit.ptq.calibration.tensor_statistics import TensorStatistics

_BINS = 64
_MAX_VALUES = 64
_MAX_COLUMNS = 32


class Gauge:
    """Accumulates values of a factor before and after its quantizer."""

    def __init__(self, factor: Factor) -> None:
        self._factor, self._grid = factor, factor.grid
        self._in_steps = factor.grid.scale.size > 1
        self._statistics = TensorStatistics(str(factor.x.name))
        self._channel_max: Array | None = None
        self._beyond = 0
        self._signal = self._noise = 0.0

    def add(self, x: Array, y: Array | None) -> None:
        """Add values before and after the quantizer (None if unknown).

        An array with NaN or infinity is skipped: no histogram holds these.
        """
        counted = _convert_to_steps(x, self._grid) if self._in_steps else x
        if not x.size or not np.isfinite(counted).all():
            return
        self._statistics.add(counted)
        low, high = self._limits()
        self._beyond += int(np.count_nonzero((counted < low) | (counted > high)))
        if y is not None:
            self._signal += float(np.square(x, dtype=np.float64).sum())
            difference = np.subtract(x, y, dtype=np.float64)
            self._noise += float(np.square(difference).sum())
        axis = self._factor.axis
        if axis is not None and -x.ndim <= axis < x.ndim:
            others = tuple(other for other in range(x.ndim) if other != axis % x.ndim)
            largest = np.abs(x).max(axis=others)
            old = largest if self._channel_max is None else self._channel_max
            self._channel_max = np.maximum(old, largest) if old.shape == largest.shape else None

    def tensor(self) -> QuantizedTensor:
        """Return the statistics."""
        grid, observed = self._grid, self._statistics.count > 0
        low, high = self._codes().tolist() if self._in_steps else grid.ends
        has_ends = not (isinstance(grid, IntegerGrid) and grid.coding is Coding.SIGN)
        noise = self._noise / self._signal if self._signal else 0.0
        largest = np.zeros(0) if self._channel_max is None else self._channel_max
        return QuantizedTensor(
            name=str(self._factor.x.name),
            role="weights" if self._factor.is_constant else "activations",
            kind=describe_format(grid),
            scales=self._factor.scales,
            in_steps=self._in_steps,
            lowest=low,
            highest=high,
            values=self._values(),
            histogram=interpolate_histogram(self._statistics) if observed else None,
            clipped=self._beyond / self._statistics.count if observed and has_ends else None,
            sqnr=noise_to_sqnr(noise) if noise else None,
            channel_max=_reduce_columns(largest),
            channels=largest.size,
            outlier=_find_outlier(largest),
        )

    def _codes(self) -> Array:
        """Return the ends of the grid in steps."""
        grid = self._grid
        if isinstance(grid, IntegerGrid):
            return np.array([grid.lowest, grid.highest], np.float64)
        return np.array([-grid.format.largest, grid.format.largest])

    def _decoded(self, steps: Array) -> Array:
        if self._in_steps:
            return steps
        zero = float(np.ravel(self._grid.zeropt)[0]) if self._grid.zeropt.size else 0.0
        return (steps - zero) * float(np.ravel(self._grid.scale)[0])

    def _limits(self) -> tuple[float, float]:
        """Return float32 limits beyond which rounding changes a value by more than half a step."""
        ends, grid = self._codes(), self._grid
        if isinstance(grid, IntegerGrid):
            slack = 0.5
        else:
            slack = ends[1] * 2.0 ** -(grid.format.mantissa_bitwidth + 2)
        limits = self._decoded(ends + np.array([-slack, slack]))
        low, high = sorted(np.clip(limits, -LARGEST_FLOAT32, LARGEST_FLOAT32).tolist())
        return low, high

    def _values(self) -> tuple[float, ...]:
        grid = self._grid
        if grid.bits > math.log2(_MAX_VALUES):
            return ()
        steps = np.array(grid.codes) if isinstance(grid, IntegerGrid) else grid.format.values()
        return tuple(sorted(self._decoded(steps.astype(np.float64)).tolist()))


def measure_weights(factor: Factor) -> QuantizedTensor:
    """Return the statistics of a constant factor.

    Raises:
        ModelError: The constant cannot be read.
    """
    gauge = Gauge(factor)
    gauge.add(*factor.values())
    return gauge.tensor()


def describe_format(grid: Grid) -> str:
    """Return the format of a grid: "uint8", "ternary"."""
    if not isinstance(grid, IntegerGrid):
        return str(grid.format)
    if grid.coding is Coding.SIGN:
        return "bipolar"
    if grid.codes == range(-1, 2):
        return "ternary"
    return f"{'int' if grid.lowest < 0 else 'uint'}{grid.bits}"


def interpolate_histogram(statistics: TensorStatistics) -> Histogram:
    """Return even bins over the observed range, interpolated from the bins of the statistics."""
    low, high = statistics.lowest, statistics.highest
    if low == high:
        return Histogram(low, high, (statistics.count,))
    bounds, below = statistics.compute_cumulative_counts()
    edges = np.linspace(low, high, _BINS + 1)
    inner = np.rint(np.interp(edges[1:-1], bounds, below))
    counts = np.diff(np.concatenate([[0], inner, [statistics.count]]).astype(np.int64))
    return Histogram(low, high, tuple(counts.tolist()))


def _convert_to_steps(x: Array, grid: Grid) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x / grid.scale + grid.zeropt, np.float32)


def _reduce_columns(largest: Array) -> tuple[float, ...]:
    if largest.size <= _MAX_COLUMNS:
        return tuple(map(float, largest))
    starts = np.linspace(0, largest.size, _MAX_COLUMNS, endpoint=False).astype(np.int64)
    return tuple(map(float, np.maximum.reduceat(largest, starts)))


def _find_outlier(largest: Array) -> tuple[int, float] | None:
    if largest.size < 2 or not largest.max() > 0:
        return None
    first, second = np.argsort(-largest, kind="stable")[:2]
    if not largest[second]:
        return None
    return int(first), 1 - float(largest[second] / largest[first])
