# SPDX-License-Identifier: Apache-2.0
"""GELU in the order of operations that ONNX Runtime fuses.

PyTorch exports x * (0.5 * (1 + erf(x / sqrt 2))), five passes over the tensor. ONNX Runtime fuses
(0.5 * x) * (1 + erf(x / sqrt 2)) into one. Both have the same bits: 1 + erf is a multiple of 2^-24,
whose half is exact, and where 0.5 * x rounds, x is so small that 1 + erf is 1.

A session with default options rounds the fused function in another order. So only GELUs of floats
without defined bits are changed: those after bounded layers.
"""

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor

_HALF, _ONE = 0.5, 1.0
_VIEWS = "Reshape", "Transpose"


def reorder_gelus(model: ir.Model, bounded: Collection[str]) -> None:
    """Multiply x by 0.5 first in GELUs, in place.

    Args:
        model: The model.
        bounded: Names of values without defined bits; GELUs of other values stay.
    """
    editor, count = Editor(model), 0
    for node in list(model.graph):
        parts = _match(node)
        if parts is None or not _reshapes(parts[0], bounded):
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
    if node.domain or node.op_type != "Mul":
        return None
    for x, scaled in (node.inputs, reversed(node.inputs)):
        inner = _split(scaled, "Mul", _HALF)
        if x is None or x.dtype != ir.DataType.FLOAT or inner is None:
            continue
        added, half = inner
        outer = _split(added, "Add", _ONE)
        erf = None if outer is None else outer[0].producer()
        if erf is None or erf.domain or erf.op_type != "Erf":
            continue
        divided = None if erf.inputs[0] is None else erf.inputs[0].producer()
        if divided is not None and not divided.domain and divided.op_type in ("Div", "Mul"):
            return (x, half, added) if x in divided.inputs else None
    return None


def _split(
    value: ir.Value | None, operator: str, number: float
) -> tuple[ir.Value, ir.Value] | None:
    """Return the variable and the constant operand of an operation with a number."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type != operator:
        return None
    for first, second in (node.inputs, reversed(node.inputs)):
        if first is None or second is None or not is_constant(second):
            continue
        array = read_array(second)
        if array.size == 1 and array.item() == number:
            return first, second
    return None


def _reshapes(value: ir.Value | None, names: Collection[str]) -> bool:
    """Return whether a value moves the numbers of a value with one of the names."""
    while value is not None:
        if value.name in names:
            return True
        node = value.producer()
        if node is None or node.domain or node.op_type not in _VIEWS:
            return False
        value = node.inputs[0]
    return False
