# SPDX-License-Identifier: Apache-2.0
"""Computation in float32 instead of another type."""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.constants import Array, array_of
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.walk import graphs_in, initializers_in, nodes_in, values_in
from anybit.onnx.passes.infer_shapes import InferShapes

_FLOAT = ir.DataType.FLOAT
# Attributes of standard operators that hold an output type.
_TYPES = ("to", "dtype")


class ComputeInFloat32(InPlacePass):
    """Conversion of all constants and values of a type to float32, except inputs and outputs.

    A Cast follows each input and precedes each output of that type. Inner values are rounded to 24
    bits instead of those of their type, so results are nearly the same. Values beyond float32
    become its largest number, because infinity minus infinity is NaN.

    Args:
        type: float16 or float64.
        kept: Nodes of the main graph that keep the type, with all their inputs. Their outputs are
            cast for other readers.
    """

    def __init__(self, type: ir.DataType, kept: Collection[ir.Node] = ()) -> None:
        super().__init__()
        self._type, self._kept = type, kept

    def call(self, model: ir.Model) -> PassResult:
        if not _has(self._type, model):
            return PassResult(model, False)
        InferShapes()(model)
        kept = {
            value
            for node in self._kept
            for value in (*node.inputs, *node.outputs)
            if value is not None and value.dtype == self._type
        }
        inputs = [value for value in model.graph.inputs if value.dtype == self._type]
        wide = {*inputs, *kept}
        outputs = [
            output
            for output in dict.fromkeys(model.graph.outputs)
            if output.dtype == self._type and output not in kept
        ]
        for value in initializers_in(model):
            if value.const_value is not None and value.dtype == self._type and value not in kept:
                value.const_value = ir.tensor(_rounded(array_of(value)), name=value.name)
        for node in nodes_in(model.graph):
            if node not in self._kept:
                _change(node, self._type)
        for graph in graphs_in(model):
            for value in values_in(graph):
                if value.dtype == self._type and value not in wide:
                    value.dtype = _FLOAT
        editor = Editor(model)
        nodes = list(model.graph)
        following = dict(zip([None, *nodes], nodes, strict=False))
        for value in dict.fromkeys([*inputs, *_in_order(kept, nodes)]):
            _cast_for_others(editor, following.get(value.producer()), value, self._kept)
        for value in outputs:
            _cast_output(editor, model.graph, value, self._type)
        return PassResult(model, True)


def _rounded(array: Array) -> Array:
    most = np.finfo(np.float32).max
    return np.where(np.isfinite(array), np.clip(array, -most, most), array).astype(np.float32)


def _has(type: ir.DataType, model: ir.Model) -> bool:
    values = (value for graph in graphs_in(model) for value in values_in(graph))
    return any(value.dtype == type for value in values) or any(
        _is_of(type, attribute)
        for node in nodes_in(model.graph)
        for attribute in node.attributes.values()
    )


def _is_of(type: ir.DataType, attribute: ir.Attr) -> bool:
    if attribute.is_ref():
        return False
    if attribute.type is ir.AttributeType.TENSOR:
        return bool(attribute.value.dtype == type)
    is_type = attribute.type is ir.AttributeType.INT and attribute.name in _TYPES
    return bool(is_type and attribute.value == type)


def _change(node: ir.Node, type: ir.DataType) -> None:
    """Change the attributes that hold a type or a tensor."""
    for name, attribute in list(node.attributes.items()):
        if _is_of(type, attribute) and attribute.type is ir.AttributeType.INT:
            node.attributes[name] = ir.AttrInt64(name, _FLOAT)
        elif _is_of(type, attribute):
            node.attributes[name] = ir.AttrTensor(
                name, ir.tensor(_rounded(attribute.value.numpy()))
            )


def _in_order(values: Collection[ir.Value], nodes: Collection[ir.Node]) -> list[ir.Value]:
    """Return values in the order in which nodes use them."""
    every = (value for node in nodes for value in (*node.inputs, *node.outputs))
    return [value for value in dict.fromkeys(every) if value is not None and value in values]


def _cast_for_others(
    editor: Editor, before: ir.Node | None, value: ir.Value, kept: Collection[ir.Node]
) -> None:
    uses = [use for use in value.uses() if use.node not in kept]
    if not uses or before is None:
        return
    to = ir.AttrInt64("to", _FLOAT)
    name = f"{value.name}_float32"
    wide = editor.insert(before, "Cast", [value], name, like=value, dtype=_FLOAT, attributes=[to])
    for use in uses:
        use.node.replace_input_with(use.idx, wide)


def _cast_output(editor: Editor, graph: ir.Graph, value: ir.Value, type: ir.DataType) -> None:
    if value.is_graph_input():
        return
    name = value.name
    value.name = editor.unique(f"{name}_float32")
    to = ir.AttrInt64("to", type)
    node = ir.Node("", "Cast", [value], [to], name=editor.unique(f"{name}_{type.name.lower()}"))
    graph.append(node)
    narrow = node.outputs[0]
    narrow.name, narrow.dtype = name, type
    narrow.shape = value.shape.copy() if value.shape is not None else None
    graph.outputs[:] = [narrow if output is value else output for output in graph.outputs]
