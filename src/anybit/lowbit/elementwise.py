# SPDX-License-Identifier: Apache-2.0
"""Which nodes compute single elements, and along which axes their constants vary."""

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_identity
from anybit.onnx.operators.multi_threshold import channel_axis_of, is_multi_threshold
from anybit.onnx.operators.registry import operator_of
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize


def varying_inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs that are not constant, each once."""
    return list(dict.fromkeys(v for v in node.inputs if v is not None and not is_constant(v)))


def quantizing(node: ir.Node) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """The floats that a quantizer reads, and its nodes: integers may lie between two of them."""
    nodes: tuple[ir.Node, ...] = (node,)
    while (x := nodes[0].inputs[0]) is not None and x.dtype != ir.DataType.FLOAT:
        before = x.producer()
        if before is None:
            break
        nodes = (before, *nodes)
    assert x is not None, "a quantizer has an input"
    return x, nodes


def is_quantizer(node: ir.Node) -> bool:
    """Whether it gives floats of few values: not the integers between two nodes of one."""
    operator = operator_of(node)
    ours = operator is not None and operator.grid is not None
    return is_dequantize(node) or ours or is_multi_threshold(node)


def constant_axes(node: ir.Node, rank: int, opset: int) -> set[int] | None:
    """The axes along which an elementwise node has several constants; None for other nodes."""
    if len(node.outputs) != 1 or not varying_inputs(node):
        return None
    if is_quantize(node) or is_dequantize(node):
        return _of_linear(node, rank)
    if is_multi_threshold(node):
        return _of_thresholds(node)
    if node.domain:
        operator = operator_of(node)
        known = operator is not None and operator.result_dtype is None
        plain = known and varying_inputs(node) == [node.inputs[0]]
        return _of_broadcast(node, rank) if plain else None
    if node.op_type == "BatchNormalization":
        inner = all(value is not None and is_constant(value) for value in node.inputs[1:])
        return {1} if inner and not attribute_of(node, "training_mode", 0) else None
    if has_trait(node, OpTrait.ELEMENTWISE | OpTrait.RECTIFIER, opset) or is_identity(node, opset):
        return _of_broadcast(node, rank)
    return None


def _of_linear(node: ir.Node, rank: int) -> set[int] | None:
    if varying_inputs(node) != [node.inputs[0]] or attribute_of(node, "block_size", 0):
        return None
    sizes = {array_of(value).size for value in node.inputs[1:] if value is not None}
    return set() if sizes <= {1} else {attribute_of(node, "axis", 1) % rank}


def _of_thresholds(node: ir.Node) -> set[int] | None:
    try:
        axis = channel_axis_of(node)
    except ModelError:  # which whoever runs it reports
        return None
    return set() if axis is None else {axis}


def _of_broadcast(node: ir.Node, rank: int) -> set[int] | None:
    axes: set[int] = set()
    for value in node.inputs:
        if value is None or not is_constant(value) or value.const_value is None:
            continue
        shape = value.const_value.shape.numpy()
        if len(shape) > rank:
            return None
        axes |= {rank - len(shape) + axis for axis, size in enumerate(shape) if size != 1}
    return axes


def is_uniform(node: ir.Node) -> bool:
    """Whether an elementwise node has one of each constant."""
    constants = [value for value in node.inputs if value is not None and is_constant(value)]
    if node.op_type == "BatchNormalization":
        return False
    if is_multi_threshold(node):
        return channel_axis_of(node) is None
    return all(value.const_value is not None and value.const_value.size == 1 for value in constants)


def captures_of(node: ir.Node) -> list[ir.Value]:
    """What the graphs inside a node read from around them."""
    found = []
    for attribute in node.attributes.values():
        if attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
            continue
        graph = attribute.as_graph()
        own = {*graph.inputs, *graph.initializers.values()}
        inner = list(graph.all_nodes())
        own.update(value for each in inner for value in each.outputs)
        read = [value for each in inner for value in each.inputs] + list(graph.outputs)
        found += [value for value in read if value is not None and value not in own]
    return [value for value in found if not is_constant(value)]
