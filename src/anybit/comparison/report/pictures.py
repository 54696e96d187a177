# SPDX-License-Identifier: Apache-2.0
"""A histogram and a heat map of one pair of tensors, as SVG for the HTML report.

Colours are CSS classes of the page, so that they follow its light or dark mode.
"""

import math
from dataclasses import dataclass
from html import escape

import numpy as np

from anybit.comparison.arrays import Array
from anybit.comparison.measure import differences
from anybit.comparison.report.wording import number
from anybit.comparison.results import TensorDifference
from anybit.text import counted

_WIDTH = 640
_HEIGHT = 180
_LEFT = 56
_BASE = 46
_TOP = 22
_MAX_BARS = 41
_CELLS = (64, 128)
LEVELS = 5


@dataclass(frozen=True)
class View:
    """A tensor as a matrix, with the axes of its rows and columns in words."""

    grid: Array
    down: str
    across: str


def histogram(tensor: TensorDifference) -> str:
    """Draw a histogram of B minus A, in steps if there are any."""
    values = differences(tensor.a, tensor.b, tensor.step)
    distances = values[(values != 0) & np.isfinite(values)]
    counts, edges, are_integers = _bins(distances)
    unit = "steps" if tensor.step is not None else "absolute"
    infinite = np.count_nonzero(np.isinf(values))
    caption = f"{counted(distances.size, 'element')} with a difference, B minus A, {unit}"
    if infinite:
        caption += f"; {infinite} more where a number meets NaN or infinity"
    width = _WIDTH / len(counts)
    parts = [_text(0, -8, caption, "start")]
    largest = max(1, int(counts.max(initial=0)))
    for index, count in enumerate(counts):
        height = round(_HEIGHT * count / largest, 2)
        x = round(index * width, 2)
        bar = f'x="{x + 1}" y="{_HEIGHT - height}" width="{round(max(width - 2, 1), 2)}"'
        centre = f"{(edges[index] + edges[index + 1]) / 2:.3g}"
        parts.append(f'<rect class="bar" {bar} height="{height}">')
        parts.append(f"<title>{centre}: {count}</title></rect>")
        if are_integers and len(counts) <= _MAX_BARS // 2:
            parts.append(_text(x + width / 2, _HEIGHT + 16, centre))
    if not (are_integers and len(counts) <= _MAX_BARS // 2):
        for position, edge in ((0, f"{edges[0]:.3g}"), (0.5, "0"), (1, f"{edges[-1]:.3g}")):
            parts.append(_text(position * _WIDTH, _HEIGHT + 16, edge))
    parts.append(f'<path class="axis" d="M0 {_HEIGHT}H{_WIDTH}"/>')
    parts += [_text(-6, 8, number(largest), "end"), _text(-6, _HEIGHT, "0", "end")]
    return _drawing(parts, _HEIGHT, f"Histogram of {tensor.name}", caption)


def _bins(distances: Array) -> tuple[Array, Array, bool]:
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


def heat_map(tensor: TensorDifference) -> str:
    """Draw a heat map of the differences, of large tensors the largest difference per block."""
    view = rectangle(np.abs(differences(tensor.a, tensor.b, tensor.step)))
    cells, blocks = blockwise(view.grid, _CELLS)
    levels, limits = graded(cells)
    rows, columns = levels.shape
    down = max(1.0, min(16.0, 384 / rows))
    height = rows * down
    unit = "steps" if tensor.step is not None else "absolute"
    merged = "" if blocks == (1, 1) else f"; a cell is the largest of {blocks[0]} x {blocks[1]}"
    caption = f"difference per element, {unit}{merged}"
    scale = f"scale({_WIDTH / columns:.6g} {down:.6g})"
    parts = [
        _text(0, -8, caption, "start"),
        f'<rect class="level0" width="{_WIDTH}" height="{height:.6g}"/>',
        f'<g transform="{scale}" shape-rendering="crispEdges">',
        *(_cells(levels, level) for level in range(1, LEVELS + 1)),
        "</g>",
        # Below the map, where both fit for any number of rows.
        _text(0, height + 16, f"↓ {view.down}" if view.down else "", "start"),
        _text(_WIDTH, height + 16, f"{view.across} →" if view.across else "", "end"),
        *_legend(limits, height + 28),
    ]
    return _drawing(
        parts, height + 20, f"Heat map of {tensor.name}", f"{caption}; {view.down} down"
    )


def rectangle(array: Array) -> View:
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
    return View(array.reshape(down, -1) if array.size else np.zeros((1, 1)), *sides)


def blockwise(grid: Array, max_blocks: tuple[int, int]) -> tuple[Array, tuple[int, int]]:
    """Return the largest value per block, for at most that many blocks, and the block size."""
    sizes = tuple(-(-size // limit) for size, limit in zip(grid.shape, max_blocks, strict=True))
    for axis, size in enumerate(sizes):
        grid = np.maximum.reduceat(grid, np.arange(0, grid.shape[axis], size), axis)
    return grid, (sizes[0], sizes[1])


def graded(cells: Array) -> tuple[Array, Array]:
    """Return levels from 0 (no difference) to LEVELS, and the upper limit of each level.

    A limit is half the next. Infinite differences have the highest level.
    """
    finite = cells[np.isfinite(cells)]
    largest = float(finite.max(initial=0))
    limits = largest * 0.5 ** np.arange(LEVELS - 1, -1, -1)
    levels = 1 + np.searchsorted(limits, cells)
    return np.where(cells == 0, 0, np.minimum(levels, LEVELS)), limits


def _cells(levels: Array, level: int) -> str:
    """Draw all cells of a level as one path. Neighbours in a row are one rectangle."""
    parts = []
    for row, line in enumerate(levels == level):
        changes = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]])))
        for start, end in zip(changes[::2], changes[1::2], strict=True):
            parts.append(f"M{start} {row}h{end - start}v1h-{end - start}z")
    return f'<path class="level{level}" d="{"".join(parts)}"/>' if parts else ""


def _legend(limits: Array, top: float) -> list[str]:
    parts = []
    width = _WIDTH / (LEVELS + 1)
    for level, text in enumerate(["0", *(f"up to {limit:.2g}" for limit in limits)]):
        x = round(level * width, 2)
        parts.append(f'<rect class="level{level}" x="{x}" y="{top}" width="12" height="12"/>')
        parts.append(_text(x + 18, top + 10, text, "start"))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.6g}" y="{y:.6g}" text-anchor="{anchor}">{escape(text)}</text>'


def _drawing(parts: list[str], inner_height: float, title: str, description: str) -> str:
    size = f"{_LEFT + _WIDTH + 24} {_TOP + inner_height + _BASE:.6g}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f'<g transform="translate({_LEFT} {_TOP})">',
            *parts,
            "</g>",
            "</svg>",
        ]
    )
