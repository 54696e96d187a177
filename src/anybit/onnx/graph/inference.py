# SPDX-License-Identifier: Apache-2.0
"""ONNX's inference of types and shapes on a model of onnx_ir, in linear time.

The pass of onnx_ir builds a second model and searches all inputs for every initializer: long
models spend most of their time there.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir
from onnx import helper
from onnx.shape_inference import infer_shapes

from anybit.onnx.graph.runtime_operators import define_runtime_operators
from anybit.onnx.graph.walk import get_inner_graphs

# Only inference of shapes reads tensors, and shapes are small.
_LARGEST = 1000

_GROUP_NORMALIZATION = "", "GroupNormalization"

# Operators of ONNX Runtime with a standard equivalent, and the opset with all their types.
_RUNTIME_DOMAIN, _RUNTIME_PAIR = "com.microsoft", ("QuantizeLinear", "DequantizeLinear")
_PARAMETERS, _DEFAULTS = ["x", "scale", "zero_point"], {"axis": 1, "block_size": 0}
_PAIR_OPSET = 21


def infer_types(
    model: ir.Model, *, propagate: bool, like_first: Collection[tuple[str, str]] = ()
) -> None:
    """Infer the types and shapes of the outputs of nodes and of the inputs of inner graphs.

    A node that contradicts its schema is skipped. Nothing is inferred if ONNX fails, or if a
    message cannot hold the model. With `propagate`, integers computed from shapes are evaluated.
    `like_first` names further operators (domain, name) whose output has the type and shape of the
    first input.
    """
    with _hide_constants(model):
        try:
            message = ir.to_proto(model)
        except Exception:  # onnx_ir has no error class of its own
            return
    _replace_uninferable(message.graph, {_GROUP_NORMALIZATION, *like_first})
    _define_runtime_pair(message)
    define_runtime_operators(message)
    try:
        inferred = infer_shapes(message, check_type=True, data_prop=propagate)
    except Exception:  # the errors of onnx and protobuf have no common base
        return
    for graph, answer in _pair_graphs(model.graph, inferred.graph):
        values = {value.name: value for node in graph for value in node.outputs}
        answers = [answer.value_info, answer.output]
        if graph is not model.graph:
            values |= {value.name: value for value in graph.inputs}
            answers.append(answer.input)
        for infos in answers:
            for info in infos:
                if info.name in values:
                    _record_type(values[info.name], info.type)


@contextmanager
def _hide_constants(model: ir.Model) -> Iterator[None]:
    """Turn large constants into inputs for a while; all other initializers are inputs, too."""
    graph = model.graph
    constants, inputs = list(graph.initializers.values()), list(graph.inputs)
    input_set = set(inputs)
    large = [value for value in constants if _is_large(value)]
    try:
        for value in constants:
            if value not in input_set:
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


def _replace_uninferable(graph: onnx.GraphProto, like_first: Collection[tuple[str, str]]) -> None:
    """Replace operators that ONNX cannot infer by Identity.

    `like_first` names operators whose output has the type and shape of the first input.
    """
    for node in graph.node:
        if (node.domain, node.op_type) in like_first:
            node.domain, node.op_type = "", "Identity"
            del node.input[1:], node.attribute[:]
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                _replace_uninferable(inner, like_first)


def _define_runtime_pair(message: onnx.ModelProto) -> None:
    """Define QuantizeLinear and DequantizeLinear of ONNX Runtime by the standard operators.

    ONNX has no schemas of that domain and stops there. A local function imports an opset of its
    own: the operators of the model's opset may lack the types.
    """
    present = {(function.domain, function.name) for function in message.functions}
    for name in _RUNTIME_PAIR:
        if (_RUNTIME_DOMAIN, name) in present:
            continue
        body = helper.make_node(name, _PARAMETERS, ["y"])
        for attribute in _DEFAULTS:
            body.attribute.add(
                name=attribute, ref_attr_name=attribute, type=onnx.AttributeProto.INT
            )
        defaults = [helper.make_attribute(*default) for default in _DEFAULTS.items()]
        function = helper.make_function(
            *(_RUNTIME_DOMAIN, name, _PARAMETERS, ["y"], [body]),
            opset_imports=[helper.make_opsetid("", _PAIR_OPSET)],
            attribute_protos=defaults,
        )
        message.functions.append(function)


def _is_large(value: ir.Value) -> bool:
    return value.const_value is None or value.const_value.nbytes > _LARGEST


def _pair_graphs(
    graph: ir.Graph, answer: onnx.GraphProto
) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """Yield a graph and those inside it, together with ONNX's inference result."""
    yield graph, answer
    for index, node in enumerate(graph):
        if not get_inner_graphs(node):
            continue
        protos = {attribute.name: attribute for attribute in answer.node[index].attribute}
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _pair_graphs(attribute.value, protos[attribute.name].g)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for inner, proto in zip(
                    attribute.value, protos[attribute.name].graphs, strict=True
                ):
                    yield from _pair_graphs(inner, proto)


def _record_type(value: ir.Value, proto: onnx.TypeProto) -> None:
    dtype = ir.serde.deserialize_type_proto_for_type(proto)
    if dtype is not None and (value.type is None or value.dtype != dtype.dtype):
        value.type = dtype
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    if shape is not None:
        value.shape = shape
