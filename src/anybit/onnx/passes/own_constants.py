# SPDX-License-Identifier: Apache-2.0
"""Separate copies of constants for every reader."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.require import require_graph
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.passes._reorder import is_known


class OwnConstants(InPlacePass):
    """Copying of shared constants, and of their quantizers, for each reader.

    For compilers that move a constant into its reader and drop it.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        count = 0
        # Quantizers first: their copies share the constants.
        for node in list(iter_nodes(model.graph)):
            for index, value in enumerate(node.inputs):
                if value is not None and not is_constant(value) and is_known(value):
                    count += _try_copy(node, index, value, editor)
        for node in list(iter_nodes(model.graph)):
            for index, value in enumerate(node.inputs):
                if value is not None and is_constant(value):
                    count += _try_copy(node, index, value, editor)
        return PassResult(model, bool(count))


def _try_copy(node: ir.Node, index: int, value: ir.Value, editor: Editor) -> bool:
    """Copy a constant for all readers except the first; return whether it was."""
    first = next(iter(value.uses()))
    if (first.node, first.idx) == (node, index) and not value.is_graph_output():
        return False
    quantizer = value.producer()
    if quantizer is None:
        copy = editor.add_constant(str(value.name), ir.Tensor(read_array(value)))
    else:
        copy = _copy_quantizer(quantizer, node, editor)
    node.replace_input_with(index, copy)
    return True


def _copy_quantizer(quantizer: ir.Node, reader: ir.Node, editor: Editor) -> ir.Value:
    result = quantizer.outputs[0]
    node = ir.Node(
        quantizer.domain,
        quantizer.op_type,
        quantizer.inputs,
        list(quantizer.attributes.values()),
        name=editor.unique(quantizer.name or quantizer.op_type),
    )
    require_graph(reader).insert_before(reader, node)
    copy = node.outputs[0]
    copy.name, copy.type, copy.shape = editor.unique(str(result.name)), result.type, result.shape
    return copy
