# SPDX-License-Identifier: Apache-2.0
"""From a model, its data, and the results of `quantize` and `compile` to a report."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anybit.inspection.advice import add_advice
from anybit.inspection.factors import find_targets
from anybit.inspection.model_report import (
    LayerQuality,
    LayerReport,
    ModelReport,
    QuantizationReport,
    compute_totals,
    count_layer_bytes,
)
from anybit.metrics.sqnr import sqnr_to_noise
from anybit.onnx.analysis.analysis import analyze
from anybit.onnx.analysis.layers import find_quantizers_after
from anybit.onnx.analysis.ranges import Ranges, index_by_name, make_input_values
from anybit.onnx.files.reader import Source
from anybit.onnx.preparation import prepare_for_analysis
from anybit.onnx.process import relax_gc
from anybit.onnx.summary import summarize

if TYPE_CHECKING:
    from anybit.compiler.report import Report
    from anybit.data.dataset import DataSource
    from anybit.ptq import LayerResult, QuantizationResult


@relax_gc()
def inspect(
    source: Source,
    data: "DataSource | None" = None,
    *,
    layers: bool = True,
    input_ranges: Ranges | None = None,
    progress: Callable[[float], None] | None = None,
) -> ModelReport:
    """Describe a model: its contents, the work and the bounds of its layers, and data on it.

    Bounds are proven from weights and quantizers, for every input within the ranges. The model
    runs only with `data`.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        data: Samples as for `quantize`. The model runs on at most 64 of them.
        layers: Whether to describe each layer; else the summary and the totals only.
        input_ranges: Values of inputs by name, or of the only input: "uint8" (integers of a type),
            "uint8/255" or "int8*0.5" (scaled in float32), "uint8-128/127" (with a zero-point),
            "-1,1" or (-1, 1) (an interval).
        progress: Called with the finished share, from 0 to 1.

    Raises:
        ModelError: The model cannot be read or run, or ranges or data do not fit it.

    >>> report = inspect("examples/digits_w4a4.onnx")
    >>> [(row.kind, row.layer.accumulator_bits) for row in report.layers]
    [('exact', 14), ('exact', 12), ('exact', 12)]
    """
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else "the model"
    summary = summarize(source)
    model = prepare_for_analysis(source)
    ranges = make_input_values(
        input_ranges, [v for v in model.graph.inputs if not v.is_initializer()]
    )
    analysis = analyze(model, ranges)
    targets = find_targets(model, analysis, find_quantizers_after(analysis.products))
    rows = [LayerReport(target.layer, count_layer_bytes(target.layer)) for target in targets]
    report = ModelReport(
        name,
        summary=summary,
        totals=compute_totals(rows),
        input_ranges={key: str(value) for key, value in index_by_name(input_ranges).items()},
    )
    if not layers and data is None:
        return report
    # Statistics come with quantization, which a summary does not need.
    from anybit.inspection.gauge import Gauge, measure_weights

    factors = [factor for target in targets for factor in target.factors]
    tensors = {factor: measure_weights(factor) for factor in factors if factor.is_constant}
    if data is None:
        tensors |= {f: Gauge(f).tensor() for f in factors if not f.is_constant}
    else:
        from anybit.inspection.observing import run_on_data

        run = run_on_data(
            model, targets, analysis, ranges, data, name, progress or (lambda share: None)
        )
        tensors |= {factor: gauge.tensor() for factor, gauge in run.gauges.items()}
        rows = [
            replace(row, observed=observed)
            for row, observed in zip(rows, run.observations, strict=True)
        ]
        report = replace(report, data=run.summary)
    rows = [
        replace(row, tensors=tuple(tensors[factor] for factor in target.factors))
        for row, target in zip(rows, targets, strict=True)
    ]
    return add_advice(replace(report, layers=tuple(rows)))


def report_quantization(
    result: "QuantizationResult",
    data: "DataSource | None" = None,
    *,
    name: str = "",
    command: str = "",
    progress: Callable[[float], None] | None = None,
) -> ModelReport:
    """Describe the result of `quantize`: as `inspect`, with quality, noise and choices.

    Args:
        result: The quantized model.
        data: The samples that it was calibrated with.
        name: Name of the model in the report.
        command: Command that made the model.
        progress: Called with the finished share, from 0 to 1.

    Raises:
        ModelError: The data do not fit the model.
    """
    report = inspect(result, data, progress=progress)
    by_layer = {layer.name: layer for layer in result.layers}
    rows = [_add_quantization(row, by_layer.get(row.name)) for row in report.layers]
    rows = list(_add_noise_shares(rows))
    return add_advice(
        replace(
            report,
            name=name or report.name,
            command=command,
            totals=compute_totals(rows),
            layers=tuple(rows),
            bytes_before=result.bytes_before,
            bytes_after=result.bytes_after,
            quantization=QuantizationReport(result.verdict, result.skipped, result.front),
        )
    )


def _add_quantization(row: LayerReport, layer: "LayerResult | None") -> LayerReport:
    """Return a layer with the results of `quantize`, and its work where sizes are dynamic."""
    if layer is None:
        return row
    info = row.layer
    if info.macs is None and layer.macs is not None:
        info = replace(info, macs=layer.macs)
    return replace(
        row,
        layer=info,
        bytes=layer.bytes if layer.weights else row.bytes,
        quality=LayerQuality(layer.sqnr, layer.output_sqnr, smoothed=layer.smoothed),
    )


def _add_noise_shares(rows: Sequence[LayerReport]) -> Iterator[LayerReport]:
    """Yield the layers with their shares in the noise of all."""
    at_outputs = all(
        row.quality.output_sqnr is not None
        for row in rows
        if row.quality is not None and (row.quality.sqnr, row.quality.output_sqnr) != (None, None)
    )
    noises = []
    for row in rows:
        sqnr = None
        if row.quality is not None:
            sqnr = row.quality.output_sqnr if at_outputs else row.quality.sqnr
        noises.append(None if sqnr is None else sqnr_to_noise(sqnr))
    total = sum(noise for noise in noises if noise is not None)
    for row, noise in zip(rows, noises, strict=True):
        if row.quality is None or noise is None or not total:
            yield row
        else:
            yield replace(row, quality=replace(row.quality, noise=noise / total))


def report_compilation(compilation: "Report", name: str) -> ModelReport:
    """Describe the result of `compile`: its layers, regions and times."""
    rows = tuple(
        LayerReport(row.layer, count_layer_bytes(row.layer), compiled=row)
        for row in compilation.layers
    )
    return ModelReport(name, totals=compute_totals(rows), layers=rows, compilation=compilation)
