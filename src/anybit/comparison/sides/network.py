# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: a graph, and the arrays of its tensors."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.errors import DataError
from anybit.inputs import list_inputs
from anybit.metrics.arrays import is_number
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.passes import Normalize, StandardLayout
from anybit.onnx.preparation import apply_passes


class LoadedNetwork:
    """A model as its file has it, with normalized operators; nothing is folded.

    Attributes:
        label: The name of the file, for messages.
        model: The normalized model. Do not change it.
        inputs: The inputs of the model.
    """

    def __init__(self, source: Source) -> None:
        self.label = os.fspath(source) if isinstance(source, str | os.PathLike) else "the model"
        self.model = read_copy(source)
        apply_passes(self.model, source, Normalize(), StandardLayout())
        self.inputs = list_inputs(self.model.graph, self.label)

    @property
    def outputs(self) -> list[str]:
        return [value.name or "" for value in self.model.graph.outputs]

    @cached_property
    def values(self) -> list[ir.Value]:
        """Return constants and computed tensors, in topological order, without model inputs."""
        values: dict[ir.Value, None] = {}
        for node in self.model.graph:
            for value in node.inputs:
                if value is not None and is_constant(value):
                    values.setdefault(value)
            values.update(dict.fromkeys(value for value in node.outputs if value.name))
        return list(values)

    def constants(self) -> dict[str, Array]:
        """Return the constants that nodes read, by name."""
        return {
            value.name or "": array
            for value in self.values
            if value.producer() is None and is_number(array := read_array(value))
        }


@dataclass(frozen=True)
class Side:
    """Arrays by tensor name, and the graph of these tensors, if there is one.

    `arrays` has computed tensors and constants, `feeds` the inputs of the graph.
    """

    label: str
    arrays: Mapping[str, Array]
    network: LoadedNetwork | None = None
    feeds: Mapping[str, Array] = field(default_factory=dict)

    def computed(self) -> list[ir.Value]:
        """Return the outputs of nodes, in topological order, whose arrays are there."""
        if self.network is None:
            return []
        return [
            value
            for value in self.network.values
            if value.producer() is not None and value.name in self.arrays
        ]


def describe_producer(value: ir.Value) -> str:
    """Return the operator that computes a value; "quantizer" for all quantizers."""
    node = value.producer()
    if node is None:
        return ""
    operator = find_operator(node)
    quantizes = operator is not None and (operator.is_dequantizer or operator.result_dtype is None)
    if quantizes or is_onnx_op(node, "DequantizeLinear"):
        return "quantizer"
    return f"{node.domain}::{node.op_type}"


def load_recorded(arrays: Mapping[str, Any], label: str = "recorded tensors") -> Side:
    """Return a side of recorded tensors.

    Raises:
        DataError: An array does not hold numbers.
    """
    numbers = {}
    for name, value in arrays.items():
        array = np.asarray(value)
        if not is_number(array):
            raise DataError(f"{label}: {name!r} holds {array.dtype}, expected numbers")
        numbers[str(name)] = array
    return Side(label, numbers)
