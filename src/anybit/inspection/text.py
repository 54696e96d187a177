# SPDX-License-Identifier: Apache-2.0
"""Reports as text: tables of strings by heading, and sentences, for terminals and pages."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from anybit.onnx.operators.multi_threshold import SPELLINGS
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.qdq.qlinear import is_integer_name
from anybit.onnx.quantizer_summary import ParameterSummary, QuantizerSummary
from anybit.onnx.summary import ModelSummary
from anybit.quant_types.layer_info import Guarantee, LayerInfo, Span
from anybit.text import (
    escape_name,
    format_amount,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    join_names,
    shorten_name,
)

if TYPE_CHECKING:
    from anybit.compiler.layer import CompiledLayer
    from anybit.compiler.report import Report
    from anybit.inspection.model_report import (
        LayerQuality,
        LayerReport,
        ModelReport,
        Observation,
    )
    from anybit.ptq import QualityMetrics

Row = dict[str, str]

NUMBERS = (
    *("MACs", "BOPs", "bytes", "parameters", "zeros", "codes in", "codes out", "weight codes"),
    *("accumulator", "acc. bits", "any weights", "sums", "sums seen", "in seen", "out seen"),
    *("clipped", "constant", "at risk", "time", "float time", "1 thread", "default threads"),
    *("SQNR, dB", "output, dB", "noise", "bits"),
)
"""Headings of right-aligned columns."""
MEANINGS = {
    **{guarantee.value: guarantee.meaning for guarantee in Guarantee},
    "integer": "an integer operator of the file",
    "dynamic": "scales of its input are computed at run time; compile reports its guarantee",
    "float": "not on integers: computed as in the graph",
}
COLUMNS = (
    *("layer", "operator", "result", "weight", "MACs", "BOPs", "bits", "zeros", "codes in"),
    *("weight codes", "accumulator", "acc. bits", "any weights", "codes out", "guarantee"),
)
COMPILED_COLUMNS = (
    *("layer", "operator", "guarantee", "bits", "MACs", "acc. bits", "results", "at risk"),
    *("kernel", "time", "float time"),
)
QUANTIZED_COLUMNS = (
    *("layer", "operator", "guarantee", "bits", "bytes", "MACs", "SQNR, dB", "output, dB"),
    *("noise", "acc. bits", "sums", "zeros", "result"),
)
# The first of these are left out where a terminal is narrow.
OMITTED_FIRST = (
    *("weight codes", "weight", "operator", "kernel", "results", "sums", "codes in", "any weights"),
    *("codes out", "result", "zeros", "BOPs", "accumulator", "bytes", "MACs", "float time"),
    "acc. bits",
)
OBSERVED_OMITTED_FIRST = ("most frequent codes", "codes in", "in seen", "sums", "codes out")
_MAX_CODES, _MAX_WEIGHTS = 4, 12
# How accumulators become results, by the record of the program.
_EPILOGUES = {
    "Thresholds": "thresholds",
    "Affine": "affine map",
    "Table": "table",
    "Arithmetic": "replay",
    "Rounded": "replay",
    "Scaled": "multiply and shift",
    "Piecewise": "pieces",
}
# Differences between reasons of one kind: a number, or a quoted name.
_DETAIL = re.compile(r"""-?\d+\.\d\S*|(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


def select_columns(report: ModelReport) -> tuple[str, ...]:
    """Return the columns of the layer table of a report."""
    if report.compilation is not None:
        return COMPILED_COLUMNS
    return COLUMNS if report.quantization is None else QUANTIZED_COLUMNS


def make_layer_rows(report: ModelReport) -> list[Row]:
    """Return a row per layer, of measured times between layers, and of the totals."""
    columns = select_columns(report)
    cells = [_make_layer_row(row) for row in report.layers]
    columns = tuple(name for name in columns if any(row[name] for row in cells))
    rows = [{name: row[name] for name in columns} for row in cells]
    if len(rows) > 1:
        total = {
            "layer": format_count(report.totals.layers, "layer"),
            "MACs": format_amount(report.totals.macs),
            "BOPs": format_amount(report.totals.bops),
            "acc. bits": _number(report.totals.accumulator_bits),
        }
        rows.append({name: total.get(name, "") for name in columns})
    return _add_times(rows, report)


def _add_times(rows: list[Row], report: ModelReport) -> list[Row]:
    """Return the rows, a row for the time between layers, and a last row for whole runs."""
    compilation = report.compilation
    if compilation is None or compilation.speed is None or not rows or "time" not in rows[0]:
        return rows
    speed, count = compilation.speed, len(report.layers)
    whole = {"time": speed.compiled.one_thread, "float time": speed.quantized_graph.one_thread}
    spent = {
        "time": sum(layer.seconds or 0.0 for layer in compilation.layers),
        "float time": sum(layer.float_seconds or 0.0 for layer in compilation.layers),
    }
    blank = dict.fromkeys(rows[0], "")
    gaps = {name: format_duration(max(whole[name] - spent[name], 0.0)) for name in whole}
    last = (rows[count:] or [blank | {"layer": "whole run"}])[0]
    return [
        *rows[:count],
        blank | {"layer": "between layers", "bits": "-"} | gaps,
        last | {name: format_duration(seconds) for name, seconds in whole.items()},
    ]


def _make_layer_row(row: LayerReport) -> Row:
    layer = row.layer
    return {
        "layer": layer.name,
        "operator": layer.operator,
        "result": layer.shape,
        "weight": layer.weight_shape,
        "MACs": format_amount(layer.macs) if layer.macs != 0 else "",
        "BOPs": format_amount(layer.bops) if layer.macs != 0 else "",
        "bits": format_widths(layer),
        "bytes": format_bytes(row.bytes) if row.bytes else "",
        "zeros": "" if layer.sparsity is None else format_percent(layer.sparsity),
        "codes in": format_span(layer.input_codes),
        "weight codes": format_span(layer.weight_codes),
        "accumulator": format_span(layer.accumulator),
        "acc. bits": _number(layer.accumulator_bits),
        "any weights": _number(layer.accumulator_bits_any),
        "sums": format_reals(layer.sums),
        "codes out": format_span(layer.output_codes),
        "guarantee": row.kind,
        **_make_quality_cells(row.quality),
        **_make_compiled_cells(row.compiled),
    }


def format_widths(layer: LayerInfo) -> str:
    """Return the widths of weights and activations: "8 x 8 dynamic"."""
    return f"{layer.weight_bits} x {layer.input_bits}" + " dynamic" * layer.dynamic


def _make_quality_cells(quality: LayerQuality | None) -> Row:
    if quality is None:
        return dict.fromkeys(("SQNR, dB", "output, dB", "noise"), "")
    return {
        "SQNR, dB": "" if quality.sqnr is None else f"{quality.sqnr:.1f}",
        "output, dB": "" if quality.output_sqnr is None else f"{quality.output_sqnr:.1f}",
        "noise": "" if quality.noise is None else format_percent(quality.noise),
    }


def _make_compiled_cells(layer: CompiledLayer | None) -> Row:
    if layer is None:
        return {}
    results = f"{layer.levels} codes" if layer.levels else "floats"
    return {
        "results": f"{results} by {_EPILOGUES[layer.epilogue]}" if layer.epilogue else "",
        "at risk": format_risk_count(layer),
        "kernel": layer.kernel,
        "time": "" if layer.seconds is None else format_duration(layer.seconds),
        "float time": "" if layer.float_seconds is None else format_duration(layer.float_seconds),
    }


def format_risk_count(layer: CompiledLayer) -> str:
    """Return the number of accumulators at risk; "1000+" if the list is cut."""
    if not layer.risks and not layer.more_risks:
        return ""
    return f"{len(layer.risks)}{'+' if layer.more_risks else ''}"


def make_observed_rows(report: ModelReport) -> list[Row]:
    """Return proven and observed values side by side, a row per observed layer."""
    return [
        _make_observed_row(row, row.observed) for row in report.layers if row.observed is not None
    ]


def _make_observed_row(row: LayerReport, observed: Observation) -> Row:
    layer = row.layer
    ranked = sorted(observed.shares.items(), key=lambda item: -item[1])[:_MAX_CODES]
    channels = f"{len(observed.constant_channels)} of {observed.channels}"
    return {
        "layer": layer.name,
        "codes in": format_span(layer.input_codes),
        "in seen": format_span(observed.input_codes),
        "sums": format_reals(layer.sums),
        "sums seen": format_reals(observed.sums),
        "codes out": format_span(layer.output_codes),
        "out seen": format_span(observed.output_codes),
        "clipped": "" if observed.clipped is None else format_percent(observed.clipped),
        "constant": channels if observed.channels else "",
        "most frequent codes": ", ".join(
            f"{code}: {format_percent(share)}" for code, share in ranked
        ),
    }


def group_reasons(layers: Iterable[LayerReport]) -> list[str]:
    """Return why layers are not exact; reasons that differ in numbers or names are grouped."""
    groups: dict[tuple[str, str], list[LayerReport]] = defaultdict(list)
    for layer in layers:
        if layer.reason:
            groups[layer.kind, _DETAIL.sub("", layer.reason)].append(layer)
    return [_format_reason(kind, group) for (kind, _), group in groups.items()]


def _format_reason(kind: str, layers: Sequence[LayerReport]) -> str:
    names, first = [shorten_name(layer.name) for layer in layers], layers[0].reason
    same = all(layer.reason == first for layer in layers)
    subject = join_names(names, 4) if same else f"{names[0]} (and {join_names(names[1:], 3)})"
    return f"{subject}: {kind}, {escape_name(first)}"


def describe_contents(summary: ModelSummary) -> Row:
    """Return the contents of a model file by heading."""
    opsets = ", ".join(f"{name or 'ai.onnx'} {version}" for name, version in summary.opsets.items())
    rows = {
        "producer": summary.producer or "unknown",
        "format": f"IR {summary.ir_version}; opsets {opsets or 'not declared'}",
        "inputs": ", ".join(f"{name}: {kind}" for name, kind in summary.inputs.items()),
        "outputs": ", ".join(f"{name}: {kind}" for name, kind in summary.outputs.items()),
        "operators": ", ".join(
            f"{n} {_shorten_operator(name)}" for name, n in summary.operators.items()
        ),
        "parameters": f"{summary.parameters:,} in {format_count(len(summary.weights), 'tensor')}, "
        f"constants {format_bytes(summary.constant_bytes)}",
    }
    if summary.unknown_operators:
        names = ", ".join(summary.unknown_operators)
        rows["unknown"] = f"{names}: this model cannot be run"
    return rows


def _shorten_operator(operator: str) -> str:
    """Return the name of an operator, without the domain of ours."""
    domain, _, name = operator.rpartition("::")
    return name if find_versions(domain, name) else operator


def describe_work(report: ModelReport) -> str:
    """Return layers, multiplications and widths of a model in a sentence."""
    totals = report.totals
    if not totals.layers:
        return "no Conv, ConvTranspose, Gemm or MatMul"
    parts = [format_count(totals.layers, "layer")]
    if totals.unknown == totals.layers:
        parts.append("MACs unknown because sizes are dynamic")
    else:
        parts.append(f"{format_amount(totals.macs)} MACs")
        parts.append(f"{format_amount(totals.bops)} bit operations")
    if totals.weight_bits is not None:
        parts.append(
            f"weights of {totals.weight_bits:.3g} bits ({format_bytes(totals.weight_bytes)})"
        )
    if totals.accumulator_bits is not None:
        parts.append(f"accumulators up to {totals.accumulator_bits} bits")
    return ", ".join(parts)


def make_quantizer_rows(quantizers: Iterable[QuantizerSummary]) -> list[Row]:
    """Return a row per kind of quantizer, with their number and the range of their scales."""
    groups: dict[tuple[str, ...], list[QuantizerSummary]] = defaultdict(list)
    for quantizer in quantizers:
        groups[_describe_kind(quantizer)].append(quantizer)
    rows = []
    for (operator, role, bits, codes, granularity, rounding), group in groups.items():
        rows.append(
            {
                "quantizers": f"{len(group)} {operator}",
                "of": role,
                "bits": bits,
                "codes": codes,
                "scales": _format_range(quantizer.scale for quantizer in group),
                "per": granularity,
                "zero-points": _format_range(quantizer.zero_point for quantizer in group),
                "rounding": rounding,
            }
        )
    return [{name: row[name] for name in row if any(other[name] for other in rows)} for row in rows]


def _describe_kind(quantizer: QuantizerSummary) -> tuple[str, ...]:
    scale = quantizer.scale
    return (
        f"{quantizer.operator} {quantizer.type}".strip(),
        quantizer.role + "*" * quantizer.constant,
        quantizer.bits,
        quantizer.codes,
        "" if scale is None else scale.granularity.removeprefix("per-"),
        str(quantizer.attributes.get("rounding_mode", "")),
    )


def _format_range(parameters: Iterable[ParameterSummary | None]) -> str:
    ends = [
        (parameter.smallest, parameter.largest)
        for parameter in parameters
        if parameter is not None
        and parameter.smallest is not None
        and parameter.largest is not None
    ]
    if not ends:
        return ""
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    return f"{low:.4g}" if low == high else f"{low:.2g}..{high:.2g}"


def make_quantizer_notes(summary: ModelSummary) -> list[str]:
    """Return how the quantizers run, or the weights of a model without quantizers."""
    if summary.quantizers:
        folded = sum(quantizer.constant for quantizer in summary.quantizers)
        needed = sum(not q.constant and bool(q.version) for q in summary.quantizers)
        return [
            f"{needed} of {format_count(len(summary.quantizers), 'quantizer')} run as nodes of the "
            f"operator library; {folded} are folded at load time (*)."
        ]
    split = {name: tuple(name.rpartition("::")[::2]) for name in summary.operators}
    thresholds = sum(n for name, n in summary.operators.items() if split[name] in SPELLINGS)
    on_codes = [
        f"{n} {name}" for name, n in summary.operators.items() if is_integer_name(*split[name])
    ]
    first = "No quantizers."
    if thresholds:
        first = (
            f"No quantizers, but {format_count(thresholds, 'MultiThreshold')}, which also quantize."
        )
    if on_codes:
        first = (
            f"No quantizers, but operators on codes ({', '.join(on_codes)}); "
            "anybit convert --to qonnx replaces those that it can."
        )
    weights = [f"  {name}: {kind}" for name, kind in summary.weights.items()]
    more = len(weights) - _MAX_WEIGHTS
    rest = [f"  and {more} more (--json has all)"] if more > 0 else []
    return [first + " The weights:" * bool(weights), *weights[:_MAX_WEIGHTS], *rest]


def describe_conclusion(report: ModelReport) -> str:
    """Return the main figures of a report in a sentence."""
    totals = report.totals
    if report.compilation is not None:
        return describe_coverage(report.compilation)
    if report.verdict is not None:
        failed = describe_failure(report.verdict)
        return f"{describe_quality(report.verdict)}{failed and f'; {failed}'}."
    if not totals.layers:
        return "No Conv, ConvTranspose, Gemm or MatMul."
    macs = sum(row.layer.macs or 0 for row in report.layers if row.kind == "exact")
    share = (
        f", {format_percent(macs / totals.macs)} of MACs" if totals.macs and report.layers else ""
    )
    if totals.integer:
        share += f", {format_count(totals.integer, 'integer operator')}"
    if totals.dynamic:
        share += f", {totals.dynamic} dynamic (anybit compile reports the guarantees)"
    return (
        f"{totals.exact} of {format_count(totals.layers, 'layer')} exact in float32{share}. "
        f"{format_amount(totals.parameters)} weights take "
        f"{format_bytes(totals.weight_bytes)} at their widths, "
        f"{format_bytes(4 * totals.parameters)} as float32."
    )


def describe_coverage(compilation: Report) -> str:
    """Return coverage and guarantees: "9 of 9 layers, 100 % of MACs on integers: 9 exact"."""
    counts = ", ".join(f"{count} {kind.value}" for kind, count in compilation.guarantees.items())
    kept = sum(layer.layer.integer for layer in compilation.products)
    rest = f"; {format_count(kept, 'integer operator')} not compiled" if kept else ""
    return f"{compilation.coverage} on integers" + (f": {counts}" if counts else "") + rest


def describe_unknown_sizes(report: ModelReport) -> str:
    """Return a note on layers that the totals do not count; empty if there is none."""
    names = [shorten_name(row.name) for row in report.layers if row.layer.macs is None]
    return f"MACs do not count layers of unknown size: {join_names(names, 4)}" if names else ""


def describe_quality(verdict: QualityMetrics) -> str:
    """Return the quality figures of the outputs in one line."""
    from anybit.metrics.confidence import MIN_SAMPLES

    figures = []
    if verdict.sqnr is not None:
        figures.append(f"SQNR {format_decibels(verdict.sqnr)}")
    if verdict.correlation is not None:
        figures.append(f"correlation {format_correlation(verdict.correlation)}")
    if verdict.agreement is not None:
        figures.append(f"agreement {100 * verdict.agreement:.1f} %")
    if verdict.logits_agreement is not None:
        figures.append(f"same arg max {100 * verdict.logits_agreement:.1f} %")
    where = f"{verdict.samples} held-out {'sample' if verdict.samples == 1 else 'samples'}"
    if verdict.seen:
        where = "the only sample, used for calibration, too (quality not measured: give hundreds)"
    elif verdict.samples < MIN_SAMPLES:
        where += " (few: give hundreds)"
    return f"On {where}: {', '.join(figures) or 'no output to compare'}"


def describe_failure(verdict: QualityMetrics) -> str:
    """Return which figures are below their thresholds; empty if none is."""
    failures = "; ".join(verdict.failures)
    return failures and (
        f"quality check failed: {failures}; use wider formats, or set the limit with --fail-below"
    )


def format_decibels(sqnr: float | None) -> str:
    """Return an SQNR with its unit; empty if unknown."""
    if sqnr is None:
        return ""
    return "no noise" if sqnr == math.inf else f"{sqnr:.1f} dB"


def format_correlation(r: float | None) -> str:
    """Return Pearson's r with four decimals; empty where it is not defined."""
    return "" if r is None else f"{r:.4f}"


def format_span(ends: Span | None) -> str:
    """Return two integers as "-7..7"; empty for None."""
    return "" if ends is None else f"{ends[0]}..{ends[1]}"


def format_reals(ends: tuple[float, float] | None) -> str:
    """Return two numbers in four digits; empty for None."""
    return "" if ends is None else f"{ends[0]:.4g}..{ends[1]:.4g}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def report_text(report: ModelReport) -> str:
    """Return the report as plain text."""
    lines: list[str] = []
    if report.summary is not None:
        rows = {
            "file": report.name,
            **describe_contents(report.summary),
            "work": describe_work(report),
        }
        width = max(map(len, rows))
        lines += [f"{name:{width}}  {escape_name(value)}" for name, value in rows.items()]
        lines += _format_plain_table(make_quantizer_rows(report.summary.quantizers))
        lines += map(escape_name, make_quantizer_notes(report.summary))
    if report.layers:
        lines += [
            *_format_plain_table(make_layer_rows(report)),
            *_format_plain_table(make_observed_rows(report)),
        ]
        lines += group_reasons(report.layers)
        lines += [str(advice) for advice in report.advice]
        lines.append(describe_conclusion(report))
    return "\n".join(lines)


def _format_plain_table(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of a table of strings."""
    if not rows:
        return
    table = [list(rows[0]), *([escape_name(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = [name in NUMBERS for name in rows[0]]
    yield ""
    for cells in table:
        aligned = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, right, strict=True)
        )
        yield "  ".join(aligned).rstrip()
    yield ""
