# SPDX-License-Identifier: Apache-2.0
"""Fusion of Transposes and of a scalar factor into products of two tensors.

Attention splits channels into heads with a Transpose before each product, joins them with one after
it, and scales the scores. Rows stay contiguous, so that products read and write them in any order.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.operators.dynamic_matmul import OPERANDS, is_dynamic_matmul

_MOST_AXES = 10  # one digit each


def fuse_matmuls(model: ir.Model) -> None:
    """Replace nodes around DynamicMatMul nodes by attributes of these, in place."""
    editor, count = Editor(model), 0
    for node in list(model.graph):
        if not is_dynamic_matmul(node):
            continue
        for index, operand in enumerate(OPERANDS):
            count += _fuse_input(node, index, operand)
        count += _fuse_factor(node, editor) + _fuse_output(node, editor)
    if count:
        RemoveUnusedNodesPass()(model)


def _fuse_input(node: ir.Node, index: int, operand: str) -> bool:
    value = node.inputs[index]
    transpose = None if value is None else value.producer()
    axes = _find_axes(transpose)
    if transpose is None or not axes:
        return False
    node.replace_input_with(index, transpose.inputs[0])
    node.attributes.add(ir.AttrString(f"{operand}_axes", axes))
    return True


def _fuse_output(node: ir.Node, editor: Editor) -> bool:
    reader = _get_only_reader(node)
    axes = _find_axes(reader)
    if reader is None or not axes:
        return False
    node.attributes.add(ir.AttrString("result_axes", axes))
    _replace_result(node, reader, editor)
    return True


def _fuse_factor(node: ir.Node, editor: Editor) -> bool:
    """Multiply by a constant of one element in the product, which does it last."""
    reader = _get_only_reader(node)
    if reader is None or not is_onnx_op(reader, "Mul"):
        return False
    constants = [value for value in reader.inputs if value is not None and is_constant(value)]
    factor = read_array(constants[0]) if len(constants) == 1 else None
    rank = len(node.outputs[0].shape or ())
    if factor is None or factor.size != 1 or factor.ndim > rank:
        return False
    node.attributes.add(ir.AttrFloat32("factor", factor.item()))
    _replace_result(node, reader, editor)
    return True


def _get_only_reader(node: ir.Node) -> ir.Node | None:
    """Return the only reader of a node's result if both are in the same graph."""
    y = node.outputs[0]
    readers = [use.node for use in y.uses()]
    is_only = len(readers) == 1 and readers[0].graph is node.graph and not y.is_graph_output()
    return readers[0] if is_only else None


def _replace_result(node: ir.Node, reader: ir.Node, editor: Editor) -> None:
    """Let a node compute the result of its reader."""
    y, result = node.outputs[0], reader.outputs[0]
    name, shape = str(result.name), result.shape
    result.replace_all_uses_with(y, replace_graph_outputs=True)
    result.name = editor.unique(f"{name}_fused")
    y.name, y.shape = name, shape


def _find_axes(node: ir.Node | None) -> str:
    """Return the order of axes of a Transpose that keeps rows contiguous; "" for other nodes."""
    if not is_onnx_op(node, "Transpose") or node.inputs[0] is None:
        return ""
    axes = get_attribute(node, "perm", ())
    if not 1 < len(axes) <= _MOST_AXES or axes[-1] != len(axes) - 1:
        return ""
    return "".join(map(str, axes))
