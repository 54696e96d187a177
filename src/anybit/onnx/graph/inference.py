# SPDX-License-Identifier: Apache-2.0
"""ONNX's own inference of types and shapes, on a model of onnx_ir, in linear time.

onnx_ir has a pass for it that makes a second model of the answer, and looks for every initializer
among all inputs: long models spend most of their time there.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir
from onnx import helper
from onnx.shape_inference import infer_shapes

from anybit.onnx.graph.walk import inner_graphs

# Only inference of shapes reads tensors, and shapes are small.
_LARGEST = 1000

_GROUP_NORMALIZATION = "", "GroupNormalization"

# Operators of ONNX Runtime that standard ones replaced, and the opset that has all their types.
_RUNTIME_DOMAIN, _RUNTIME_PAIR = "com.microsoft", ("QuantizeLinear", "DequantizeLinear")
_PARAMETERS, _DEFAULTS = ["x", "scale", "zero_point"], {"axis": 1, "block_size": 0}
_PAIR_OPSET = 21


def infer(
    model: ir.Model, *, propagate: bool, like_first: Collection[tuple[str, str]] = ()
) -> None:
    """Give the results of nodes, and the inputs of inner graphs, what follows for them.

    Where a node contradicts its schema the others are inferred; where ONNX gives up, or a message
    cannot hold the model, nothing is. With `propagate`, integers computed from shapes are followed.
    `like_first` names further operators, by domain and name, whose result is like the first input.
    """
    with _slim(model):
        try:
            message = ir.to_proto(model)
        except Exception:  # onnx_ir has no error class of its own
            return
    _follow_uninferred(message.graph, {_GROUP_NORMALIZATION, *like_first})
    _define_runtime_pair(message)
    try:
        inferred = infer_shapes(message, check_type=True, data_prop=propagate)
    except Exception:  # those of onnx and protobuf share no base
        return
    for graph, answer in _pairs(model.graph, inferred.graph):
        values = {value.name: value for node in graph for value in node.outputs}
        given = [answer.value_info, answer.output]
        if graph is not model.graph:
            values |= {value.name: value for value in graph.inputs}
            given.append(answer.input)
        for infos in given:
            for info in infos:
                if info.name in values:
                    _note(values[info.name], info.type)


@contextmanager
def _slim(model: ir.Model) -> Iterator[None]:
    """The model without large tensors, which become inputs. All initializers are inputs, too."""
    graph = model.graph
    constants, inputs = list(graph.initializers.values()), list(graph.inputs)
    given = set(inputs)
    large = [value for value in constants if _is_large(value)]
    try:
        for value in constants:
            if value not in given:
                graph.inputs.append(value)
        for value in large:
            del graph.initializers[str(value.name)]
        yield
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        if large:
            graph.initializers.clear()
            for value in constants:
                graph.initializers.add(value)


def _follow_uninferred(graph: onnx.GraphProto, like_first: Collection[tuple[str, str]]) -> None:
    """Put Identity where the result is like the first input, and ONNX infers nothing."""
    for node in graph.node:
        if (node.domain, node.op_type) in like_first:
            node.domain, node.op_type = "", "Identity"
            del node.input[1:], node.attribute[:]
        for each in node.attribute:
            for inner in (*((each.g,) if each.HasField("g") else ()), *each.graphs):
                _follow_uninferred(inner, like_first)


def _define_runtime_pair(message: onnx.ModelProto) -> None:
    """Define QuantizeLinear and DequantizeLinear of ONNX Runtime by the standard operators.

    ONNX has no schemas of that domain, and stops there. A local function has an opset of its own,
    so that the model's may be one whose operators lack the types.
    """
    present = {(each.domain, each.name) for each in message.functions}
    for name in _RUNTIME_PAIR:
        if (_RUNTIME_DOMAIN, name) in present:
            continue
        body = helper.make_node(name, _PARAMETERS, ["y"])
        for attribute in _DEFAULTS:
            body.attribute.add(
                name=attribute, ref_attr_name=attribute, type=onnx.AttributeProto.INT
            )
        defaults = [helper.make_attribute(*each) for each in _DEFAULTS.items()]
        function = helper.make_function(
            *(_RUNTIME_DOMAIN, name, _PARAMETERS, ["y"], [body]),
            opset_imports=[helper.make_opsetid("", _PAIR_OPSET)],
            attribute_protos=defaults,
        )
        message.functions.append(function)


def _is_large(value: ir.Value) -> bool:
    return value.const_value is None or value.const_value.nbytes > _LARGEST


def _pairs(graph: ir.Graph, answer: onnx.GraphProto) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """A graph and those inside it, each with what ONNX made of it."""
    yield graph, answer
    for index, node in enumerate(graph):
        if not inner_graphs(node):
            continue
        found = {each.name: each for each in answer.node[index].attribute}
        for each in node.attributes.values():
            if each.is_ref():
                continue
            if each.type == ir.AttributeType.GRAPH:
                yield from _pairs(each.value, found[each.name].g)
            elif each.type == ir.AttributeType.GRAPHS:
                for inner, proto in zip(each.value, found[each.name].graphs, strict=True):
                    yield from _pairs(inner, proto)


def _note(value: ir.Value, given: onnx.TypeProto) -> None:
    dtype = ir.serde.deserialize_type_proto_for_type(given)
    if dtype is not None and (value.type is None or value.dtype != dtype.dtype):
        value.type = dtype
    shape = ir.serde.deserialize_type_proto_for_shape(given)
    if shape is not None:
        value.shape = shape
