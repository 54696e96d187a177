# SPDX-License-Identifier: Apache-2.0
"""The report on a model: plain data, from which text, JSON and HTML pages are made."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anybit.onnx.summary import ModelSummary
from anybit.quant_types.layer_info import Guarantee, LayerInfo, Span

if TYPE_CHECKING:
    from anybit.compiler.layer import CompiledLayer
    from anybit.compiler.report import Report
    from anybit.ptq import ParetoPoint, QualityMetrics

SCHEMA = 1
"""Version of the JSON; docs/schemas.md describes it."""
FLOAT_BITS = 32


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins of equal width between two ends."""

    lowest: float
    highest: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class QuantizedTensor:
    """A quantized factor of a layer: its grid, and its observed values.

    Values and grid are in steps of their channel's scale, zero-point included, if there are
    several scales.

    Attributes:
        name: Name of the tensor before its quantizer.
        role: "weights" or "activations".
        kind: Format of the grid: "uint8", "float4_e2m1fn".
        scales: Number of scales.
        in_steps: Whether values are in steps.
        lowest: Low end of the grid.
        highest: High end of the grid.
        values: All values of a grid with few values.
        histogram: Observed values; None for activations without data.
        clipped: Share of values beyond the ends; None if unknown.
        sqnr: Signal-to-noise ratio of the quantized tensor in dB; None if unknown.
        channel_max: Largest magnitude per channel, or per group of neighbouring channels.
        channels: Number of channels; 0 if unknown.
        outlier: The channel with the largest magnitude, and the share of it that exceeds all other
            channels; None with fewer than two nonzero channels.
    """

    name: str
    role: str
    kind: str
    scales: int
    in_steps: bool
    lowest: float
    highest: float
    values: tuple[float, ...] = ()
    histogram: Histogram | None = None
    clipped: float | None = None
    sqnr: float | None = None
    channel_max: tuple[float, ...] = ()
    channels: int = 0
    outlier: tuple[int, float] | None = None


@dataclass(frozen=True)
class Observation:
    """Codes and sums of a layer on data.

    Attributes:
        input_codes: Lowest and highest code of the activations; None without codes.
        output_codes: Lowest and highest code of the quantized result.
        sums: Lowest and highest sum.
        clipped: Share of sums that the quantizer of the result clips; None without quantizer.
        constant_channels: Channels of the quantized result with one value on all data.
        channels: Number of channels.
        shares: Share of each code of the quantized result, if there are at most 256.
    """

    input_codes: Span | None
    output_codes: Span | None
    sums: tuple[float, float]
    clipped: float | None
    constant_channels: tuple[int, ...]
    channels: int
    shares: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerQuality:
    """Quantization noise of a layer, as `quantize` measured it.

    Attributes:
        sqnr: SQNR of its output with all other layers in float, in dB; None if not measured.
        output_sqnr: SQNR of the model outputs with all other layers in float, in dB.
        noise: Share in the noise of all layers, at the model outputs if measured for all of them.
        smoothed: Whether activation channels are scaled against the weights.
    """

    sqnr: float | None = None
    output_sqnr: float | None = None
    noise: float | None = None
    smoothed: bool = False


@dataclass(frozen=True)
class LayerReport:
    """A layer and what tools know about it.

    Attributes:
        layer: Name, operator, shapes, work, widths, and bounds proven from the model.
        bytes: Size of its constant weights at their bit widths.
        tensors: Its quantized factors.
        observed: Codes and sums on data; None without data.
        quality: Quantization noise; None unless `quantize` reports it.
        compiled: Its integer code; None unless `compile` reports it.
    """

    layer: LayerInfo
    bytes: int = 0
    tensors: tuple[QuantizedTensor, ...] = ()
    observed: Observation | None = None
    quality: LayerQuality | None = None
    compiled: "CompiledLayer | None" = None

    @property
    def name(self) -> str:
        """Return the name of the layer."""
        return self.layer.name

    @property
    def guarantee(self) -> Guarantee | None:
        """Return the guarantee of the compiled layer, or else of the value analysis."""
        return self.layer.guarantee if self.compiled is None else self.compiled.guarantee

    @property
    def kind(self) -> str:
        """Return the guarantee of the layer, "integer", "dynamic" or "float"; see `MEANINGS`."""
        if self.guarantee is not None:
            return self.guarantee.value
        if self.layer.integer:
            return "integer"
        return "dynamic" if self.compiled is None and self.may_be_integer else "float"

    @property
    def may_be_integer(self) -> bool:
        """Return whether all factors are quantized or computed, with scales of each inference."""
        has_float_weight = self.layer.weight_bits == FLOAT_BITS and self.layer.parameters > 0
        return self.layer.dynamic and not has_float_weight

    @property
    def reason(self) -> str:
        """Return why the layer is not exact; empty if it is."""
        return self.layer.reason if self.compiled is None else self.compiled.reason

    @property
    def noise(self) -> float | None:
        """Return the share in the noise of all layers; None if unknown."""
        return None if self.quality is None else self.quality.noise


