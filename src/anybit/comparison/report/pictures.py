# SPDX-License-Identifier: Apache-2.0
"""A histogram and a heat map of one pair of tensors."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from anybit.comparison.measure import subtract_arrays
from anybit.comparison.report.wording import number
from anybit.comparison.results import TensorDifference
from anybit.inspection import charts
from anybit.inspection.page import Figure
from anybit.onnx.graph.constants import Array
from anybit.text import format_count

_MAX_BARS = 41
_CELLS = (64, 128)
LEVELS = 5


@dataclass(frozen=True)
class Picture:
    """A tensor as a matrix, with descriptions of its row and column axes."""

    grid: Array
    down: str
    across: str


def draw_histogram(tensor: TensorDifference) -> Figure:
    """Return the histogram of differences B minus A, in quantization steps if there are any."""
    values = subtract_arrays(tensor.a, tensor.b, tensor.step)
    distances = values[(values != 0) & np.isfinite(values)]
    counts, edges, are_integers = _compute_bins(distances)
    unit = "steps" if tensor.step is not None else "absolute"
    rest = np.count_nonzero(np.isinf(values))
    title = f"{format_count(distances.size, 'element')} with a difference, B minus A, {unit}"
    if rest:
        title += f"; {rest} more where a number meets NaN or infinity"
    centres = [f"{(low + high) / 2:.3g}" for low, high in pairwise(edges)]
    if not are_integers or len(counts) > _MAX_BARS // 2:
        labels = [f"{edges[0]:.3g}", "0", f"{edges[-1]:.3g}"]
    else:
        labels = [centres[0], "0", centres[-1]]
    titles = [f"{centre}: {count}" for centre, count in zip(centres, counts, strict=True)]
    chart = charts.draw_bars(counts.tolist(), f"Histogram of {tensor.name}", titles)
    return Figure(chart, f"{title}; at most {number(int(counts.max(initial=0)))} alike", labels)


def _compute_bins(distances: Array) -> tuple[Array, Array, bool]:
    """Return counts, edges, and whether bins are single integers rather than equal intervals."""
    largest = float(np.abs(distances).max(initial=0))
    rounded = np.round(distances)
    is_integer = (rounded != 0) & (np.abs(distances - rounded) < 1e-3)
    if largest < _MAX_BARS // 2 and is_integer.all():
        last = max(1, round(largest))
        counts, edges = np.histogram(rounded, np.arange(-last, last + 2) - 0.5)
        return counts, edges, True
    # One part in a million more, so that the largest difference falls in a bin.
    reach = largest * (1 + 1e-6)
    counts, edges = np.histogram(distances, np.linspace(-reach, reach, _MAX_BARS + 1))
    return counts, edges, False


def draw_heat_map(tensor: TensorDifference) -> Figure:
    """Return where the differences are; large tensors show the largest one of each block."""
    view = flatten_to_matrix(np.abs(subtract_arrays(tensor.a, tensor.b, tensor.step)))
    cells, blocks = blockwise(view.grid, _CELLS)
    levels, limits = assign_levels(cells)
    unit = "steps" if tensor.step is not None else "absolute"
    merged = "" if blocks == (1, 1) else f"; a cell is the largest of {blocks[0]} x {blocks[1]}"
    labels = [
        f"\u2193 {view.down}" if view.down else "",
        f"{view.across} \u2192" if view.across else "",
    ]
    words = ["0", *(f"up to {limit:.2g}" for limit in limits)]
    legend = [(f"level{level}", text) for level, text in enumerate(words)]
    title = f"Difference per element, {unit}{merged}"
    return Figure(charts.draw_heat_map(levels), title, labels, legend)


def flatten_to_matrix(array: Array) -> Picture:
    """Return a tensor as a matrix: the first half of its axes are rows, the others columns."""
    axes = [axis for axis, size in enumerate(array.shape) if size > 1]
    split = len(axes) // 2
    sides = []
    for half in (axes[:split], axes[split:]):
        sizes = [array.shape[axis] for axis in half]
        word = "axis" if len(half) == 1 else "axes"
        label = f"{word} {', '.join(map(str, half))} ({' x '.join(map(str, sizes))})"
        sides.append(label if half else "")
    down = math.prod(array.shape[axis] for axis in axes[:split])
    return Picture(array.reshape(down, -1) if array.size else np.zeros((1, 1)), *sides)


def blockwise(grid: Array, max_blocks: tuple[int, int]) -> tuple[Array, tuple[int, int]]:
    """Return the largest value per block, for at most that many blocks, and the block size."""
    sizes = tuple(-(-size // limit) for size, limit in zip(grid.shape, max_blocks, strict=True))
    for axis, size in enumerate(sizes):
        grid = np.maximum.reduceat(grid, np.arange(0, grid.shape[axis], size), axis)
    return grid, (sizes[0], sizes[1])


def assign_levels(cells: Array) -> tuple[Array, Array]:
    """Return levels from 0 (no difference) to LEVELS, and the upper limit of each level.

    A limit is half the next. Infinite differences have the highest level.
    """
    finite = cells[np.isfinite(cells)]
    largest = float(finite.max(initial=0))
    limits = largest * 0.5 ** np.arange(LEVELS - 1, -1, -1)
    levels = 1 + np.searchsorted(limits, cells)
    return np.where(cells == 0, 0, np.minimum(levels, LEVELS)), limits
