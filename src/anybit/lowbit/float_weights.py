# SPDX-License-Identifier: Apache-2.0
"""Weights of layers that stay float: codes, a Cast and a Mul, so that files stay small.

A DequantizeLinear would be merged with the layer by ONNX Runtime, whose integer operators round.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.editor import Editor, drop_if_unread

# Smaller weights take less than the nodes.
_FEWEST = 2**10
_BYTES = range(-128, 128)
# The first opset whose Mul broadcasts.
_OPSET = 7


def store_codes(model: ir.Model, known: Mapping[str, AbstractValue]) -> None:
    """Store float32 weights as int8 codes where these give the same values, in place.

    The codes are the known ones, by the names of the weights. `prepare` folds the nodes again, and
    so does ONNX Runtime.
    """
    opset = model.graph.opset_imports.get("", 0)
    editor = Editor(model)
    for weight, node in list(_weights(model)):
        found = known.get(str(weight.name))
        if found is not None and opset >= _OPSET and _gives(found, array_of(weight)):
            _replace(weight, node, found, editor)


def is_coded(carrier: AbstractValue) -> bool:
    """Return whether these are the codes of a constant, each within int8 and with no zero-point."""
    integers, codes = carrier.integers, carrier.codes
    if integers is None or codes is None or not integers.size or np.any(codes.zeropt):
        return False
    return int(integers.min()) in _BYTES and int(integers.max()) in _BYTES


def _gives(found: AbstractValue, array: Array) -> bool:
    """Return whether codes give the values of a float32 array, but for the sign of zeros."""
    if found.integers is None or found.grid is None or found.integers.shape != array.shape:
        return False
    return array.dtype == np.float32 and np.array_equal(found.grid.decode(found.integers), array)


def _weights(model: ir.Model) -> Iterator[tuple[ir.Value, ir.Node]]:
    """Yield each constant second operand of a product that no other node reads, and the product."""
    for node in model.graph:
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if node.domain or node.op_type not in ("Conv", "Gemm", "MatMul") or weight is None:
            continue
        if not is_constant(weight) or len(weight.uses()) != 1 or weight.const_value is None:
            continue
        rank = len(weight.const_value.shape)
        if weight.const_value.size >= _FEWEST and rank > 1 and not weight.is_graph_output():
            yield weight, node


def _replace(weight: ir.Value, node: ir.Node, found: AbstractValue, editor: Editor) -> None:
    codes = found.codes
    assert codes is not None, "asked before"
    assert found.integers is not None, "asked before"
    name = str(weight.name)
    stored = editor.constant(f"{name}_codes", ir.Tensor(found.integers.astype(np.int8)))
    scale = editor.parameter(name, "scale", found.broadcast(codes.scale), ir.DataType.FLOAT)
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
