# SPDX-License-Identifier: Apache-2.0
"""From a quantized model to what is said of it."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from anybit.layers.layer import Layer
from anybit.onnx.files.reader import Source
from anybit.onnx.preparation import followable
from anybit.onnx.process import relaxed_gc
from anybit.quantization import Quantized
from anybit.quantization.samples import Data
from anybit.reporting.facts import Report, ReportedLayer, Sample
from anybit.reporting.findings import with_findings
from anybit.reporting.quantized_layers import QuantizedLayer, quantized_layers
from anybit.reporting.running import run
from anybit.reporting.sizes import sizes, stored_bytes


@relaxed_gc()
def report(
    source: Source,
    data: Data | None = None,
    *,
    name: str = "",
    command: str = "",
    progress: Callable[[float], None] | None = None,
) -> Report:
    """What is to be said of a quantized model: its layers, their noise, and what is striking.

    Args:
        source: As for `anybit.load`. What `quantize` gives knows more than its file does.
        data: As for `quantize`: what activations are is seen on up to 64 samples.
        name: What to call it, instead of its file.
        command: What made it, to be shown.
        progress: Called with the share that is done, from 0 to 1.

    Raises:
        ModelError: The model cannot be read or run, or the data do not fit it.
    """
    model = followable(source)
    file = os.fspath(source) if isinstance(source, str | os.PathLike) else "the model"
    layers = quantized_layers(model)
    gauges = {factor: factor.gauge() for layer in layers for factor in layer.factors}
    ran = None
    if data is not None:
        computed = [(each, gauge) for each, gauge in gauges.items() if not each.is_constant]
        ran = run(model, computed, data, file, progress or (lambda share: None))
    found = Report(
        name=name or file,
        layers=tuple(
            ReportedLayer(
                each.layer,
                tuple(gauges[factor].tensor() for factor in each.factors),
                _bytes(each),
            )
            for each in layers
        ),
        command=command,
        ran=None if ran is None else ran.ran,
    )
    if isinstance(source, Quantized):
        found = _told(found, source, () if ran is None else ran.names)
    else:
        before, after = sizes(model, gauges)
        found = replace(found, bytes_before=before, bytes_after=after)
    return with_findings(found)


def _bytes(layer: QuantizedLayer) -> int:
    """What its weights take; floats where they have no quantizers."""
    weights = [each for each in layer.factors if each.is_constant]
    if weights:
        return sum(map(stored_bytes, weights))
    return (layer.layer.parameters * layer.layer.weight_bits + 7) // 8


def _told(report: Report, source: Quantized, names: Sequence[str]) -> Report:
    """With what `quantize` knows."""
    known = {each.name: each for each in source.layers}
    layers = []
    for layer in report.layers:
        row = known.get(layer.name)
        if row is not None:
            layer = replace(
                layer,
                layer=_with_work(layer.layer, row.macs),
                bytes=row.bytes if row.weights else layer.bytes,
                sqnr=row.sqnr,
                output_sqnr=row.output_sqnr,
                smoothed=row.smoothed,
                tried=row.tried,
            )
        layers.append(layer)
    worst = () if source.verdict is None else source.verdict.worst
    return replace(
        report,
        layers=tuple(_with_shares(layers)),
        left=source.left,
        verdict=None if source.verdict is None else replace(source.verdict, worst=()),
        bytes_before=source.bytes_before,
        bytes_after=source.bytes_after,
        front=source.front,
        worst=tuple(
            Sample(
                names[each.number] if each.number < len(names) else "",
                each.number,
                each.sqnr,
                each.agrees,
            )
            for each in worst
        ),
    )


def _with_work(layer: Layer, macs: int | None) -> Layer:
    """The layer with the multiplications of a sample, where sizes alone do not say them."""
    if layer.macs is not None or macs is None:
        return layer
    return replace(layer, macs=macs, bops=macs * layer.input_bits * layer.weight_bits)


def _with_shares(layers: Sequence[ReportedLayer]) -> Iterator[ReportedLayer]:
    """The layers with their shares in the noise of all."""
    known = [each for each in layers if each.sqnr is not None or each.output_sqnr is not None]
    at_outputs = all(each.output_sqnr is not None for each in known)
    levels = [each.output_sqnr if at_outputs else each.sqnr for each in layers]
    noises = [None if each is None else 10 ** (-each / 10) for each in levels]
    total = sum(each for each in noises if each is not None)
    for layer, noise in zip(layers, noises, strict=True):
        yield replace(layer, noise=noise / total if noise is not None and total else None)
