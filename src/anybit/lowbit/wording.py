# SPDX-License-Identifier: Apache-2.0
"""What became of the layers of a model, in words: for terminals and pages."""

from anybit.layers.wording import row, with_total
from anybit.lowbit.layers import CompiledLayer
from anybit.lowbit.report import Report
from anybit.text import duration

_HEADINGS = (
    *("layer", "operator", "class", "bits", "MACs", "acc. bits", "results", "at risk", "kernel"),
    *("time", "float", "faster"),
)


def rows(report: Report) -> list[dict[str, str]]:
    """The layers, one row each, and one for all; a column in which nothing is said is left out."""
    all_rows = [row(layer) | _run(layer) for layer in report.layers]
    said = [each for each in _HEADINGS if any(row[each] for row in all_rows)]
    cells = [{heading: row[heading] for heading in said} for row in all_rows]
    return with_total(report.layers, cells)


def _run(layer: CompiledLayer) -> dict[str, str]:
    results = f"{layer.levels} codes" if layer.levels else "floats"
    return {
        "results": f"{results} by {layer.tail.lower()}" if layer.tail else "",
        "at risk": risks_of(layer),
        "kernel": layer.kernel,
        "time": _time(layer.seconds),
        "float": _time(layer.float_seconds),
        "faster": faster(layer.seconds, layer.float_seconds),
    }


def risks_of(layer: CompiledLayer) -> str:
    """How many accumulators are at risk; "1000+" where not all have been looked at."""
    return (
        f"{len(layer.risks)}{'+' if layer.more_risks else ''}"
        if layer.risks or layer.more_risks
        else ""
    )


def faster(seconds: float | None, floats: float | None) -> str:
    """How many times as fast: "12.3 x"; nothing where that is not known."""
    return f"{floats / seconds:.3g} x" if seconds and floats else ""


def _time(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def summary(report: Report) -> str:
    """Coverage and classes: "9 of 9 layers, 100 % of MACs on integers: 9 exact"."""
    classes = ", ".join(f"{count} {each.value}" for each, count in report.guarantees.items())
    return f"{report.coverage} on integers" + (f": {classes}" if classes else "")
