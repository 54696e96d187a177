# SPDX-License-Identifier: Apache-2.0
"""What was found of a model as one page that needs nothing else."""

from collections.abc import Iterable, Iterator, Mapping
from html import escape

from anybit.layers import wording
from anybit.layers.layer import Analyzed, Layer
from anybit.layers.picture import STYLE, accumulators, network, work
from anybit.pages import document, table, worded
from anybit.text import percent, shown

_WIDE = 840
_MOST_PICTURES = 200


def page(found: Analyzed) -> str:
    """A page for light and dark mode, without scripts. All names in it are escaped."""
    body = ["<h1>Layers</h1>", _header(found), f"<p>{escape(wording.summary(found))}</p>"]
    if found.layers:
        lanes = [accumulators(), work(found.layers)]
        body += [*classes(found.layers), "<h2>The network</h2>", network(found.layers, lanes)]
        body += ["<h2>All layers</h2>", layer_table(wording.rows(found))]
    body += reasons(found.layers, wording.unknown_sizes(found))
    seen = [_cells(row) for row in wording.seen_rows(found)]
    if seen:
        body += ["<h2>Proven and seen</h2>", table(seen, wording.NUMBERS)]
    body += _shares(found)
    return document(f"anybit analyze: {shown(found.name)}", body, STYLE)


def classes(layers: Iterable[Layer]) -> Iterator[str]:
    """What the classes of these layers mean."""
    kinds = {each.kind for each in layers}
    items = (
        f"<dt>{name}</dt><dd>{escape(text)}</dd>"
        for name, text in wording.MEANINGS.items()
        if name in kinds
    )
    yield f"<dl>{''.join(items)}</dl>"


def layer_table(rows: list[dict[str, str]]) -> str:
    """The rows of layers, to which the network links."""
    kinds = ["total" if row["bits"] == "" else "" for row in rows]
    return table([_cells(row) for row in rows], wording.NUMBERS, kinds, "layer")


def reasons(layers: Iterable[Layer], note: str = "") -> list[str]:
    """Why layers are not exact."""
    items = [*wording.reasons(layers), note]
    lines = [f"<li>{worded(each)}</li>" for each in items if each]
    return ["<h2>What is not exact, and why</h2>", f"<ul>{''.join(lines)}</ul>"] if lines else []


def _cells(row: dict[str, str]) -> dict[str, str]:
    """The cells of a row; all but names stay on one line."""
    cells = {name: shown(cell) for name, cell in row.items()}
    return cells | {name: cells[name].replace(" ", "\u00a0") for name in cells if name != "layer"}


def _header(found: Analyzed) -> str:
    ranges = found.input_ranges.items()
    said = ", ".join(f"{name}={given}" if name else given for name, given in ranges)
    facts = {"model": found.name, "input ranges": said, "rows run": str(found.rows or "")}
    items = (
        f"<dt>{name}</dt><dd>{escape(shown(fact))}</dd>" for name, fact in facts.items() if fact
    )
    return f"<dl>{''.join(items)}</dl>"


def _shares(found: Analyzed) -> list[str]:
    """How often each code was seen."""
    seen = [each for each in found.layers if each.seen is not None and len(each.seen.shares) > 1]
    if not seen:
        return []
    pictures = [_histogram(each, each.seen.shares) for each in seen[:_MOST_PICTURES] if each.seen]
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
            f"<title>{code}: {escape(percent(shares[code]))}</title></rect>",
        ]
    parts.append(f'<text x="0" y="96">{codes[0]}</text>')
    parts.append(f'<text x="{count * wide:.6g}" y="96" text-anchor="end">{codes[-1]}</text>')
    inside = "\n".join(parts)
    size = f"0 0 {_WIDE} 100"
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img">'
    return f"{start}\n{inside}\n</svg>"
