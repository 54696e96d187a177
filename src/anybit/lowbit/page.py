# SPDX-License-Identifier: Apache-2.0
"""What became of a model as one page that needs nothing else."""

import math
from collections.abc import Iterator
from html import escape

from anybit.lowbit import wording
from anybit.lowbit.layers import Layer
from anybit.lowbit.report import Report
from anybit.pages import document, table
from anybit.text import shown

_STYLE = """
.exact{fill:var(--level5)}.certified{fill:var(--level4)}.bounded{fill:var(--level3)}
.float{fill:var(--line)}.used{fill:var(--bar)}.free{fill:var(--level0)}
"""
_LEFT, _ROW, _CLASS, _BITS, _MACS, _WIDTH = 210, 26, 90, 150, 230, 820
_NAME = 30
_MOST_LAYERS, _MOST_RISKS = 300, 200


def page(report: Report, name: str) -> str:
    """A page for light and dark mode, without scripts. All names in it are escaped."""
    body = [
        "<h1>Layers on integers</h1>",
        f"<dl><dt>model</dt><dd>{escape(shown(name))}</dd></dl>",
        f"<p>{escape(wording.summary(report))}</p>",
        *_classes(),
    ]
    if report.layers:
        body += ["<h2>The network</h2>", _network(report.layers[:_MOST_LAYERS])]
        body += ["<h2>All layers</h2>", table(wording.rows(report), wording.NUMBERS)]
    body += _risks(report)
    return document(f"anybit compile: {shown(name)}", body, _STYLE)


def _classes() -> Iterator[str]:
    items = (f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in wording.MEANINGS.items())
    yield f"<dl>{''.join(items)}<dt>float</dt><dd>as it was</dd></dl>"


def _network(layers: tuple[Layer, ...]) -> str:
    """One line per layer: its class, its bits, how wide its accumulator is, and its work."""
    high = _ROW * (len(layers) + 1)
    parts = ["<title>The layers, from the input to the output</title>"]
    headings = ((_LEFT, "class"), (_LEFT + _CLASS, "bits"), (_LEFT + _BITS, "accumulator of 32"))
    for x, text in (*headings, (_LEFT + _MACS + 90, "multiplications (log)")):
        parts.append(f'<text x="{x}" y="16">{text}</text>')
    most = max((math.log10(layer.macs + 1) for layer in layers), default=1) or 1
    for number, layer in enumerate(layers):
        parts += _line(layer, _ROW * (number + 1), math.log10(layer.macs + 1) / most)
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {high}" role="img">\n'
        f"{inside}\n</svg>"
    )


def _line(layer: Layer, y: int, share: float) -> Iterator[str]:
    name = shown(layer.node)
    short = name if len(name) <= _NAME else f"...{name[3 - _NAME :]}"
    kind, bits = wording.class_of(layer), layer.accumulator_bits
    yield f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(short)}</text>'
    hover = escape(shown(layer.reason or layer.tail))
    yield (
        f'<rect class="{kind}" x="{_LEFT}" y="{y + 4}" width="12" height="{_ROW - 8}" rx="2">'
        f"<title>{escape(name)}: {kind}; {hover}</title></rect>"
    )
    yield f'<text x="{_LEFT + 18}" y="{y + 16}">{kind}</text>'
    x = _LEFT + _CLASS
    yield f'<text x="{x}" y="{y + 16}">{layer.weight_bits} x {layer.input_bits}</text>'
    x = _LEFT + _BITS
    for kind, size in (("free", 128), ("used", 4 * min(bits, 32))):
        yield f'<rect class="{kind}" x="{x}" y="{y + 8}" width="{size}" height="{_ROW - 16}"/>'
    yield f'<text x="{x + 134}" y="{y + 16}">{bits or ""}</text>'
    x = _LEFT + _MACS + 90
    yield f'<rect class="bar" x="{x}" y="{y + 6}" width="{share * 170:.1f}" height="{_ROW - 12}"/>'
    yield f'<text x="{x + share * 170 + 6:.1f}" y="{y + 16}">{wording.short(layer.macs)}</text>'


def _risks(report: Report) -> Iterator[str]:
    """The accumulators of each layer at which float32 may give another code."""
    risky = [layer for layer in report.layers if layer.risks]
    if risky:
        yield "<h2>Where float32 may differ</h2>"
        yield "<p>From here, and from itself: a code ends nearer to these than its rounding.</p>"
    for layer in risky:
        pairs = [f"{channel}: {at}" for channel, at in layer.risks[:_MOST_RISKS]]
        more = len(layer.risks) - len(pairs)
        text = ", ".join(pairs) + (f" and {more} more" if more else "")
        heading = f"{shown(layer.node)}: {wording.risks_of(layer)} accumulators"
        yield (
            f"<details><summary>{escape(heading)}</summary><p>channel: accumulator</p>"
            f"<p>{escape(text)}</p></details>"
        )
