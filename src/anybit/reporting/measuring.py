# SPDX-License-Identifier: Apache-2.0
"""What a quantizer does to values that are shown to it, in bounded memory."""

import math

import numpy as np

from anybit.formats import LARGEST_FLOAT32
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Coding, Grid, IntegerGrid
from anybit.quantization.statistics import Statistics
from anybit.reporting.facts import Histogram, Tensor

_BINS = 64
_MOST_VALUES = 64
_MOST_COLUMNS = 32


class Gauge:
    """Adds up what becomes of a tensor.

    Args:
        name, role: As of `Tensor`.
        grid: That of its quantizer, with scales that broadcast to it.
        axis: That of its channels; None if they are not known.
    """

    def __init__(self, name: str, role: str, grid: Grid, axis: int | None) -> None:
        self._name, self._role, self._grid, self._axis = name, role, grid, axis
        self._in_steps = grid.scale.size > 1
        self._statistics = Statistics(name)
        self._reach: Array | None = None
        self._beyond = 0
        self._signal = self._noise = 0.0

    def add(self, x: Array, y: Array | None) -> None:
        """Count the values of a tensor before and behind its quantizer; y is None if not known.

        What holds NaN or infinity, be it in steps, is passed over: there is no room for it.
        """
        counted = _in_steps(x, self._grid) if self._in_steps else x
        if not x.size or not np.isfinite(counted).all():
            return
        self._statistics.add(counted)
        low, high = self._limits()
        self._beyond += int(np.count_nonzero((counted < low) | (counted > high)))
        if y is not None:
            self._signal += float(np.square(x, dtype=np.float64).sum())
            difference = np.subtract(x, y, dtype=np.float64)
            self._noise += float(np.square(difference).sum())
        if self._axis is not None and -x.ndim <= self._axis < x.ndim:
            axis = self._axis % x.ndim
            reach = np.abs(x).max(axis=tuple(each for each in range(x.ndim) if each != axis))
            known = reach if self._reach is None else self._reach
            self._reach = np.maximum(known, reach) if known.shape == reach.shape else None

    def tensor(self) -> Tensor:
        """What was seen."""
        grid, seen = self._grid, self._statistics.count > 0
        low, high = self._ends()
        has_ends = not (isinstance(grid, IntegerGrid) and grid.coding is Coding.SIGN)
        noise = self._noise / self._signal if self._signal else 0.0
        reach = np.zeros(0) if self._reach is None else self._reach
        return Tensor(
            name=self._name,
            role=self._role,
            kind=kind_of(grid),
            scales=grid.scale.size,
            in_steps=self._in_steps,
            lowest=low,
            highest=high,
            values=self._values(),
            histogram=histogram(self._statistics) if seen else None,
            clipped=self._beyond / self._statistics.count if seen and has_ends else None,
            sqnr=-10 * math.log10(noise) if noise else None,
            reach=_columns(reach),
            channels=reach.size,
            alone=_alone(reach),
        )

    def _codes(self) -> Array:
        """The ends of the grid in steps."""
        grid = self._grid
        if isinstance(grid, IntegerGrid):
            return np.array([grid.lowest, grid.highest], np.float64)
        return np.array([-grid.format.largest, grid.format.largest])

    def _shown(self, steps: Array) -> Array:
        if self._in_steps:
            return steps
        zero = float(np.ravel(self._grid.zeropt)[0]) if self._grid.zeropt.size else 0.0
        return (steps - zero) * float(np.ravel(self._grid.scale)[0])

    def _ends(self) -> tuple[float, float]:
        if not self._in_steps:
            return self._grid.ends
        low, high = self._codes().tolist()
        return low, high

    def _limits(self) -> tuple[float, float]:
        """What is beyond them is rounded by more than half a step. Float32 holds them."""
        ends = self._codes()
        grid = self._grid
        if isinstance(grid, IntegerGrid):
            slack = 0.5
        else:
            slack = ends[1] * 2.0 ** -(grid.format.mantissa_bitwidth + 2)
        limits = self._shown(ends + np.array([-slack, slack]))
        low, high = sorted(np.clip(limits, -LARGEST_FLOAT32, LARGEST_FLOAT32).tolist())
        return low, high

    def _values(self) -> tuple[float, ...]:
        grid = self._grid
        if grid.bits > math.log2(_MOST_VALUES):
            return ()
        steps = np.array(grid.codes) if isinstance(grid, IntegerGrid) else grid.format.values()
        return tuple(sorted(self._shown(steps.astype(np.float64)).tolist()))


def kind_of(grid: Grid) -> str:
    """A grid in words."""
    if not isinstance(grid, IntegerGrid):
        return str(grid.format)
    if grid.coding is Coding.SIGN:
        return "bipolar"
    if grid.codes == range(-1, 2):
        return "ternary"
    return f"{'int' if grid.lowest < 0 else 'uint'}{grid.bits}"


def histogram(statistics: Statistics) -> Histogram:
    """Even bins over the range that was seen; those of the statistics are spread over them."""
    low, high = statistics.lowest, statistics.highest
    if low == high:
        return Histogram(low, high, (statistics.count,))
    bounds, below = statistics.cumulated()
    edges = np.linspace(low, high, _BINS + 1)
    inner = np.rint(np.interp(edges[1:-1], bounds, below))
    counts = np.diff(np.concatenate([[0], inner, [statistics.count]]).astype(np.int64))
    return Histogram(low, high, tuple(counts.tolist()))


def _in_steps(x: Array, grid: Grid) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x / grid.scale + grid.zeropt, np.float32)


def _columns(reach: Array) -> tuple[float, ...]:
    if reach.size <= _MOST_COLUMNS:
        return tuple(map(float, reach))
    starts = np.linspace(0, reach.size, _MOST_COLUMNS, endpoint=False).astype(np.int64)
    return tuple(map(float, np.maximum.reduceat(reach, starts)))


def _alone(reach: Array) -> tuple[int, float] | None:
    if reach.size < 2 or not reach.max() > 0:
        return None
    first, second = np.argsort(-reach, kind="stable")[:2]
    if not reach[second]:
        return None
    return int(first), 1 - float(reach[second] / reach[first])
