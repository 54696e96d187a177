# SPDX-License-Identifier: Apache-2.0
"""GELU in the order of operations that ONNX Runtime fuses.

PyTorch exports x * (0.5 * (1 + erf(x / sqrt 2))), five passes over the tensor. ONNX Runtime fuses
(0.5 * x) * (1 + erf(x / sqrt 2)) into one. Both have the same bits: 1 + erf is a multiple of 2^-24,
whose half is exact, and where 0.5 * x rounds, x is so small that 1 + erf is 1.

A session with default options rounds the fused function in another order. So only GELUs of floats
without defined bits are changed: those that depend on bounded layers.
"""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import is_onnx_op

_HALF, _ONE = 0.5, 1.0


def list_dependents(model: ir.Model, outputs: Collection[str]) -> set[str]:
    """Return the names of some values of the graph, and of those computed from them."""
    names = set(outputs)
    for node in model.graph:
        if any(value is not None and value.name in names for value in node.inputs):
            names.update(str(value.name) for value in node.outputs)
    return names


def reorder_gelus(model: ir.Model, bounded: Collection[str]) -> None:
    """Multiply x by 0.5 first in GELUs, in place.

    Args:
        model: The model.
        bounded: Names of values without defined bits; GELUs of other values stay.
    """
    editor, count = Editor(model), 0
    for node in list(model.graph):
        parts = _match(node)
        if parts is None or parts[0].name not in bounded:
            continue
        x, half, added = parts
        scaled = editor.insert(
            node, "Mul", [x, half], f"{x.name}_half", like=x, dtype=ir.DataType.FLOAT
        )
        node.replace_input_with(0, scaled)
        node.replace_input_with(1, added)
        count += 1
    if count:
        RemoveUnusedNodesPass()(model)


def _match(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Return x, the constant 0.5 and 1 + erf(x / c) of x * (0.5 * (1 + erf(x / c)))."""
    if not is_onnx_op(node, "Mul"):
        return None
    for x, scaled in (node.inputs, reversed(node.inputs)):
        if x is None or x.dtype != ir.DataType.FLOAT or x.shape is None:
            continue
        inner = _split(scaled, "Mul", _HALF, len(x.shape))
        outer = None if inner is None else _split(inner[0], "Add", _ONE, len(x.shape))
        erf = None if outer is None else outer[0].producer()
        if inner is None or not is_onnx_op(erf, "Erf"):
            continue
        divided = None if erf.inputs[0] is None else erf.inputs[0].producer()
        if _divides(divided, x):
            added, half = inner
            return x, half, added
    return None


def _divides(node: ir.Node | None, x: ir.Value) -> bool:
    """Return whether a node computes x / c, |c| >= 1: then 1 + erf(x / c) is 1 for tiny x."""
    if not is_onnx_op(node, "Div", "Mul") or x not in node.inputs:
        return False
    (c,) = [value for value in node.inputs if value is not x] or [None]
    if c is None or not is_constant(c) or (node.op_type == "Div" and node.inputs[0] is not x):
        return False
    size = np.abs(read_array(c))
    return bool(np.all(size >= 1) if node.op_type == "Div" else np.all(size <= 1))


def _split(
    value: ir.Value | None, operator: str, number: float, rank: int
) -> tuple[ir.Value, ir.Value] | None:
    """Return the variable and the constant operand of an operation with a number.

    The constant has at most `rank` axes: more would change the shape of the result.
    """
    node = None if value is None else value.producer()
    if not is_onnx_op(node, operator):
        return None
    for first, second in (node.inputs, reversed(node.inputs)):
        if first is None or second is None or not is_constant(second):
            continue
        array = read_array(second)
        if array.size == 1 and array.ndim <= rank and array.item() == number:
            return first, second
    return None
