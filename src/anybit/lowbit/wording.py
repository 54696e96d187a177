# SPDX-License-Identifier: Apache-2.0
"""What became of the layers of a model, in words: for terminals and pages."""

from anybit.layers.wording import row, with_total
from anybit.lowbit.layers import CompiledLayer
from anybit.lowbit.report import Report
from anybit.lowbit.speed import Speed
from anybit.text import duration

_HEADINGS = (
    *("layer", "operator", "class", "bits", "MACs", "acc. bits", "results", "at risk", "kernel"),
    *("time", "in floats"),
)


def rows(report: Report) -> list[dict[str, str]]:
    """Return one row per layer, with times one for what lies between them, and one for all.

    The times add up to that of a whole run. Columns without any entry are left out.
    """
    all_rows = [row(layer) | _run(layer) for layer in report.layers]
    said = [each for each in _HEADINGS if any(row[each] for row in all_rows)]
    cells = [{heading: row[heading] for heading in said} for row in all_rows]
    table = with_total(report.layers, cells)
    if report.speed is None or "time" not in said:
        return table
    return _with_total_times(table[: len(cells)], table[len(cells) :], report, report.speed)


def _with_total_times(
    layers: list[dict[str, str]], total: list[dict[str, str]], report: Report, speed: Speed
) -> list[dict[str, str]]:
    """Return the rows of layers, one of the time between them, and one of whole runs."""
    whole = {"time": speed.compiled.one_thread, "in floats": speed.quantized_graph.one_thread}
    spent = {
        "time": sum(layer.seconds or 0.0 for layer in report.layers),
        "in floats": sum(layer.float_seconds or 0.0 for layer in report.layers),
    }
    blank = dict.fromkeys(layers[0], "")
    between = {name: _time(max(whole[name] - spent[name], 0.0)) for name in whole}
    last = (total or [blank | {"layer": "whole run"}])[0]
    return [
        *layers,
        blank | {"layer": "between layers", "bits": "-"} | between,
        last | {name: _time(seconds) for name, seconds in whole.items()},
    ]


def _run(layer: CompiledLayer) -> dict[str, str]:
    results = f"{layer.levels} codes" if layer.levels else "floats"
    return {
        "results": f"{results} by {layer.tail.lower()}" if layer.tail else "",
        "at risk": risks_of(layer),
        "kernel": layer.kernel,
        "time": _time(layer.seconds),
        "in floats": _time(layer.float_seconds),
    }


def risks_of(layer: CompiledLayer) -> str:
    """How many accumulators are at risk; "1000+" where not all have been looked at."""
    return (
        f"{len(layer.risks)}{'+' if layer.more_risks else ''}"
        if layer.risks or layer.more_risks
        else ""
    )


def _time(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def summary(report: Report) -> str:
    """Coverage and classes: "9 of 9 layers, 100 % of MACs on integers: 9 exact"."""
    classes = ", ".join(f"{count} {each.value}" for each, count in report.guarantees.items())
    return f"{report.coverage} on integers" + (f": {classes}" if classes else "")
