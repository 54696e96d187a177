# SPDX-License-Identifier: Apache-2.0
"""Equal quantizers of one tensor, merged."""

from collections.abc import Hashable

import onnx_ir as ir

from anybit.compiler.operators import get_varying_inputs, is_quantizer
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.quantizers.nodes import is_quantize


def merge_quantizers(model: ir.Model) -> None:
    """Let readers of equal quantizers of a tensor share the first one, in place.

    Else a layer would compute and keep the same codes several times.
    """
    editor = Editor(model)
    first: dict[Hashable, ir.Value] = {}
    for node in list(model.graph):
        if not (is_quantizer(node) or is_quantize(node)) or len(node.outputs) != 1:
            continue
        if len(get_varying_inputs(node)) != 1 or node.outputs[0].is_graph_output():
            continue
        result = first.setdefault(_make_key(node), node.outputs[0])
        if result is not node.outputs[0]:
            editor.replace(node, result, shared=True)


def _make_key(node: ir.Node) -> Hashable:
    """Return a key that nodes share if they compute the same."""
    inputs = tuple(_make_input_key(value) for value in node.inputs)
    attributes = tuple(sorted((name, str(value)) for name, value in node.attributes.items()))
    return node.op_identifier(), inputs, attributes


def _make_input_key(value: ir.Value | None) -> Hashable:
    if value is None or not is_constant(value):
        return value
    array = read_array(value)
    return value.dtype, array.shape, array.tobytes()
