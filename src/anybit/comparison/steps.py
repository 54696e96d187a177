# SPDX-License-Identifier: Apache-2.0
"""How large one quantization step of a tensor is: that of its quantizer, or of its next reader."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.comparison.arrays import Array, is_float
from anybit.onnx.graph.names import label_of
from anybit.onnx.quantizers.quantizer import Quantizer, own_node, quantizer_of
from anybit.onnx.quantizers.trace import Traces
from anybit.ops.grids import Spacing

Arrays: TypeAlias = Mapping[str, Array]


@dataclass(frozen=True)
class Step(Spacing):
    """The spacing of a tensor's values. `quantizer` is "itself" or a node's name."""

    quantizer: str = field(kw_only=True)


def step_of(value: ir.Value, arrays: Arrays, traces: Traces) -> Step | None:
    """The step of a tensor of a normalized graph, given what the graph's tensors hold.

    None if no quantizer makes or reads it, or if the scale is unknown or does not broadcast.
    """
    array = arrays.get(value.name or "")
    if array is None:
        return None
    for quantizer, label in _quantizers(value, arrays, traces):
        if not is_float(array):  # codes of a quantizer: their step is 1
            return Step(np.ones(()), quantizer=label)
        found = quantizer.spacing(array.shape, made=label == "itself")
        if found is not None:
            return Step(found.scale, found.mantissa_bitwidth, found.exponent_bias, quantizer=label)
    return None


def _quantizers(value: ir.Value, arrays: Arrays, traces: Traces) -> Iterator[tuple[Quantizer, str]]:
    producer = value.producer()
    made = None
    if producer is not None:  # a dequantizer gives values on a grid, too
        made = quantizer_of(producer, traces, arrays) or own_node(producer, arrays)
    if made is not None:
        yield made, "itself"
    for reader, index in value.uses():
        read = quantizer_of(reader, traces, arrays) if index == 0 else None
        if read is not None:
            yield read, label_of(reader)
