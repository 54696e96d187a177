# SPDX-License-Identifier: Apache-2.0
"""What became of the layers of a model, in words: for terminals and pages."""

from anybit.lowbit.layers import Guarantee, Layer
from anybit.lowbit.report import Report
from anybit.text import duration, shown

NUMBERS = ("MACs", "accumulator", "at risk", "time")


def rows(report: Report) -> list[dict[str, str]]:
    """The layers, one row each; a cell that has nothing to say is empty, and so may be a column."""
    all_rows = [_row(layer) for layer in report.layers]
    said = [heading for heading in all_rows[0] if any(row[heading] for row in all_rows)]
    return [{heading: row[heading] for heading in said} for row in all_rows]


def _row(layer: Layer) -> dict[str, str]:
    compiled = layer.guarantee is not None
    results = f"{layer.levels} codes" if layer.levels else "floats"
    return {
        "layer": shown(layer.node),
        "operator": layer.operator,
        "class": class_of(layer),
        "bits": f"{layer.weight_bits} x {layer.input_bits}",
        "MACs": short(layer.macs),
        "accumulator": f"{layer.accumulator_bits} bit" if compiled else "",
        "results": f"{results} by {layer.tail.lower()}" if compiled else "",
        "at risk": risks_of(layer),
        "kernel": layer.kernel,
        "time": "" if layer.seconds is None else duration(layer.seconds),
        "because": shown(layer.reason),
    }


def class_of(layer: Layer) -> str:
    """What is promised of it."""
    return "float" if layer.guarantee is None else layer.guarantee.value


def risks_of(layer: Layer) -> str:
    """How many accumulators are at risk; "1000+" where not all have been looked at."""
    return f"{len(layer.risks)}{'+' if layer.more_risks else ''}" if layer.risks else ""


def short(count: int) -> str:
    """A number in three digits; nothing for 0."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count) if count else ""


def summary(report: Report) -> str:
    """Coverage and classes: "9 of 9 layers, 100 % of MACs on integers: 9 exact"."""
    classes = ", ".join(f"{count} {each.value}" for each, count in report.guarantees.items())
    return f"{report.coverage} on integers" + (f": {classes}" if classes else "")


MEANINGS = {
    Guarantee.EXACT: "element for element what the float graph gives",
    Guarantee.CERTIFIED: "the quantized results are those of every float32 evaluation",
    Guarantee.BOUNDED: "exact sums, then the float graph as written; float32 itself may differ at "
    "the accumulators that are listed",
}
"""The classes in plain words."""
