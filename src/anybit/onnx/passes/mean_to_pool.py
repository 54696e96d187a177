# SPDX-License-Identifier: Apache-2.0
"""Replacement of ReduceMean over whole images by GlobalAveragePool."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.reductions import get_reduced_axes
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
    if (node.domain, node.op_type) != ("", "ReduceMean") or not node.inputs:
        return False
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) not in _RANKS or x.dtype != ir.DataType.FLOAT:
        return False
    rank = len(x.shape)
    return get_reduced_axes(node, rank) == tuple(range(2, rank))


def _replace(node: ir.Node, editor: Editor) -> None:
    x, result, name = node.inputs[0], node.outputs[0], node.name or node.op_type
    assert x is not None, "asked before"
    assert x.shape is not None, "asked before"
    float32 = ir.DataType.FLOAT
    y = editor.insert(node, "GlobalAveragePool", [x], name, like=x, dtype=float32)
    y.shape = ir.Shape([*x.shape[:2], *[1] * (len(x.shape) - 2)])
    pool = y.producer()
    if not get_attribute(node, "keepdims", 1):
        y = editor.insert(node, "Flatten", [y], f"{name}_flatten", like=result, dtype=float32)
    editor.replace(node, y)
    assert pool is not None, "it has been inserted"
    pool.name = node.name
