# SPDX-License-Identifier: Apache-2.0
"""Conversion of operators with channels last to standard ones."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.layout import (
    CHANNELS_LAST,
    get_channels_first_order,
    get_channels_last_order,
    get_layout_inputs,
    insert_transpose,
    is_channels_last,
    make_transpose,
    set_provisional_name,
)
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.require import require_graph
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.passes._reorder import change_input, get_rank, make_permutation


class StandardLayout(InPlacePass):
    """Replacement of the operators of `qonnx.custom_op.channels_last`.

    `Conv`, `MaxPool` and `BatchNormalization` of that domain have channels last, and Conv's
    weights, too. Each becomes the standard operator between Transposes, as in QONNX. `node.meta` of
    the standard operator then has the key `CHANNELS_LAST`.

    Raises:
        ModelError: The rank of an operator's input is unknown.
    """

    def call(self, model: ir.Model) -> PassResult:
        nodes = [node for node in iter_nodes(model.graph) if is_channels_last(node)]
        if nodes:
            editor = Editor(model)
            for node in nodes:
                _make_standard(node, editor)
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            if not any(node.domain == CHANNELS_LAST for node in iter_nodes(graph)):
                graph.opset_imports.pop(CHANNELS_LAST, None)
        return PassResult(model, bool(nodes))


def _make_standard(node: ir.Node, editor: Editor) -> None:
    unique = editor.unique
    rank, result, name = _get_rank(node), node.outputs[0], node.name or node.op_type
    for index in get_layout_inputs(node):
        x = node.inputs[index]
        if x is not None and is_constant(x) and get_rank(x) == rank:
            change_input(node, index, make_permutation(get_channels_first_order(rank)), editor)
        elif x is not None:
            before = make_transpose(
                x, get_channels_first_order(rank), unique(f"{name}_channels_first_{index}")
            )
            set_provisional_name(before.outputs[0], before.name or name)
            require_graph(node).insert_before(node, before)
            node.replace_input_with(index, before.outputs[0])
    last = insert_transpose(node, get_channels_last_order(rank), unique(f"{name}_channels_last"))
    last.name = result.name
    set_provisional_name(result, unique(f"{name}_channels_first"))
    node.domain = ""
    node.meta[CHANNELS_LAST] = True


def _get_rank(node: ir.Node) -> int:
    kernel = get_attribute(node, "kernel_shape", ())
    if kernel:
        return len(kernel) + 2
    for value in (*node.inputs[: len(get_layout_inputs(node))], *node.outputs[:1]):
        if value is not None and value.shape is not None:
            return len(value.shape)
    raise ModelError(
        f"{describe(node)} has channels last, and an input of unknown rank; "
        "declare the shapes of the model"
    )
