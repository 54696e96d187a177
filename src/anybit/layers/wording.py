# SPDX-License-Identifier: Apache-2.0
"""What tables and pages say of layers."""

from collections import defaultdict

from anybit.layers.analyzed import Analyzed, Layer, Seen
from anybit.text import counted, listed, shown

NUMBERS = (
    *("MACs", "BOPs", "parameters", "bits", "zeros", "codes in", "codes out", "weight codes"),
    *("accumulator", "acc. bits", "any weights", "sums", "sums seen", "in seen", "out seen"),
    *("clipped", "one value"),
)
_MOST_CODES = 4


def rows(found: Analyzed) -> list[dict[str, str]]:
    """One row per layer, and one for all of them."""
    made = [_row(each) for each in found.layers]
    total = dict.fromkeys(made[0], "") if made else {}
    total |= {
        "layer": counted(len(found.layers), "layer"),
        "MACs": amount(found.macs),
        "BOPs": amount(found.bops),
        "acc. bits": "" if found.accumulator_bits is None else str(found.accumulator_bits),
        "float32": f"{len(found.of('exact'))} exact",
    }
    return [*made, total] if made else []


def _row(layer: Layer) -> dict[str, str]:
    return {
        "layer": layer.name,
        "operator": layer.operator,
        "result": layer.shape,
        "weight": layer.weight_shape,
        "MACs": amount(layer.macs),
        "BOPs": amount(layer.bops),
        "bits": f"{layer.weight_bits} x {layer.input_bits}",
        "zeros": "" if layer.sparsity is None else percent(layer.sparsity),
        "codes in": span(layer.input_codes),
        "weight codes": span(layer.weight_codes),
        "accumulator": span(layer.accumulator),
        "acc. bits": _number(layer.accumulator_bits),
        "any weights": _number(layer.accumulator_bits_any),
        "codes out": span(layer.output_codes),
        "float32": layer.guarantee,
    }


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


def reasons(found: Analyzed) -> list[str]:
    """Why layers are not exact, those of one reason together."""
    layers: dict[str, list[str]] = defaultdict(list)
    for each in found.layers:
        if each.reason:
            layers[each.reason].append(shown(each.name))
    return [f"{listed(names, 4)}: {reason}" for reason, names in layers.items()]


def summary(found: Analyzed) -> str:
    """The figures of the whole model in one line."""
    if not found.layers:
        return "No Conv, ConvTranspose, Gemm or MatMul."
    exact = found.of("exact")
    macs = sum(each.macs or 0 for each in exact)
    share = f", {percent(macs / found.macs)} of MACs" if found.macs else ""
    return (
        f"{len(exact)} of {counted(len(found.layers), 'layer')} exact in float32{share}. "
        f"{amount(found.parameters)} weights take {_bytes(found.weight_bytes)} at their bits, "
        f"{_bytes(4 * found.parameters)} as float32."
    )


def _bytes(count: int) -> str:
    text = amount(count)
    return f"{text}B" if text[-1].isalpha() else f"{text} bytes"


def unknown_sizes(found: Analyzed) -> str:
    """Which layers are not in the figures; "" if all are."""
    names = [shown(each.name) for each in found.layers if each.macs is None]
    return f"sizes are not known, so that MACs leave out {listed(names, 4)}" if names else ""


def amount(count: int | None) -> str:
    """A number with a unit of thousands: "59.5 M"."""
    if count is None:
        return "?"
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def percent(share: float) -> str:
    """A share in per cent, never rounded to none or to all of it."""
    value = 100 * share
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.3g} %"


def span(ends: tuple[int, int] | None) -> str:
    return "" if ends is None else f"{ends[0]}..{ends[1]}"


def reals(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.4g}..{ends[1]:.4g}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)
