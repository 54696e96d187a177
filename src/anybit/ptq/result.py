# SPDX-License-Identifier: Apache-2.0
"""The result of `quantize`: a model, its quality, and a description of its layers."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir

from anybit.metrics.quality import QualityMetrics
from anybit.onnx.conversion import convert
from anybit.onnx.files.writer import ModelResult, save
from anybit.onnx.forms import Form
from anybit.ptq.algorithms.range_clipping import RangeCandidate
from anybit.text import format_bytes, format_count


@dataclass(frozen=True)
class LayerResult:
    """A layer of a quantized model.

    Attributes:
        name, operator: The name and operator of the node; the operator of an output is "output".
        weights, activations: The specs of its quantizers; "" if there is none.
        weight_bits, activation_bits: Their widths: 32 for float, the widest of several, and 0 for
            the weights of a layer without weights.
        shape: The shape of its first weight; () without one.
        parameters: The number of elements of its weights.
        bytes: The size of its weights at their bit width. Several layers may share them.
        macs: Multiplications for the first sample; None without data.
        sqnr: The SQNR of its output in dB, with this layer quantized and the others float; None
            if it was not measured.
        output_sqnr: The SQNR of the worst output of the model in dB, with this layer quantized and
            the others float; None if it was not measured. Noise of a shared weight is divided among
            its layers.
        smoothed: Whether channels of its activations are scaled against its weights.
        tried: Ranges of its activations: the whole range, and the best candidates.
    """

    name: str
    operator: str
    weights: str
    activations: str
    weight_bits: int
    activation_bits: int
    shape: tuple[int, ...]
    parameters: int
    bytes: int
    macs: int | None
    sqnr: float | None
    output_sqnr: float | None
    smoothed: bool
    tried: tuple[RangeCandidate, ...] = ()


@dataclass(frozen=True)
class ParetoPoint:
    """Cost and quality of one mixed precision.

    Attributes:
        name: The formats, such as "int4/uint8", if all layers have the same; "" otherwise.
        bytes: The size of the constants of the model.
        bops: Bit operations: multiplications times the widths of both factors.
        sqnr: The predicted SQNR of the worst output, in dB.
        chosen: Whether it was chosen.
    """

    name: str
    bytes: int
    bops: int
    sqnr: float
    chosen: bool


@dataclass(frozen=True)
class QuantizationResult(ModelResult):
    """The result of `quantize`, a model with the operators of anybit.

    It can be saved, and is a source for the functions that take a model.

    Attributes:
        model: The model. `onnx_ir.to_proto` turns it into an `onnx.ModelProto`.
        layers: The quantized layers, in order.
        skipped: Operators that stay float although they multiply or hold weights, with the reasons.
        remarks: Remarks on the options, the data and the result.
        front: The mixed precisions that a budget search considered, and the uniform widths.
        verdict: The quality of the outputs; None without data.
        bytes_before, bytes_after: Sizes of the constants of the float model, and of this model with
            weights at their bit width.
        form: The form in which `save` writes it: "compact", or "qonnx" for a target.
    """

    model: ir.Model = field(repr=False)
    layers: tuple[LayerResult, ...]
    skipped: Mapping[str, str]
    remarks: tuple[str, ...]
    front: tuple[ParetoPoint, ...]
    verdict: QualityMetrics | None
    bytes_before: int
    bytes_after: int
    form: Form = Form.COMPACT

    def save(self, path: str | os.PathLike[str], *, to: str | None = None) -> None:
        """Write the model in a form of `anybit.convert`, by default in `form`.

        "compact" is the smallest form: weights are stored as codes of their width. Sessions of your
        own need `session.disable_quant_qdq` = 1 for it; see `anybit.onnxruntime.session`. Tools
        that read only QONNX need "qonnx", in which weights are float with a quantizer after each.

        Raises:
            ModelError: See `anybit.convert` and `anybit.save`.
        """
        to = self.form if to is None else to
        save(self.model if to == Form.QONNX else convert(self, to=to), path)

    def __repr__(self) -> str:
        sqnr = self.verdict.sqnr if self.verdict else None
        parts = [
            format_count(len(self.layers), "layer"),
            *([] if sqnr is None else [f"{sqnr:.1f} dB"]),
            f"{format_bytes(self.bytes_before)} -> {format_bytes(self.bytes_after)} of constants",
        ]
        return f"<anybit.QuantizationResult: {', '.join(parts)}>"

    def to_json(self) -> dict[str, Any]:
        """Return all but the model, as JSON types."""
        verdict = None
        if self.verdict is not None:
            verdict = asdict(self.verdict) | {
                "passed": self.verdict.passed,
                "failures": list(self.verdict.failures),
            }
        return {
            "verdict": verdict,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "layers": [asdict(layer) for layer in self.layers],
            "skipped": dict(self.skipped),
            "remarks": list(self.remarks),
            "front": [asdict(point) for point in self.front],
        }
