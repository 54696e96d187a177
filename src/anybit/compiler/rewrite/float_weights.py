# SPDX-License-Identifier: Apache-2.0
"""Weights of float32 layers as int8 codes, a Cast and a Mul: they keep files small.

ONNX Runtime would merge a DequantizeLinear with the layer, and its integer operators round.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor, drop_if_unread

_FEWEST = 2**10
"""Smaller weights take less than the nodes."""

_BYTES = range(-128, 128)
_OPSET = 7
"""First version of the standard operators whose Mul broadcasts."""


def collect_integer_weights(analysis: Analysis) -> dict[str, AbstractValue]:
    """Return the constants whose codes fit int8 without a zero-point, by name."""
    return {
        str(value.name): abstract
        for value, abstract in analysis.values.items()
        if _fits_int8(abstract)
    }


def store_integer_weights(model: ir.Model, weights: Mapping[str, AbstractValue]) -> None:
    """Store float32 weights as int8 codes if these decode to the same values, in place.

    `prepare` and ONNX Runtime fold the nodes again.

    Args:
        model: The model.
        weights: Constants with integer codes by name.
    """
    opset = model.graph.opset_imports.get("", 0)
    editor = Editor(model)
    for weight, node in list(_iterate_float_weights(model)):
        abstract = weights.get(str(weight.name))
        if abstract is None or opset < _OPSET:
            continue
        encoded = _encode(abstract, read_array(weight))
        if encoded is not None:
            _store(weight, node, *encoded, editor)


def _fits_int8(abstract: AbstractValue) -> bool:
    integers, codes = abstract.integers, abstract.codes
    if integers is None or codes is None or not integers.size or np.any(codes.zeropt):
        return False
    return int(integers.min()) in _BYTES and int(integers.max()) in _BYTES


def _encode(abstract: AbstractValue, array: Array) -> tuple[Array, Array] | None:
    """Return int8 codes and scales that give a float32 array, up to the sign of zeros."""
    integers, codes, grid = abstract.integers, abstract.codes, abstract.grid
    if integers is None or codes is None or grid is None or integers.shape != array.shape:
        return None
    if array.dtype != np.float32 or not np.array_equal(grid.decode(integers), array):
        return None
    return integers.astype(np.int8), abstract.broadcast(codes.scale)


def _iterate_float_weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.Node]]:
    """Yield constant weights that one product reads, and the product."""
    for node in model.graph:
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if node.domain or node.op_type not in ("Conv", "Gemm", "MatMul") or weight is None:
            continue
        if not is_constant(weight) or len(weight.uses()) != 1 or weight.const_value is None:
            continue
        rank = len(weight.const_value.shape)
        if weight.const_value.size >= _FEWEST and rank > 1 and not weight.is_graph_output():
            yield weight, node


def _store(weight: ir.Value, node: ir.Node, codes: Array, scales: Array, editor: Editor) -> None:
    name = str(weight.name)
    stored = editor.add_constant(f"{name}_codes", ir.Tensor(codes))
    scale = editor.share_parameter(name, "scale", scales, ir.DataType.FLOAT)
    to = [ir.AttrInt64("to", ir.DataType.FLOAT.value)]
    floats = editor.insert(
        node,
        "Cast",
        [stored],
        f"{name}_floats",
        like=weight,
        dtype=ir.DataType.FLOAT,
        attributes=to,
    )
    values = editor.insert(
        node, "Mul", [floats, scale], f"{name}_values", like=weight, dtype=ir.DataType.FLOAT
    )
    node.replace_input_with(1, values)
    drop_if_unread(weight)
