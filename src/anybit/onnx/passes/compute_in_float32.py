# SPDX-License-Identifier: Apache-2.0
"""Compute in float32 what a model computes in float16."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.constants import read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.walk import iter_graphs, iter_initializers, iter_nodes, iter_values
from anybit.onnx.passes.infer_shapes import InferShapes

_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
# The attributes of standard operators that hold the type of a result.
_TYPES = ("to", "dtype")


class ComputeInFloat32(InPlacePass):
    """Convert float16 constants and values to float32; inputs and outputs keep their type.

    A Cast follows each float16 input and precedes each float16 output. Intermediate values are
    rounded to 24 bits instead of 11, so results are nearly the same.
    """

    def call(self, model: ir.Model) -> PassResult:
        if not _has_float16(model):
            return PassResult(model, False)
        InferShapes()(model)
        inputs = [value for value in model.graph.inputs if value.dtype == _HALF]
        outputs = [value for value in dict.fromkeys(model.graph.outputs) if value.dtype == _HALF]
        for value in iter_initializers(model):
            if value.const_value is not None and value.dtype == _HALF:
                array = read_array(value).astype(np.float32)
                value.const_value = ir.tensor(array, name=value.name)
        for node in iter_nodes(model.graph):
            _retype_attributes(node)
        for graph in iter_graphs(model):
            for value in iter_values(graph):
                if value.dtype == _HALF and value not in inputs:
                    value.dtype = _FLOAT
        editor, first = Editor(model), next(iter(model.graph), None)
        for value in inputs:
            _cast_input(editor, first, value)
        for value in outputs:
            _cast_output(editor, model.graph, value)
        return PassResult(model, True)


def _has_float16(model: ir.Model) -> bool:
    values = (value for graph in iter_graphs(model) for value in iter_values(graph))
    return any(value.dtype == _HALF for value in values) or any(
        _is_float16(attribute)
        for node in iter_nodes(model.graph)
        for attribute in node.attributes.values()
    )


def _is_float16(attribute: ir.Attr) -> bool:
    if attribute.is_ref():
        return False
    if attribute.type is ir.AttributeType.TENSOR:
        return bool(attribute.value.dtype == _HALF)
    is_type = attribute.type is ir.AttributeType.INT and attribute.name in _TYPES
    return bool(is_type and attribute.value == _HALF)


def _retype_attributes(node: ir.Node) -> None:
    """Change the attributes that name float16 or hold a float16 tensor."""
    for name, attribute in list(node.attributes.items()):
        if _is_float16(attribute) and attribute.type is ir.AttributeType.INT:
            node.attributes[name] = ir.AttrInt64(name, _FLOAT)
        elif _is_float16(attribute):
            tensor = ir.tensor(attribute.value.numpy().astype(np.float32))
            node.attributes[name] = ir.AttrTensor(name, tensor)


def _cast_input(editor: Editor, first: ir.Node | None, value: ir.Value) -> None:
    uses = list(value.uses())
    if not uses or first is None:
        return
    to = ir.AttrInt64("to", _FLOAT)
    name = f"{value.name}_float32"
    wide = editor.insert(first, "Cast", [value], name, like=value, dtype=_FLOAT, attributes=[to])
    for use in uses:
        use.node.replace_input_with(use.idx, wide)


def _cast_output(editor: Editor, graph: ir.Graph, value: ir.Value) -> None:
    if value.is_graph_input():
        return
    name = value.name
    value.name = editor.unique(f"{name}_float32")
    to = ir.AttrInt64("to", _HALF)
    node = ir.Node("", "Cast", [value], [to], name=editor.unique(f"{name}_float16"))
    graph.append(node)
    narrow = node.outputs[0]
    narrow.name, narrow.dtype = name, _HALF
    narrow.shape = value.shape.copy() if value.shape is not None else None
    graph.outputs[:] = [narrow if output is value else output for output in graph.outputs]
