# SPDX-License-Identifier: Apache-2.0
"""Charts of a page, as SVG.

They are drawn here because a plotting library that works in one offline file weighs megabytes, and
a page has two histograms a layer: one path each. Colours are classes of `page.css`, which has a
light and a dark scheme. The template has all text except tooltips.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from markupsafe import Markup, escape

from anybit.onnx.graph.constants import Array

WIDTH, HEIGHT = 640, 90


def draw_histogram(
    counts: Sequence[int],
    bars: tuple[float, float],
    grid: tuple[float, float],
    values: Iterable[float],
) -> Markup:
    """Draw counts in logarithmic height over a shaded grid.

    Args:
        counts: Count of each bin.
        bars: Ends of the bins, from 0 to 1.
        grid: Ends of the grid, from 0 to 1.
        values: Values of the grid, from 0 to 1; empty to mark its ends only.
    """
    most = math.log1p(max(counts)) or 1.0
    heights = [round((HEIGHT - 4) * math.log1p(count) / most) for count in counts]
    start, end = (WIDTH * place for place in bars)
    left, right = (round(WIDTH * place) for place in grid)
    ticks = "".join(f"M{round(WIDTH * place)} {HEIGHT}v10" for place in values)
    ends = f"M{left} {HEIGHT + 10}V{HEIGHT}H{right}V{HEIGHT + 10}"
    wide = max(end - start, 2.0) / len(counts)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 12}" role="img" aria-label="Histogram">'
        f'<rect class="grid" x="{left}" width="{max(1, right - left)}" height="{HEIGHT}"/>'
        f'<path class="bar" transform="translate({start:.1f} 0) scale({wide:.4f} 1)" '
        f'd="{_outline(heights, HEIGHT)}"/><path class="axis" d="M0 {HEIGHT}H{WIDTH}"/>'
        f'<path class="axis" d="{ticks or ends}"/></svg>'
    )


def draw_bars(heights: Sequence[float], label: str, titles: Sequence[str] = ()) -> Markup:
    """Draw bars side by side; with titles each has a tooltip."""
    most = max(heights) or 1.0
    scaled = [round(HEIGHT * height / most, 1) for height in heights]
    drawn = f'<path class="bar" d="{_outline(scaled, HEIGHT)}"/>'
    if titles:
        drawn = "".join(
            f'<rect class="bar" x="{at + 0.05}" y="{HEIGHT - high:.1f}" width="0.9" '
            f'height="{high:.1f}"><title>{escape(title)}</title></rect>'
            for at, (high, title) in enumerate(zip(scaled, titles, strict=True))
        )
    return Markup(
        f'<svg class="stretched" viewBox="0 0 {len(heights)} {HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(label)}">{drawn}</svg>'
    )


def _outline(heights: Sequence[float], base: int) -> str:
    """Return a path of columns of one unit."""
    return f"M0 {base}{''.join(f'V{base - height:g}h1' for height in heights)}V{base}z"


def scatter(
    line: Iterable[tuple[float, float]], points: Iterable[tuple[float, float, str, str]]
) -> Markup:
    """Draw a line, and points (x, y, class, tooltip); all coordinates from 0 to 1."""
    tall = 2 * HEIGHT + 40

    def place(x: float, y: float) -> str:
        return f"{12 + (WIDTH - 24) * x:.0f} {12 + (tall - 24) * (1 - y):.0f}"

    path = "L".join(place(x, y) for x, y in line)
    dots = "".join(
        f'<g transform="translate({place(x, y)})"><circle class="{kind}" r="5">'
        f"<title>{escape(title)}</title></circle></g>"
        for x, y, kind, title in points
    )
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {tall}" role="img" aria-label="Cost over SQNR">'
        f'<path class="axis" d="M2 2V{tall - 2}H{WIDTH}"/>'
        f'<path class="line" d="{f"M{path}" if path else ""}"/>{dots}</svg>'
    )


def draw_heat_map(levels: Array) -> Markup:
    """Draw cells of levels 0 to 5, a path per level; neighbours in a row share a rectangle."""
    paths = []
    for level in range(1, int(levels.max(initial=0)) + 1):
        parts = []
        for row, line in enumerate(levels == level):
            changes = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]])))
            for start, end in zip(changes[::2], changes[1::2], strict=True):
                parts.append(f"M{start} {row}h{end - start}v1h-{end - start}z")
        paths.append(f'<path class="level{level}" d="{"".join(parts)}"/>' if parts else "")
    rows, columns = levels.shape
    return Markup(
        f'<svg class="stretched" style="height:{min(16 * rows, 384)}px" '
        f'viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" role="img" '
        f'shape-rendering="crispEdges" aria-label="Heat map"><rect class="level0" '
        f'width="{columns}" height="{rows}"/>{"".join(paths)}</svg>'
    )
