# SPDX-License-Identifier: Apache-2.0
"""Replacement of ReduceMean over whole images by GlobalAveragePool."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.reductions import get_reduced_axes
from anybit.onnx.graph.require import require_input, require_producer, require_shape
from anybit.onnx.graph.walk import iter_nodes

_RANKS = (3, 4)


class MeanToPool(InPlacePass):
    """Replacement of ReduceMean over all axes after the channels; other means stay.

    If those axes are not kept, a Flatten drops them. The order of sums may change: sums that round
    may differ in the last bit. Sums of quantized values that float32 holds do not round.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        nodes = [node for node in iter_nodes(model.graph) if _is_global(node)]
        for node in nodes:
            _replace(node, editor)
        return PassResult(model, bool(nodes))


def _is_global(node: ir.Node) -> bool:
    if not is_onnx_op(node, "ReduceMean") or not node.inputs:
        return False
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) not in _RANKS or x.dtype != ir.DataType.FLOAT:
        return False
    rank = len(x.shape)
    return get_reduced_axes(node, rank) == tuple(range(2, rank))


def _replace(node: ir.Node, editor: Editor) -> None:
    x, result, name = require_input(node), node.outputs[0], node.name or node.op_type
    sizes = require_shape(x)
    float32 = ir.DataType.FLOAT
    y = editor.insert(node, "GlobalAveragePool", [x], name, like=x, dtype=float32)
    y.shape = ir.Shape([*sizes[:2], *[1] * (len(sizes) - 2)])
    pool = require_producer(y)
    if not get_attribute(node, "keepdims", 1):
        y = editor.insert(node, "Flatten", [y], f"{name}_flatten", like=result, dtype=float32)
    editor.replace(node, y)
    pool.name = node.name
