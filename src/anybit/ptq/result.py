# SPDX-License-Identifier: Apache-2.0
"""A quantized model, and what is to be said of it."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir

from anybit.metrics.quality import QualityMetrics
from anybit.onnx.conversion import convert
from anybit.onnx.files.writer import Result, save
from anybit.onnx.forms import Form
from anybit.ptq.algorithms.range_clipping import RangeCandidate
from anybit.text import counted, sized


@dataclass(frozen=True)
class QuantizedLayer:
    """One node that multiplies.

    Attributes:
        name, operator: The node's.
        weights, activations: The kinds of its quantizers, and what else was asked of them; "" where
            there is none.
        weight_bits, activation_bits: Their widths; 32 where there is none, the widest of several,
            and 0 of weights that it has none of.
        shape: The shape of its weight, of the first of several; () without one.
        parameters: How many elements its weights have.
        bytes: What its weights take in as many bits as they have; several layers may share them.
        macs: Multiplications for the first sample; None without data.
        sqnr: Signal over noise of its output alone, all else being float, in dB; None where
            nothing was tried with data.
        output_sqnr: The same of the worst output of the model, this layer alone being quantized,
            with its part of the noise of weights that others read, too; None where that was not
            measured.
        smoothed: Whether channels of its activations are scaled against its weights.
        tried: The ranges that what it reads might have had: the whole one, and the best.
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
    """What a mix of widths takes, and what comes out of it.

    Attributes:
        name: As "int4/uint8" where all layers have the same; "" else.
        bytes: What the constants of the model take.
        bops: Operations on bits: multiplications times the widths of both factors.
        sqnr: Signal over noise of the worst output, in dB, as predicted.
        chosen: Whether it became the model.
    """

    name: str
    bytes: int
    bops: int
    sqnr: float
    chosen: bool


@dataclass(frozen=True)
class QuantizationResult(Result):
    """The result of `quantize`: a model in our operators, which can be saved and is a source.

    Attributes:
        model: The model. `onnx_ir.to_proto` turns it into an `onnx.ModelProto`.
        layers: What became of each layer, in order.
        skipped: Operators that stay float32 although they hold weights, with the reason.
        remarks: What became of wishes that contradict one another, and of data whose rows are one
            sample, in words.
        front: The mixes of widths that a budget chose from, and those of one width; none without.
        verdict: What that did to the outputs; None without data.
        bytes_before, bytes_after: What the constants of the float model take, and what those of
            this one do with weights in as many bits as they have.
        form: The form in which `save` writes it: "compact", or "qonnx" for a target.
    """

    model: ir.Model = field(repr=False)
    layers: tuple[QuantizedLayer, ...]
    skipped: Mapping[str, str]
    remarks: tuple[str, ...]
    front: tuple[ParetoPoint, ...]
    verdict: QualityMetrics | None
    bytes_before: int
    bytes_after: int
    form: Form = Form.COMPACT

    def save(self, path: str | os.PathLike[str], *, to: str | None = None) -> None:
        """Write the model in a form of `anybit.convert`; by default in `form`.

        "compact" is the smallest: weights are stored as codes of their width. Tools that read QONNX
        alone take "qonnx", in which weights are floats with a quantizer behind each.

        Raises:
            ModelError: As `anybit.convert` and `anybit.save`.
        """
        to = self.form if to is None else to
        save(self.model if to == Form.QONNX else convert(self, to=to), path)

    def __repr__(self) -> str:
        sqnr = self.verdict.sqnr if self.verdict else None
        said = [
            counted(len(self.layers), "layer"),
            *([] if sqnr is None else [f"{sqnr:.1f} dB"]),
            f"{sized(self.bytes_before)} -> {sized(self.bytes_after)} of constants",
        ]
        return f"<anybit.QuantizationResult: {', '.join(said)}>"

    def to_json(self) -> dict[str, Any]:
        """All but the model, as JSON has it."""
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
            "layers": [asdict(each) for each in self.layers],
            "skipped": dict(self.skipped),
            "remarks": list(self.remarks),
            "front": [asdict(each) for each in self.front],
        }
