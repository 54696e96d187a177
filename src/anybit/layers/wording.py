# SPDX-License-Identifier: Apache-2.0
"""What tables and pages say of layers."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from anybit.layers.layer import Analyzed, Guarantee, Layer, Seen
from anybit.text import amount, counted, listed, percent, shortened, shown, sized

NUMBERS = (
    *("MACs", "BOPs", "parameters", "zeros", "codes in", "codes out", "weight codes"),
    *("accumulator", "acc. bits", "any weights", "sums", "sums seen", "in seen", "out seen"),
    *("clipped", "one value", "at risk", "time", "in floats", "1 thread", "default threads"),
)
MEANINGS = {
    "exact": "element for element what the float graph gives, in whatever order it adds",
    "certified": "the quantized results are those of every float32 evaluation",
    "bounded": "the sums are exact on integers; float32 rounds them, and may differ from itself",
    "float": "not on integers: as it is in the graph",
}
"""The classes in plain words."""
_MOST_CODES = 4
# What tells reasons of one kind apart: a number, or a name as repr shows it.
_OWN = re.compile(r"""-?\d+\.\d\S*|(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def rows(found: Analyzed) -> list[dict[str, str]]:
    """One row per layer, and one for all of them."""
    return with_total(found.layers, [row(each) for each in found.layers])


def row(layer: Layer) -> dict[str, str]:
    """The cells of a layer by their headings."""
    return {
        "layer": layer.name,
        "operator": layer.operator,
        "result": layer.shape,
        "weight": layer.weight_shape,
        "MACs": amount(layer.macs) if layer.macs != 0 else "",
        "BOPs": amount(layer.bops) if layer.macs != 0 else "",
        "bits": f"{layer.weight_bits} x {layer.input_bits}",
        "zeros": "" if layer.sparsity is None else percent(layer.sparsity),
        "codes in": span(layer.input_codes),
        "weight codes": span(layer.weight_codes),
        "accumulator": span(layer.accumulator),
        "acc. bits": _number(layer.accumulator_bits),
        "any weights": _number(layer.accumulator_bits_any),
        "codes out": span(layer.output_codes),
        "class": layer.kind,
    }


def with_total(layers: Sequence[Layer], rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of these layers, and one for all that multiply if there are several rows."""
    if len(layers) < 2:
        return rows
    each_once = {each.output: each for each in layers}.values()
    total = dict.fromkeys(rows[0], "") | {
        "layer": counted(sum(each.macs != 0 for each in each_once), "layer"),
        "MACs": amount(sum(each.macs or 0 for each in each_once)),
        "BOPs": amount(sum(each.bops or 0 for each in each_once)),
        "acc. bits": _number(max(each.accumulator_bits or 0 for each in layers) or None),
    }
    return [*rows, {heading: total[heading] for heading in rows[0]}]


def seen_rows(found: Analyzed) -> list[dict[str, str]]:
    """What data show, one row per layer of which they show something."""
    return [_seen_row(each, each.seen) for each in found.layers if each.seen is not None]


def _seen_row(layer: Layer, seen: Seen) -> dict[str, str]:
    return {
        "layer": layer.name,
        "codes in": span(layer.input_codes),
        "in seen": span(seen.input_codes),
        "sums": reals(layer.sums),
        "sums seen": reals(seen.sums),
        "codes out": span(layer.output_codes),
        "out seen": span(seen.output_codes),
        "clipped": "" if seen.clipped is None else percent(seen.clipped),
        "one value": f"{len(seen.dead)} of {seen.channels}" if seen.channels else "",
        "most frequent codes": _frequent(seen),
    }


def _frequent(seen: Seen) -> str:
    ranked = sorted(seen.shares.items(), key=lambda each: -each[1])[:_MOST_CODES]
    return ", ".join(f"{code}: {percent(share)}" for code, share in ranked)


def reasons(layers: Iterable[Layer]) -> list[str]:
    """Why layers are not exact: those that differ in numbers or names alone are told together."""
    alike: dict[tuple[str, str], list[Layer]] = defaultdict(list)
    for each in layers:
        if each.reason:
            alike[each.kind, _OWN.sub("", each.reason)].append(each)
    return [_reason(kind, group) for (kind, _), group in alike.items()]


def _reason(kind: str, layers: Sequence[Layer]) -> str:
    names, first = listed([shortened(each.name) for each in layers], 4), layers[0].reason
    which = "," if all(each.reason == first for each in layers) else "; of the first,"
    return f"{names}: {kind}{which} {shown(first)}"


def summary(found: Analyzed) -> str:
    """The figures of the whole model in one line."""
    if not found.layers:
        return "No Conv, ConvTranspose, Gemm or MatMul."
    exact = found.of(Guarantee.EXACT)
    macs = sum(each.macs or 0 for each in exact)
    share = f", {percent(macs / found.macs)} of MACs" if found.macs else ""
    return (
        f"{len(exact)} of {counted(len(found.layers), 'layer')} exact in float32{share}. "
        f"{amount(found.parameters)} weights take {sized(found.weight_bytes)} at their bits, "
        f"{sized(4 * found.parameters)} as float32."
    )


def unknown_sizes(found: Analyzed) -> str:
    """Which layers are not in the figures; "" if all are."""
    names = [shortened(each.name) for each in found.layers if each.macs is None]
    return f"sizes are not known, so that MACs leave out {listed(names, 4)}" if names else ""


def span(ends: tuple[int, int] | None) -> str:
    return "" if ends is None else f"{ends[0]}..{ends[1]}"


def reals(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.4g}..{ends[1]:.4g}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