@dataclass(frozen=True)
class Totals:
    """Sums over the layers, each counted once; unknown sizes count as 0.

    Attributes:
        layers: Number of layers that multiply.
        parameters: Elements of constant weights.
        macs: Multiplications per inference.
        bops: Bit operations.
        weight_bits: Mean width of the weights; None without weights.
        weight_bytes: Size of the weights at their widths.
        accumulator_bits: Width of the widest accumulator; None if there is none.
        exact: Number of exact layers.
        certified: Number of certified layers.
        bounded: Number of bounded layers.
        integer: Number of layers that are integer operators of the file.
        dynamic: Number of layers with scales of each inference, which only `compile` decides.
        float: Number of float layers.
        unknown: Number of layers of unknown size.
    """

    layers: int = 0
    parameters: int = 0
    macs: int = 0
    bops: int = 0
    weight_bits: float | None = None
    weight_bytes: int = 0
    accumulator_bits: int | None = None
    exact: int = 0
    certified: int = 0
    bounded: int = 0
    integer: int = 0
    dynamic: int = 0
    float: int = 0
    unknown: int = 0


def count_layer_bytes(layer: LayerInfo) -> int:
    """Return the size of the constant weights of a layer at their bit width."""
    return (layer.parameters * layer.weight_bits + 7) // 8


def compute_totals(reports: Iterable[LayerReport]) -> Totals:
    """Return the totals of layers; a layer in several regions counts once."""
    rows = list({row.layer.output: row for row in reports if row.layer.macs != 0}.values())
    layers = [row.layer for row in rows]
    kinds = [row.kind for row in rows]
    parameters = sum(layer.parameters for layer in layers)
    bits = sum(layer.parameters * layer.weight_bits for layer in layers)
    return Totals(
        layers=len(layers),
        parameters=parameters,
        macs=sum(layer.macs or 0 for layer in layers),
        bops=sum(layer.bops or 0 for layer in layers),
        weight_bits=bits / parameters if parameters else None,
        weight_bytes=(bits + 7) // 8,
        accumulator_bits=max((layer.accumulator_bits or 0 for layer in layers), default=0) or None,
        unknown=sum(layer.macs is None for layer in layers),
        **{
            kind: kinds.count(kind)
            for kind in ("exact", "certified", "bounded", "integer", "dynamic", "float")
        },
    )


@dataclass(frozen=True)
class DataSummary:
    """The data that a model was run on.

    Attributes:
        samples: Number of samples.
        observed: Number of samples that were run.
        seconds: Shortest time of one sample.
    """

    samples: int
    observed: int
    seconds: float


@dataclass(frozen=True)
class Advice:
    """A problem of a quantized model, and its remedy."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"* {self.text} {self.remedy}"


@dataclass(frozen=True)
class QuantizationReport:
    """Quality and choices of `quantize`.

    Attributes:
        verdict: Quality of the outputs; None without data.
        skipped: Layers that stay float, with the reasons.
        front: Mixed precisions that a budget search considered.
    """

    verdict: "QualityMetrics | None"
    skipped: Mapping[str, str] = field(default_factory=dict)
    front: tuple["ParetoPoint", ...] = ()


@dataclass(frozen=True)
class ModelReport:
    """A description of a model; `str` gives text for a terminal.

    Attributes:
        name: File of the model, or "the model".
        command: Command that made the model; empty if unknown.
        summary: Header, operators, quantizers and sizes of the file; None from `compile`.
        totals: Work and size of all layers.
        bytes_before: Size of constants with float weights; None unless `quantize` reports it.
        bytes_after: Size of constants at their bit widths; None unless `quantize` reports it.
        layers: Layers in graph order; empty if not requested.
        input_ranges: Ranges of the inputs that the caller stated.
        data: Data that the model was run on; None without data.
        advice: Problems with their remedies, the worst first.
        quantization: Quality and choices of `quantize`; None from other commands.
        compilation: Regions, coverage and speed; None unless `compile` reports them.
    """

    name: str
    command: str = ""
    summary: ModelSummary | None = None
    totals: Totals = Totals()
    bytes_before: int | None = None
    bytes_after: int | None = None
    layers: tuple[LayerReport, ...] = ()
    input_ranges: Mapping[str, str] = field(default_factory=dict)
    data: DataSummary | None = None
    advice: tuple[Advice, ...] = ()
    quantization: QuantizationReport | None = None
    compilation: "Report | None" = None

    @property
    def verdict(self) -> "QualityMetrics | None":
        """Return the quality of the outputs; None if it was not measured."""
        return None if self.quantization is None else self.quantization.verdict

    @property
    def ranked(self) -> tuple[LayerReport, ...]:
        """Return the layers in order of noise, then of bit operations, the largest first."""
        return tuple(
            sorted(self.layers, key=lambda row: (-(row.noise or 0), -(row.layer.bops or 0)))
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data; infinities become None."""
        record: dict[str, Any] = {"schema": SCHEMA}
        record |= {item.name: _convert_to_json(getattr(self, item.name)) for item in fields(self)}
        if self.verdict is not None:
            record["quantization"]["verdict"] |= {
                "passed": self.verdict.passed,
                "failures": list(self.verdict.failures),
            }
        for layer in record["layers"]:
            if layer["compiled"] is not None:
                del layer["compiled"]["layer"]
        if self.compilation is not None:
            record["compilation"] = _convert_to_json(self.compilation.to_json())
            del record["compilation"]["layers"]
        return record

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML file that works offline.

        Raises:
            OSError: The file cannot be written.
        """
        from anybit.inspection.pages import render_report

        Path(path).write_text(render_report(self), encoding="utf-8")

    def __str__(self) -> str:
        from anybit.inspection.text import report_text

        return report_text(self)


def _convert_to_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _convert_to_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _convert_to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
