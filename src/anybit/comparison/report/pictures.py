# SPDX-License-Identifier: Apache-2.0
"""A histogram and a heat map of one pair of tensors, as SVG to stand in a page.

Colours are classes of the page, so that they follow its light or dark mode.
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
_MOST_BARS = 41
_CELLS = (64, 128)
LEVELS = 5


@dataclass(frozen=True)
class View:
    """A tensor as a rectangle, with what its sides are."""

    grid: Array
    down: str
    across: str


def histogram(tensor: TensorDifference) -> str:
    """How many elements differ by how much: B minus A, in steps if there are any."""
    found = differences(tensor.a, tensor.b, tensor.step)
    distances = found[(found != 0) & np.isfinite(found)]
    counts, edges, whole = _bins(distances)
    unit = "steps" if tensor.step is not None else "absolute"
    rest = np.count_nonzero(np.isinf(found))
    what = f"{counted(distances.size, 'element')} with a difference, B minus A, {unit}"
    if rest:
        what += f"; {rest} more where a number meets NaN or infinity"
    wide = _WIDTH / len(counts)
    parts = [_text(0, -8, what, "start")]
    most = max(1, int(counts.max(initial=0)))
    for index, count in enumerate(counts):
        high = round(_HEIGHT * count / most, 2)
        x = round(index * wide, 2)
        bar = f'x="{x + 1}" y="{_HEIGHT - high}" width="{round(max(wide - 2, 1), 2)}"'
        centre = f"{(edges[index] + edges[index + 1]) / 2:.3g}"
        parts.append(f'<rect class="bar" {bar} height="{high}">')
        parts.append(f"<title>{centre}: {count}</title></rect>")
        if whole and len(counts) <= _MOST_BARS // 2:
            parts.append(_text(x + wide / 2, _HEIGHT + 16, centre))
    if not (whole and len(counts) <= _MOST_BARS // 2):
        for place, edge in ((0, f"{edges[0]:.3g}"), (0.5, "0"), (1, f"{edges[-1]:.3g}")):
            parts.append(_text(place * _WIDTH, _HEIGHT + 16, edge))
    parts.append(f'<path class="axis" d="M0 {_HEIGHT}H{_WIDTH}"/>')
    parts += [_text(-6, 8, number(most), "end"), _text(-6, _HEIGHT, "0", "end")]
    return _drawing(parts, _HEIGHT, f"Histogram of {tensor.name}", what)


def _bins(distances: Array) -> tuple[Array, Array, bool]:
    """Counts and edges: one bin per whole number if there are few, else even ones around 0."""
    largest = float(np.abs(distances).max(initial=0))
    rounded = np.round(distances)
    are_whole = (rounded != 0) & (np.abs(distances - rounded) < 1e-3)
    if largest < _MOST_BARS // 2 and are_whole.all():
        last = max(1, round(largest))
        counts, edges = np.histogram(rounded, np.arange(-last, last + 2) - 0.5)
        return counts, edges, True
    # One part in a million more, so that the largest difference lies in a bin.
    reach = largest * (1 + 1e-6)
    counts, edges = np.histogram(distances, np.linspace(-reach, reach, _MOST_BARS + 1))
    return counts, edges, False


def heat_map(tensor: TensorDifference) -> str:
    """Where the differences are. Large tensors show the largest difference of each block."""
    view = rectangle(np.abs(differences(tensor.a, tensor.b, tensor.step)))
    cells, blocks = blockwise(view.grid, _CELLS)
    levels, limits = graded(cells)
    rows, columns = levels.shape
    down = max(1.0, min(16.0, 384 / rows))
    high = rows * down
    unit = "steps" if tensor.step is not None else "absolute"
    merged = "" if blocks == (1, 1) else f"; a cell is the largest of {blocks[0]} x {blocks[1]}"
    what = f"difference per element, {unit}{merged}"
    scale = f"scale({_WIDTH / columns:.6g} {down:.6g})"
    parts = [
        _text(0, -8, what, "start"),
        f'<rect class="level0" width="{_WIDTH}" height="{high:.6g}"/>',
        f'<g transform="{scale}" shape-rendering="crispEdges">',
        *(_cells(levels, level) for level in range(1, LEVELS + 1)),
        "</g>",
        # Below, where there is room for both however few rows there are.
        _text(0, high + 16, f"↓ {view.down}" if view.down else "", "start"),
        _text(_WIDTH, high + 16, f"{view.across} →" if view.across else "", "end"),
        *_legend(limits, high + 28),
    ]
    return _drawing(parts, high + 20, f"Heat map of {tensor.name}", f"{what}; {view.down} down")


def rectangle(array: Array) -> View:
    """The first half of the axes down, the others across; those of size 1 do not count."""
    axes = [axis for axis, size in enumerate(array.shape) if size > 1]
    split = len(axes) // 2
    sides = []
    for kept in (axes[:split], axes[split:]):
        sizes = [array.shape[axis] for axis in kept]
        word = "axis" if len(kept) == 1 else "axes"
        named = f"{word} {', '.join(map(str, kept))} ({' x '.join(map(str, sizes))})"
        sides.append(named if kept else "")
    down = math.prod(array.shape[axis] for axis in axes[:split])
    return View(array.reshape(down, -1) if array.size else np.zeros((1, 1)), *sides)


def blockwise(grid: Array, most: tuple[int, int]) -> tuple[Array, tuple[int, int]]:
    """The largest value of each block, with as many blocks as are allowed, and a block's size."""
    sizes = tuple(-(-size // limit) for size, limit in zip(grid.shape, most, strict=True))
    for axis, size in enumerate(sizes):
        grid = np.maximum.reduceat(grid, np.arange(0, grid.shape[axis], size), axis)
    return grid, (sizes[0], sizes[1])


def graded(cells: Array) -> tuple[Array, Array]:
    """Levels from 0 (no difference) to LEVELS, and the upper limit of each: halves of the largest.

    Infinite differences are in the highest level.
    """
    finite = cells[np.isfinite(cells)]
    largest = float(finite.max(initial=0))
    limits = largest * 0.5 ** np.arange(LEVELS - 1, -1, -1)
    levels = 1 + np.searchsorted(limits, cells)
    return np.where(cells == 0, 0, np.minimum(levels, LEVELS)), limits


def _cells(levels: Array, level: int) -> str:
    """All cells of a level as one path; neighbours in a row are one rectangle."""
    parts = []
    for row, line in enumerate(levels == level):
        changes = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]])))
        for start, end in zip(changes[::2], changes[1::2], strict=True):
            parts.append(f"M{start} {row}h{end - start}v1h-{end - start}z")
    return f'<path class="level{level}" d="{"".join(parts)}"/>' if parts else ""


def _legend(limits: Array, top: float) -> list[str]:
    parts = []
    wide = _WIDTH / (LEVELS + 1)
    for level, text in enumerate(["0", *(f"up to {limit:.2g}" for limit in limits)]):
        x = round(level * wide, 2)
        parts.append(f'<rect class="level{level}" x="{x}" y="{top}" width="12" height="12"/>')
        parts.append(_text(x + 18, top + 10, text, "start"))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.6g}" y="{y:.6g}" text-anchor="{anchor}">{escape(text)}</text>'


def _drawing(parts: list[str], high: float, title: str, description: str) -> str:
    wide, tall = _LEFT + _WIDTH + 24, _TOP + high + _BASE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall:.6g}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f'<g transform="translate({_LEFT} {_TOP})">',
            *parts,
            "</g>",
            "</svg>",
        ]
    )
