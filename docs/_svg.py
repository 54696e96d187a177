# SPDX-License-Identifier: Apache-2.0
"""Line charts as SVG text: small, the same bytes on every machine, light and dark."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

_FONT = 'text{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}\n'

MARGIN = 52
PADDING = 14
GAP = 22
LINE_HEIGHT = 22

_STYLE = """\
path{fill:none;stroke-linejoin:round}
.guide{stroke-dasharray:3 4}
.first{stroke-width:2.25}
.second{stroke-width:1.75}
"""


@dataclass(frozen=True)
class Palette:
    """Colours of a picture, for light or dark pages."""

    paper: str
    ink: str
    faint: str
    grid: str
    axis: str
    guide: str
    first: str
    second: str


LIGHT = Palette(
    paper="#ffffff",
    ink="#1f2328",
    faint="#59636e",
    grid="#e4e8ec",
    axis="#9aa4ae",
    guide="#9aa4ae",
    first="#0969da",
    second="#bc4c00",
)
DARK = Palette(
    paper="#0d1117",
    ink="#e6edf3",
    faint="#9198a1",
    grid="#21262d",
    axis="#59636e",
    guide="#6e7681",
    first="#58a6ff",
    second="#f0883e",
)


def _rules(colours: Palette) -> str:
    return (
        f".grid{{stroke:{colours.grid}}}.axis{{stroke:{colours.axis}}}"
        f".guide{{stroke:{colours.guide}}}.first{{stroke:{colours.first}}}"
        f".second{{stroke:{colours.second}}}"
        f"circle{{fill:{colours.second};stroke:{colours.paper}}}"
    )


def document(
    size: tuple[int, int],
    title: str,
    description: str,
    style: str,
    rules: Callable[[Palette], str],
    parts: Sequence[str],
) -> str:
    """Return a picture of that size in pixels, in the colours of the palette.

    Every colour stands in a rule of its own, light first: renderers without media queries or
    variables then show the light picture.
    """
    width, height = size
    light, dark = (_texts(palette) + rules(palette) for palette in (LIGHT, DARK))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>\n{_FONT}{style}{light}\n@media(prefers-color-scheme:dark){{{dark}}}\n</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _texts(colours: Palette) -> str:
    return f"text{{fill:{colours.faint}}}.label{{fill:{colours.ink}}}.paper{{fill:{colours.paper}}}"


def text_width(text: str) -> float:
    """Return an upper estimate of the width of a text, which only the viewer knows."""
    return sum(8.4 if letter.isupper() else 6.2 for letter in text)


@dataclass(frozen=True)
class Line:
    """One curve. `kind` is its class in the style: first, second or guide."""

    points: Points
    kind: str
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """A rectangle with axes. The ranges are what is shown; lines are cut off there."""

    lines: tuple[Line, ...]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_step: float
    y_step: float
    label: str
    width: int
    height: int
    dots: Points = ()


def drawing(panels: Sequence[Panel], columns: int, title: str, description: str) -> str:
    """Return the panels in rows of `columns`, left to right; rows and columns line up."""
    widths = [max(panel.width for panel in panels[i::columns]) for i in range(columns)]
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    parts = []
    top = PADDING
    for row in rows:
        left = MARGIN
        legend = LINE_HEIGHT
        for panel, width in zip(row, widths, strict=False):
            parts.append(f'<g transform="translate({left} {top + legend})">')
            parts += _panel(panel, name=f"cut{panels.index(panel)}")
            parts.append("</g>")
            left += width + GAP + MARGIN - PADDING
        top += legend + max(panel.height for panel in row) + GAP + PADDING
    right = MARGIN + sum(widths) + (columns - 1) * (GAP + MARGIN - PADDING) + PADDING
    return document((right, top), title, description, _STYLE, _rules, parts)


def _panel(panel: Panel, name: str) -> list[str]:
    width, height = panel.width, panel.height
    (x0, x1), (y0, y1) = panel.x_range, panel.y_range

    def across(x: float) -> float:
        return (x - x0) / (x1 - x0) * width

    def down(y: float) -> float:
        return (y1 - y) / (y1 - y0) * height

    parts = [
        f'<clipPath id="{name}"><rect y="-2" width="{width}" height="{height + 4}"/></clipPath>'
    ]
    for x in _ticks(x0, x1, panel.x_step):
        at = _number(across(x))
        kind = "axis" if x == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M{at} 0V{height}"/>')
        parts.append(f'<text x="{at}" y="{height + 17}" text-anchor="middle">{_tick(x)}</text>')
    for y in _ticks(y0, y1, panel.y_step):
        at = _number(down(y))
        kind = "axis" if y == 0 else "grid"
        parts.append(f'<path class="{kind}" d="M0 {at}H{width}"/>')
        parts.append(f'<text x="-8" y="{_number(down(y) + 4)}" text-anchor="end">{_tick(y)}</text>')
    parts.append(f'<g clip-path="url(#{name})">')
    for line in panel.lines:
        corners = [f"{_number(across(x))} {_number(down(y))}" for x, y in line.points]
        parts.append(f'<path class="{line.kind}" d="M{"L".join(corners)}"/>')
    parts.append("</g>")
    for x, y in panel.dots:
        parts.append(f'<circle cx="{_number(across(x))}" cy="{_number(down(y))}" r="3.5"/>')
    return parts + _legend(panel)


def _legend(panel: Panel) -> list[str]:
    parts = [f'<text class="label" x="0" y="-9">{escape(panel.label)}</text>']
    right = panel.width
    # The lines lie above one another in their order: the first to be seen is the last one.
    for line in [line for line in panel.lines if line.label]:
        left = right - round(text_width(line.label))
        parts.append(f'<path class="{line.kind}" d="M{left - 24} -13h18"/>')
        parts.append(f'<text x="{left}" y="-9">{escape(line.label)}</text>')
        right = left - 24 - 14
    return parts


def _ticks(low: float, high: float, step: float) -> list[float]:
    first = int(-(-low // step))
    return [index * step for index in range(first, int(high // step) + 1)]


def _tick(value: float) -> str:
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


def _number(value: float) -> str:
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
