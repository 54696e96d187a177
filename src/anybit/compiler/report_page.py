# SPDX-License-Identifier: Apache-2.0
"""Report of a compilation as one HTML page."""

from collections.abc import Iterator, Sequence
from html import escape

from anybit.compiler.layer import CompiledLayer
from anybit.compiler.report import Report, format_risks, summarize, table_rows
from anybit.layers.html import classes, layer_table, reasons
from anybit.layers.picture import STYLE, Bar, Lane, accumulators, network, work
from anybit.pages import document
from anybit.text import duration, shown

_MOST_RISKS = 200


def page(report: Report, name: str) -> str:
    """Return a page for light and dark mode, without scripts; names are escaped."""
    facts = {"model": name, "speed": report.whole, "measured": report.measured}
    items = (
        f"<dt>{term}</dt><dd>{escape(shown(fact))}</dd>" for term, fact in facts.items() if fact
    )
    body = [
        "<h1>Layers on integers</h1>",
        f"<dl>{''.join(items)}</dl>",
        f"<p>{escape(summarize(report))}</p>",
    ]
    if report.layers:
        lanes: list[Lane[CompiledLayer]] = [accumulators(), work(report.layers), *_times(report)]
        body += [*classes(report.layers), "<h2>The network</h2>", network(report.layers, lanes)]
        body += ["<h2>All layers</h2>", layer_table(table_rows(report))]
    body += reasons(report.layers)
    body += _risks(report)
    return document(f"anybit compile: {shown(name)}", body, STYLE)


def _times(report: Report) -> Iterator[Lane[CompiledLayer]]:
    """Yield the time of each layer above that in the quantized graph, if they were measured."""
    times = [time for layer in report.layers for time in (layer.seconds, layer.float_seconds)]
    most = max((time for time in times if time), default=0.0)

    def bars(layer: CompiledLayer) -> Sequence[Bar]:
        pairs = (("used", layer.seconds), ("float", layer.float_seconds))
        return [Bar(kind, seconds / most) for kind, seconds in pairs if seconds]

    def text(layer: CompiledLayer) -> str:
        times = [duration(time) for time in (layer.seconds, layer.float_seconds) if time]
        return " / ".join(times)

    if most:
        legend = "time: blue on integers, grey in the quantized graph"
        yield Lane("time: on integers / quantized graph", 150, bars, text, legend, True, 130)


def _risks(report: Report) -> Iterator[str]:
    """Yield the accumulators of all layers at which float32 may give another code."""
    risky = [layer for layer in report.layers if layer.risks]
    if risky:
        yield "<h2>Where float32 may differ</h2>"
        yield (
            "<p>At these sums another float32 evaluation of the graph may give the next code: the "
            "edge between the two is nearer than what float32 rounds away.</p>"
        )
    for layer in risky:
        sums: dict[int, list[str]] = {}
        for channel, at in layer.risks[:_MOST_RISKS]:
            sums.setdefault(channel, []).append(str(at))
        lines = [f"channel {channel}: {', '.join(numbers)}" for channel, numbers in sums.items()]
        more = len(layer.risks) - _MOST_RISKS
        lines += [f"and {more} more"] if more > 0 else []
        yield (
            f"<details><summary>{escape(shown(layer.name))}: {format_risks(layer)}</summary>"
            f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul></details>"
        )
