# SPDX-License-Identifier: Apache-2.0
"""Extraction of a convolution's bias to an Add."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.require import require_graph, require_input
from anybit.onnx.passes._reorder import (
    change_value,
    drop_unread,
    is_known,
    make_reshaping,
    take_names,
)


class ExtractConvBias(InPlacePass):
    """Extraction of the constant bias of Conv and ConvTranspose to an Add.

    A quantized bias keeps its quantizer; parameters per element become parameters per channel. ONNX
    Runtime adds a bias last, too, so results are equal bit for bit.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        ranks = {
            node: rank
            for node in model.graph.all_nodes()
            if _has_bias(node) and (rank := _get_rank(node)) is not None
        }
        for node, rank in ranks.items():
            _extract(node, rank, editor)
        return PassResult(model, bool(ranks))


def _has_bias(node: ir.Node) -> bool:
    if not has_trait(node, OpTrait.CONVOLUTION):
        return False
    return len(node.inputs) > 2 and is_known(node.inputs[2])


def _get_rank(node: ir.Node) -> int | None:
    for value in (node.inputs[1], node.outputs[0], node.inputs[0]):
        if value is not None and value.shape is not None:
            return len(value.shape)
    return None


def _extract(node: ir.Node, rank: int, editor: Editor) -> None:
    bias, result = require_input(node, 2), node.outputs[0]
    new = change_value(bias, make_reshaping((1, -1, *([1] * (rank - 2)))), editor, node)
    node.resize_inputs(2)
    drop_unread(bias)
    take_names(new, bias)
    name = editor.unique(f"{node.name or node.op_type}_bias")
    add = ir.Node("", "Add", [result, new], name=name)
    last = add.outputs[0]
    last.name, last.type, last.shape = name, result.type, result.shape
    require_graph(node).insert_after(node, add)
    result.replace_all_uses_with(last, replace_graph_outputs=True)
    add.replace_input_with(0, result)
    result.name, last.name = last.name, result.name
