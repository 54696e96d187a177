# SPDX-License-Identifier: Apache-2.0
"""Problems of a quantized model that its report shows, with remedies."""

from collections.abc import Iterator
from dataclasses import replace

from anybit.inspection.model_report import (
    FLOAT_BITS,
    Advice,
    LayerReport,
    ModelReport,
    QuantizedTensor,
)
from anybit.text import format_count, format_percent, join_names, shorten_name

_MAX_ADVICE = 12
# Share of a range that one channel exceeds all others by, and share of clipped values.
_OUTLIER, _CLIPPED = 0.75, 0.01
_MIN_CHANNELS, _MIN_NOISE = 3, 0.002
# The grid reaches farther than the data by this factor.
_UNUSED = 4.0
# A layer is noisy with this share of the noise, and this multiple of an equal share.
_NOISY, _TIMES_EQUAL = 0.3, 2.0


def add_advice(report: ModelReport) -> ModelReport:
    """Return the report with advice, the worst problem first."""
    advice = [
        *_advise_on_verdict(report),
        *_advise_on_noise(report),
        *(item for layer in report.ranked for item in _advise_on_layer(layer)),
        *_advise_on_floats(report),
    ]
    return replace(report, advice=tuple(advice[:_MAX_ADVICE]))


def _advise_on_verdict(report: ModelReport) -> Iterator[Advice]:
    verdict = report.verdict
    if verdict is None:
        return
    if not verdict.passed:
        yield Advice(
            f"Quality check failed: {'; '.join(verdict.failures)}.",
            "Give the layers with the most noise more bits (--layer, --budget), or keep them in "
            "float (--keep).",
        )
    from anybit.metrics.confidence import MIN_SAMPLES

    if verdict.seen or verdict.samples < MIN_SAMPLES:
        were = "was" if verdict.samples == 1 else "were"
        few = f"Only {format_count(verdict.samples, 'sample')} {were}"
        yield Advice(
            f"{'No sample was' if verdict.seen else few} held out for evaluation.",
            "Provide hundreds of samples; labels are not needed.",
        )


def _advise_on_noise(report: ModelReport) -> Iterator[Advice]:
    limit = max(_NOISY, _TIMES_EQUAL / max(len(report.layers), 1))
    for layer in report.ranked[:1]:
        if layer.noise is not None and layer.noise > limit:
            yield Advice(
                f"{format_percent(layer.noise)} of the noise of all layers comes from "
                f"{shorten_name(layer.name)}.",
                "Give that layer more bits (--layer), or keep it in float (--keep).",
            )


def _advise_on_layer(layer: LayerReport) -> Iterator[Advice]:
    for tensor in layer.tensors:
        name = f"the {tensor.role} of {shorten_name(layer.name)}"
        if tensor.outlier is not None and _is_outlier(layer, tensor, tensor.outlier[1]):
            channel, share = tensor.outlier
            yield Advice(
                f"Channel {channel} alone uses {format_percent(share)} of the range of {name}.",
                "Use one scale per channel (--weights 'int8 per-channel')."
                if tensor.role == "weights"
                else "Give the layer more bits, or keep it in float.",
            )
        if tensor.role == "activations" and (tensor.clipped or 0) > _CLIPPED:
            yield Advice(
                f"{format_percent(tensor.clipped or 0)} of {name} are clipped.",
                "If these data are representative, calibrate with more of them.",
            )
        yield from _advise_on_range(tensor, name)


def _is_outlier(layer: LayerReport, tensor: QuantizedTensor, share: float) -> bool:
    """Return whether several channels share one scale that one of them determines."""
    matters = layer.noise is None or layer.noise > _MIN_NOISE
    return share > _OUTLIER and tensor.scales == 1 and tensor.channels >= _MIN_CHANNELS and matters


def _advise_on_range(tensor: QuantizedTensor, name: str) -> Iterator[Advice]:
    histogram = tensor.histogram
    if histogram is None or tensor.role == "weights":
        return
    used = histogram.highest - histogram.lowest
    if used == 0:
        yield Advice(
            f"All values of {name} are {histogram.lowest:.6g}.",
            "The layer has no effect on these data: check that they are as intended.",
        )
    elif _UNUSED * used < tensor.highest - tensor.lowest:
        share = used / (tensor.highest - tensor.lowest)
        yield Advice(
            f"The data use {format_percent(share)} of the range of {name}.",
            "Check that these data are like the calibration data.",
        )


def _advise_on_floats(report: ModelReport) -> Iterator[Advice]:
    floats = [] if report.quantization is None else list(report.quantization.skipped)
    if not floats:
        floats = [
            row.name
            for row in report.layers
            if row.layer.weight_bits == FLOAT_BITS and not row.may_be_integer
        ]
        if len(floats) == len(report.layers):
            return  # a float model
    if floats:
        yield Advice(
            f"{format_count(len(floats), 'layer')} {'stays' if len(floats) == 1 else 'stay'} "
            f"float: {join_names(map(shorten_name, floats), 4)}.",
            "The report has the reasons.",
        )
