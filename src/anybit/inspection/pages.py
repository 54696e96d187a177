# SPDX-License-Identifier: Apache-2.0
"""The page of a model report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from anybit.inspection import charts, text
from anybit.inspection.page import (
    Block,
    Cell,
    Details,
    Facts,
    Figure,
    HtmlTable,
    Items,
    Page,
    Section,
    Strip,
    render,
)
from anybit.text import (
    escape_name,
    format_amount,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    shorten_name,
)

if TYPE_CHECKING:
    from anybit.inspection.model_report import (
        LayerReport,
        ModelReport,
        Observation,
        QuantizedTensor,
    )
    from anybit.ptq import ParetoPoint, QualityMetrics

_MAX_ROWS, _MAX_DETAILS, _MAX_REASONS, _MAX_SEGMENTS, _MAX_RISKS = 1000, 300, 50, 500, 200
_MAX_TOOLTIPS = 16
_SHOWN_OUTLIER = 0.1
_FLOAT_BITS = 32
_WIDTHS = (
    (2, "up to 2 bits"),
    (4, "3 or 4 bits"),
    (6, "5 or 6 bits"),
    (8, "7 or 8 bits"),
    (16, "9 to 16 bits"),
)
# A histogram shows the grid at most this many times as wide as the data.
_WIDEST_GRID = 3.0


def render_report(report: ModelReport) -> str:
    """Return the report as an HTML page that works offline."""
    tool = "inspect" if report.quantization is None else "quantize"
    tool = tool if report.compilation is None else "compile"
    layers = report.ranked if report.quantization is not None else report.layers
    details = [_describe_layer(row, f"layer{at}") for at, row in enumerate(layers[:_MAX_DETAILS])]
    anchors = {row.layer.output: f"layer{at}" for at, row in enumerate(layers[:_MAX_DETAILS])}
    failed = report.verdict is not None and not report.verdict.passed
    return render(
        Page(
            escape_name(report.name[-200:]),
            f"anybit {tool}",
            text.describe_conclusion(report),
            failed,
            list(_list_figures(report)),
            [Facts(_make_facts(report))],
            [
                section
                for section in (
                    *_make_sections(report, layers, anchors),
                    Section("Layer by layer", _make_details(details, report)),
                )
                if section.blocks
            ],
        )
    )


def _make_sections(
    report: ModelReport, layers: Sequence[LayerReport], anchors: Mapping[str, str]
) -> Iterator[Section]:
    advice = [(item.text, item.remedy) for item in report.advice]
    yield Section("Advice", [Items(advice)] if advice else [])
    if report.quantization is not None:
        yield Section("The cost of other mixed precisions", _draw_front(report.quantization.front))
    if report.summary is not None:
        rows = text.make_quantizer_rows(report.summary.quantizers)
        notes = text.make_quantizer_notes(report.summary)
        yield Section("Quantizers", [*([_make_table(rows)] if rows else []), *notes])
    if report.layers:
        yield Section("The network", [_NETWORK, _make_strip(report.layers, anchors)])
        yield Section(
            "Layers", [*_make_meanings(report), _make_layer_table(report, layers, anchors)]
        )
    observed = text.make_observed_rows(report)
    yield Section("Proven and observed", [_make_table(observed)] if observed else [])
    reasons = text.group_reasons(report.layers)[:_MAX_REASONS]
    yield Section("Layers that are not exact", [Items(reasons)] if reasons else [])
    if report.quantization is not None:
        skipped = [
            f"{shorten_name(name)}: {reason[:300]}"
            for name, reason in list(report.quantization.skipped.items())[:_MAX_REASONS]
        ]
        yield Section("Layers that stay float", [Items(skipped)] if skipped else [])
        yield Section("The worst samples", _find_worst(report.verdict))


_NETWORK = (
    "From input to output: the width of a layer is its share of the multiplications, its colour "
    "the width of its weights."
)


def _list_figures(report: ModelReport) -> Iterator[tuple[str, str, str]]:
    totals, verdict = report.totals, report.verdict
    if report.bytes_before is not None and report.bytes_after is not None:
        yield "constants", format_bytes(report.bytes_before), format_bytes(report.bytes_after)
    if totals.weight_bits is not None:
        yield "bits of weights, mean", str(_FLOAT_BITS), f"{totals.weight_bits:.3g}"
    if totals.macs:
        yield (
            "bit operations",
            format_amount(totals.macs * _FLOAT_BITS**2),
            format_amount(totals.bops),
        )
    if verdict is not None and verdict.sqnr is not None:
        yield "output SQNR", "", text.format_decibels(verdict.sqnr)
    if verdict is not None and verdict.agreement is not None:
        yield "agreement", "", format_percent(verdict.agreement)
    elif verdict is not None and verdict.logits_agreement is not None:
        yield "same arg max", "", format_percent(verdict.logits_agreement)
    if totals.layers:
        yield (
            "integer layers",
            "0",
            f"{totals.layers - totals.float - totals.dynamic} of {totals.layers}",
        )
    if totals.accumulator_bits is not None:
        yield "widest accumulator", "", f"{totals.accumulator_bits} bits"
    if report.data is not None:
        yield "time of a sample", "", format_duration(report.data.seconds)


def _make_facts(report: ModelReport) -> dict[str, str]:
    pairs = {} if report.summary is None else text.describe_contents(report.summary)
    if report.compilation is not None:
        pairs |= {"speed": report.compilation.whole, "measured": report.compilation.measured}
    ranges = report.input_ranges.items()
    pairs["input ranges"] = ", ".join(
        f"{name}={range_}" if name else range_ for name, range_ in ranges
    )
    pairs["command"] = report.command
    if report.data is not None:
        data = report.data
        pairs["data"] = f"{data.observed} of {format_count(data.samples, 'sample')} were run"
    pairs["note"] = text.describe_unknown_sizes(report)
    return pairs


def _make_table(rows: Sequence[text.Row]) -> HtmlTable:
    numbers = [name for name in rows[0] if name in text.NUMBERS]
    cells = [[Cell(shorten_name(cell)) for cell in row.values()] for row in rows]
    return HtmlTable(list(rows[0]), cells, numbers)


def _make_meanings(report: ModelReport) -> Iterator[Block]:
    kinds = {row.kind for row in report.layers}
    yield Facts({kind: meaning for kind, meaning in text.MEANINGS.items() if kind in kinds})


def _make_layer_table(
    report: ModelReport, layers: Sequence[LayerReport], anchors: Mapping[str, str]
) -> HtmlTable:
    rows = text.make_layer_rows(report)
    by_layer = dict(zip((id(row) for row in report.layers), rows, strict=False))
    most = max((row.layer.bops or 0 for row in layers), default=0) or 1
    slowest = max((_format_seconds(row) for row in layers), default=0.0) or 1.0
    cells = []
    for layer in layers[:_MAX_ROWS]:
        line: list[Cell] = []
        for name, cell in by_layer[id(layer)].items():
            bars: tuple[float, ...] = ()
            if name == "acc. bits" and layer.layer.accumulator_bits:
                bars = (min(1.0, layer.layer.accumulator_bits / 32),)
            elif name == "BOPs" and layer.layer.bops:
                bars = (layer.layer.bops / most,)
            elif name == "noise" and layer.noise:
                bars = (min(1.0, layer.noise),)
            elif name == "time" and layer.compiled is not None and layer.compiled.seconds:
                times = layer.compiled.seconds, layer.compiled.float_seconds or 0.0
                bars = (times[0] / slowest, times[1] / slowest)
            link = anchors.get(layer.layer.output, "") if name == "layer" else ""
            line.append(Cell(shorten_name(cell), bars, link))
        cells.append(line)
    totals = rows[len(report.layers) :]
    cells += [[Cell(shorten_name(cell)) for cell in row.values()] for row in totals]
    classes = [""] * (len(cells) - len(totals)) + ["total"] * len(totals)
    numbers = [name for name in rows[0] if name in text.NUMBERS]
    return HtmlTable(list(rows[0]), cells, numbers, classes, sortable=True)


def _format_seconds(row: LayerReport) -> float:
    times = () if row.compiled is None else (row.compiled.seconds, row.compiled.float_seconds)
    return max((seconds or 0.0 for seconds in times), default=0.0)


def _make_strip(layers: Sequence[LayerReport], anchors: Mapping[str, str]) -> Strip:
    """Return segments as wide as the work of a layer; of very many, neighbours share one."""
    step = -(-len(layers) // _MAX_SEGMENTS)
    groups = [layers[start : start + step] for start in range(0, len(layers), step)]
    work = [sum(row.layer.macs or row.layer.parameters or 1 for row in group) for group in groups]
    # Small layers stay visible, and can be hit.
    least = sum(work) / (16 * len(work))
    segments, levels = [], set()
    for group, width in zip(groups, work, strict=True):
        first = group[0]
        level = _choose_level(max(row.layer.weight_bits for row in group))
        levels.add(level)
        about = (
            f"{shorten_name(first.name)}: {first.layer.weight_bits} x {first.layer.input_bits} bits"
        )
        about += f", {format_amount(first.layer.macs)} MACs"
        if len(group) > 1:
            about = f"{len(group)} layers from {shorten_name(first.name)}"
        anchor = anchors.get(first.layer.output, "")
        segments.append((max(width, least), level[0], about, anchor))
    return Strip(segments, sorted(levels))


def _choose_level(bits: int) -> tuple[str, str]:
    for place, (most, words) in enumerate(_WIDTHS):
        if bits <= most:
            return f"level{place + 1}", words
    return "float", "float"


def _find_worst(verdict: QualityMetrics | None) -> list[Block]:
    if verdict is None or not verdict.worst:
        return []
    rows = [
        {
            "sample": str(sample.number),
            "SQNR": text.format_decibels(sample.sqnr),
            "arg max": {None: "", True: "same", False: "different"}[sample.agrees],
        }
        for sample in verdict.worst
    ]
    return ["Held-out samples, by their number among all samples.", _make_table(rows)]


def _draw_front(mixes: Sequence[ParetoPoint]) -> list[Block]:
    """Return charts of size and bit operations over SQNR, and a table of the marked mixes."""
    finite = [mix for mix in mixes if math.isfinite(mix.sqnr)]
    costs: dict[str, tuple[Callable[[ParetoPoint], int], Callable[[int], str]]] = {
        "bytes of constants": (lambda mix: mix.bytes, format_bytes),
        "bit operations": (lambda mix: mix.bops, format_amount),
    }
    blocks: list[Block] = []
    for label, (cost, words) in costs.items():
        values = [cost(mix) for mix in finite]
        if len(set(values)) > 1:
            blocks.append(_draw_cost_chart(finite, cost, words, label))
    marked = [mix for mix in finite if mix.name or mix.chosen]
    if blocks and marked:
        rows = [
            {
                "mix": f"{mix.name}{' *' if mix.chosen else ''}".strip(),
                "output SQNR": text.format_decibels(mix.sqnr),
                "bytes": format_bytes(mix.bytes),
                "BOPs": format_amount(mix.bops),
            }
            for mix in marked
        ]
        blocks.append(_make_table(rows))
    return blocks


def _draw_cost_chart(
    mixes: Sequence[ParetoPoint],
    cost: Callable[[ParetoPoint], int],
    words: Callable[[int], str],
    label: str,
) -> Figure:
    left, right = min(mix.sqnr for mix in mixes), max(mix.sqnr for mix in mixes)
    low, high = min(map(cost, mixes)), max(map(cost, mixes))

    def place(mix: ParetoPoint) -> tuple[float, float]:
        return (mix.sqnr - left) / ((right - left) or 1), (cost(mix) - low) / (high - low)

    line = sorted(place(mix) for mix in mixes if not (mix.name or mix.chosen))
    points = [
        (
            *place(mix),
            "chosen" if mix.chosen else "same",
            f"{shorten_name(mix.name) or 'chosen'}: {mix.sqnr:.1f} dB, {words(cost(mix))}",
        )
        for mix in sorted(mixes, key=lambda mix: mix.chosen)
        if mix.name or mix.chosen
    ]
    return Figure(
        charts.scatter(line[:: 1 + len(line) // 300], points),
        f"{label}: {words(low)} to {words(high)}",
        [f"{left:.1f} dB", "output SQNR", f"{right:.1f} dB"],
        [
            ("line", "best mixes"),
            ("same", "one format for all layers"),
            ("chosen", "this model (*)"),
        ],
    )


def _make_details(details: list[Details], report: ModelReport) -> list[Block]:
    if not details:
        return []
    more = len(report.layers) - len(details)
    rest = f" {format_count(more, 'further layer')} are in the JSON." if more > 0 else ""
    note = (
        "Histograms are logarithmic in height; the range of the grid is shaded, and its values are "
        f"marked below if they are few.{rest}"
    )
    return [*([note] if report.compilation is None or rest else []), *details]


def _describe_layer(row: LayerReport, anchor: str) -> Details:
    layer, quality = row.layer, row.quality
    about = [layer.operator, f"{text.format_widths(layer)} bits", row.kind]
    if quality is not None:
        about.append(text.format_decibels(quality.sqnr))
    blocks: list[Block] = [Facts({"reads": ", ".join(layer.inputs), "quantizer": layer.quantizer})]
    if quality is not None and quality.smoothed:
        blocks.append("Its activation channels are scaled against its weights.")
    blocks += (block for tensor in row.tensors for block in _describe_tensor(tensor))
    if row.observed is not None and len(row.observed.shares) > 1:
        blocks.append(_code_shares(row.observed))
    if row.compiled is None and not row.tensors:
        blocks.append("No quantizer with a constant grid precedes it.")
    blocks += _describe_risks(row)
    return Details(shorten_name(row.name), ", ".join(filter(None, about)), blocks, anchor)


def _describe_tensor(tensor: QuantizedTensor) -> Iterator[Block]:
    unit = " steps" if tensor.in_steps else ""
    grid = f"{tensor.kind}, {tensor.lowest:.6g} to {tensor.highest:.6g}{unit}"
    parts = [grid, format_count(tensor.scales, "scale")]
    if tensor.clipped is not None:
        parts.append(f"{format_percent(tensor.clipped)} clipped")
    if tensor.sqnr is not None:
        parts.append(f"{tensor.sqnr:.1f} dB by itself")
    title = f"{tensor.role.capitalize()} {shorten_name(tensor.name)}: {', '.join(parts)}"
    yield title if tensor.histogram is None else _draw_histogram(tensor, title)
    if len(tensor.channel_max) > 1:
        outlier = ""
        if tensor.outlier is not None and tensor.outlier[1] > _SHOWN_OUTLIER:
            channel, share = tensor.outlier
            outlier = f"; channel {channel} exceeds all others by {format_percent(share)}"
        yield Figure(
            charts.draw_bars(tensor.channel_max, "Largest magnitude per channel"),
            f"Largest magnitude of {tensor.channels} channels{outlier}",
        )


def _draw_histogram(tensor: QuantizedTensor, title: str) -> Figure:
    seen = tensor.histogram
    if seen is None:
        raise ValueError("a tensor without a histogram")
    room = _WIDEST_GRID * (seen.highest - seen.lowest) or abs(seen.highest) or 1.0
    left = min(seen.lowest, max(tensor.lowest, seen.lowest - room))
    right = max(seen.highest, min(tensor.highest, seen.highest + room))
    if left >= right:
        left, right = left - 1, right + 1

    def place(value: float) -> float:
        return min(max((value - left) / (right - left), 0.0), 1.0)

    chart = charts.draw_histogram(
        seen.counts,
        (place(seen.lowest), place(seen.highest)),
        (place(tensor.lowest), place(tensor.highest)),
        map(place, tensor.values),
    )
    unit = "steps of its channel" if tensor.in_steps else "values"
    return Figure(chart, title, [f"{left:.4g}", unit, f"{right:.4g}"])


def _code_shares(observed: Observation) -> Figure:
    codes = range(min(observed.shares), max(observed.shares) + 1)
    shares = [observed.shares.get(code, 0.0) for code in codes]
    titles = [f"{code}: {format_percent(share)}" for code, share in zip(codes, shares, strict=True)]
    titles = titles if len(titles) <= _MAX_TOOLTIPS else []  # a rectangle each
    chart = charts.draw_bars(shares, "Shares of codes", titles)
    return Figure(chart, "Codes of the result", [str(codes[0]), str(codes[-1])])


def _describe_risks(row: LayerReport) -> Iterator[Block]:
    """Yield the accumulators of a layer at which float32 may give another code."""
    if row.compiled is None or not row.compiled.risks:
        return
    yield (
        f"At {text.format_risk_count(row.compiled)} sums another float32 evaluation of the graph "
        "may give the adjacent code: the edge between two codes is nearer than a float32 rounding "
        "error."
    )
    sums: dict[int, list[str]] = {}
    for channel, accumulator in row.compiled.risks[:_MAX_RISKS]:
        sums.setdefault(channel, []).append(str(accumulator))
    more = len(row.compiled.risks) - _MAX_RISKS
    lines = [f"channel {channel}: {', '.join(values)}" for channel, values in sums.items()]
    yield Items([*lines, f"and {more} more"] if more > 0 else lines)
