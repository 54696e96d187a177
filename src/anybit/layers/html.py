# SPDX-License-Identifier: Apache-2.0
"""What was found of a model as one page that needs nothing else."""

from collections.abc import Iterator, Mapping
from html import escape

from anybit.layers import wording
from anybit.layers.analyzed import Analyzed, Layer
from anybit.pages import document, table
from anybit.text import shown

_STYLE = """
body{max-width:84rem}tr.total td{font-weight:600}
.exact{fill:var(--level4)}.rounds{fill:var(--level2)}.float{fill:var(--line)}
"""
_WIDE, _HIGH, _NAMES, _LEFT = 640, 20, 190, 200
_MOST_BARS = 200
_NAME = 28
_SHAPES = ("result", "weight")


def page(found: Analyzed) -> str:
    """A page for light and dark mode, without scripts. All names in it are escaped."""
    rows = [_cells(row) for row in wording.rows(found)]
    body = [
        "<h1>Layers</h1>",
        _header(found),
        f"<p>{escape(wording.summary(found))}</p>",
        *_costs(found),
        *_accumulators(found),
    ]
    if rows:
        classes = [""] * (len(rows) - 1) + ["total"]
        body += ["<h2>All layers</h2>", table(rows, wording.NUMBERS, classes)]
    body += _reasons(found)
    seen = [_cells(row) for row in wording.seen_rows(found)]
    if seen:
        body += ["<h2>Proven and seen</h2>", table(seen, wording.NUMBERS)]
    body += _shares(found)
    return document(f"anybit analyze: {found.name}", body, _STYLE)


def _cells(row: dict[str, str]) -> dict[str, str]:
    """The cells of a row; shapes stay on one line."""
    cells = {name: shown(cell) for name, cell in row.items()}
    shapes = {name: cells[name].replace(" ", "\u00a0") for name in _SHAPES if name in cells}
    return cells | shapes


def _header(found: Analyzed) -> str:
    ranges = found.input_ranges.items()
    said = ", ".join(f"{name}={given}" if name else given for name, given in ranges)
    facts = {"model": found.name, "input ranges": said, "rows run": str(found.rows or "")}
    items = (
        f"<dt>{name}</dt><dd>{escape(shown(fact))}</dd>" for name, fact in facts.items() if fact
    )
    return f"<dl>{''.join(items)}</dl>"


def _reasons(found: Analyzed) -> list[str]:
    items = [*wording.reasons(found), wording.unknown_sizes(found)]
    lines = [f"<li>{escape(each)}</li>" for each in items if each]
    return ["<h2>What is not exact, and why</h2>", f"<ul>{''.join(lines)}</ul>"] if lines else []


def _costs(found: Analyzed) -> Iterator[str]:
    """Where the work is: a bar of BOPs per layer."""
    layers = [each for each in found.layers if each.bops][:_MOST_BARS]
    most = max((each.bops or 0 for each in layers), default=0)
    if not most:
        return
    yield "<h2>Operations on bits</h2>"
    bars = [
        (each, (each.bops or 0) / most, (each.bops or 0) / most, wording.amount(each.bops))
        for each in layers
    ]
    yield _bars(bars, "BOPs per layer", "dark: exact in float32; light: rounds; grey: float")


def _accumulators(found: Analyzed) -> Iterator[str]:
    """How wide the accumulators are, out of 32 bits."""
    layers = [each for each in found.layers if each.accumulator_bits][:_MOST_BARS]
    if not layers:
        return
    yield "<h2>Bits of accumulators</h2>"
    bars = []
    for each in layers:
        bits, most = each.accumulator_bits or 0, each.accumulator_bits_any or 0
        text = f"{bits}; {most} for any weights"
        bars.append((each, min(1.0, bits / 32), min(1.0, max(bits, most) / 32), text))
    yield _bars(bars, "Bits of accumulators per layer", "the whole width is 32 bits")


def _shares(found: Analyzed) -> list[str]:
    """How often each code was seen."""
    seen = [each for each in found.layers if each.seen is not None and len(each.seen.shares) > 1]
    if not seen:
        return []
    pictures = [_histogram(each, each.seen.shares) for each in seen[:_MOST_BARS] if each.seen]
    return ["<h2>Codes of results</h2>", *pictures]


def _histogram(layer: Layer, shares: Mapping[int, float]) -> str:
    most, codes = max(shares.values()), sorted(shares)
    count = codes[-1] - codes[0] + 1
    wide = min(24.0, _WIDE / count)
    parts = [f"<title>{escape(shown(layer.name))}</title>"]
    parts.append(f'<text x="0" y="12">{escape(shown(layer.name))}</text>')
    for code in codes:
        high = max(0.5, 60 * shares[code] / most)
        parts += [
            f'<rect class="bar" x="{(code - codes[0]) * wide:.6g}" y="{80 - high:.6g}" '
            f'width="{max(0.5, wide - 1):.6g}" height="{high:.6g}">',
            f"<title>{code}: {escape(wording.percent(shares[code]))}</title></rect>",
        ]
    parts.append(f'<text x="0" y="96">{codes[0]}</text>')
    parts.append(f'<text x="{count * wide:.6g}" y="96" text-anchor="end">{codes[-1]}</text>')
    inside = "\n".join(parts)
    size = f"0 0 {_LEFT + _WIDE} 100"
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img">'
    return f"{start}\n{inside}\n</svg>"


def _bars(bars: list[tuple[Layer, float, float, str]], title: str, note: str) -> str:
    """A bar per layer, a paler one behind it, and a text."""
    wide, high = _LEFT + _WIDE, _HIGH * len(bars) + 24
    parts = [f"<title>{escape(title)}</title>"]
    for index, (layer, share, behind, text) in enumerate(bars):
        y = index * _HIGH
        name = shown(layer.name)
        name = name if len(name) <= _NAME else f"...{name[3 - _NAME :]}"
        front, full = (max(1.0, each * (_WIDE - 190)) for each in (share, behind))
        place = f'x="{_LEFT}" y="{y + 3}" height="{_HIGH - 6}"'
        parts += [
            f'<text x="{_NAMES}" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="float" {place} width="{full:.6g}"/>',
            f'<rect class="{layer.guarantee}" {place} width="{front:.6g}">',
            f"<title>{escape(shown(layer.name))}: {escape(text)}</title></rect>",
            f'<text x="{_LEFT + full + 6:.6g}" y="{y + 14}">{escape(text)}</text>',
        ]
    parts.append(f'<text x="{_LEFT}" y="{high - 6}">{escape(note)}</text>')
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" role="img">\n'
        f"{inside}\n</svg>"
    )
