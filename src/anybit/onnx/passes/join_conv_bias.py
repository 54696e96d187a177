# SPDX-License-Identifier: Apache-2.0
"""Conversion of an Add of a constant per channel to the bias of the preceding convolution."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.layout import swap_names
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_graph
from anybit.onnx.passes._reorder import (
    change_value,
    drop_unread,
    get_rank,
    is_known,
    make_reshaping,
    take_names,
)


class JoinConvBias(InPlacePass):
    """Conversion of constant Adds to biases of convolutions that nothing else reads.

    The inverse of `ExtractConvBias`: a quantized bias keeps its quantizer. ONNX Runtime adds a bias
    last, so results are equal bit for bit. Shapes are inferred.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        count = 0
        for node in list(model.graph):
            add = _find_bias_add(node)
            if add is not None:
                _join(node, *add, editor)
                count += 1
        return PassResult(model, bool(count))


def _find_bias_add(conv: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """Return the Add that alone reads a Conv without bias, and its constant per channel."""
    if not is_onnx_op(conv, "Conv") or len(conv.outputs) != 1:
        return None
    if any(value is not None for value in conv.inputs[2:]):
        return None
    result = conv.outputs[0]
    readers = list(result.uses())
    if result.is_graph_output() or len(readers) != 1 or result.shape is None:
        return None
    add, index = readers[0]
    if not is_onnx_op(add, "Add") or add.graph is not conv.graph:
        return None
    bias = add.inputs[1 - index]
    if bias is None or not is_known(bias) or not _is_per_channel(bias, result.shape):
        return None
    return add, bias


def _is_per_channel(bias: ir.Value, result: ir.Shape) -> bool:
    rank = get_rank(bias)
    if rank is None or rank > len(result) or bias.shape is None:
        return False
    sizes = (1,) * (len(result) - rank) + tuple(bias.shape.dims)
    return sizes == (1, result[1], *[1] * (len(result) - 2))


def _join(conv: ir.Node, add: ir.Node, bias: ir.Value, editor: Editor) -> None:
    graph = require_graph(conv)
    new, quantizer = change_value(bias, make_reshaping((-1,)), editor, conv), bias.producer()
    if new is bias and quantizer is not None:
        # The quantizer of the bias may lie between Conv and Add.
        graph.remove(quantizer)
        graph.insert_before(conv, quantizer)
    old = conv.outputs[0]
    conv.resize_inputs(3)
    conv.replace_input_with(2, new)
    last = add.outputs[0]
    last.replace_all_uses_with(old, replace_graph_outputs=True)
    swap_names(old, last)
    graph.remove(add, safe=True)
    drop_unread(bias)
    take_names(new, bias)
