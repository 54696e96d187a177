# SPDX-License-Identifier: Apache-2.0
"""Quantization steps of tensors: the scale of the quantizer that computes or reads each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.metrics.arrays import is_float
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.names import get_label
from anybit.onnx.quantizers.quantizer import Quantizer, find_own_quantizer, find_quantizer
from anybit.onnx.quantizers.trace import Traces
from anybit.ops.grids import Spacing

Arrays: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class QuantizationStep(Spacing):
    """The spacing of a tensor's values. `quantizer` is "itself" or a node's name."""

    quantizer: str = field(kw_only=True)


def find_step(value: ir.Value, arrays: Arrays, traces: Traces) -> QuantizationStep | None:
    """Return the step of a tensor of a normalized graph with these arrays.

    The result is None without a quantizer, or if its scale is unknown or does not broadcast.
    """
    array = arrays.get(value.name or "")
    if array is None:
        return None
    for quantizer, label in _find_quantizers(value, arrays, traces):
        if not is_float(array):  # codes of a quantizer have steps of 1
            return QuantizationStep(np.ones(()), quantizer=label)
        spacing = quantizer.find_spacing(array.shape, made=label == "itself")
        if spacing is not None:
            bits, bias = spacing.mantissa_bitwidth, spacing.exponent_bias
            return QuantizationStep(spacing.scale, bits, bias, quantizer=label)
    return None


def _find_quantizers(
    value: ir.Value, arrays: Arrays, traces: Traces
) -> Iterator[tuple[Quantizer, str]]:
    producer = value.producer()
    if producer is not None:  # values of a dequantizer lie on a grid, too
        quantizer = find_quantizer(producer, traces, arrays) or find_own_quantizer(producer, arrays)
        if quantizer is not None:
            yield quantizer, "itself"
    for reader, index in value.uses():
        quantizer = find_quantizer(reader, traces, arrays) if index == 0 else None
        if quantizer is not None:
            yield quantizer, get_label(reader)
