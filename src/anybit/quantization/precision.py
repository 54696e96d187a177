# SPDX-License-Identifier: Apache-2.0
"""Models in float16 and float64 become models in float32, which is what layers are placed in."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.walk import graphs_in, inner_graphs, nodes_in, values_in
from anybit.onnx.passes import ComputeInFloat32, InferShapes
from anybit.quantization.placement import multiplied, multiplies

_HALF, _FLOAT, _DOUBLE = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE
FLOATS = (_HALF, ir.DataType.BFLOAT16, _FLOAT, _DOUBLE)
"""What is computed in floats, in a model that is to be quantized."""
# What looks at no value; and what gives as many values as the values of its inputs say.
_BLIND, _COUNTING = ("Shape", "Size"), ("Range",)


def in_float32(model: ir.Model) -> tuple[tuple[str, ...], frozenset[str]]:
    """Change a model, and give what is to be said of that, and the inputs in float64 that are
    computed in float32.

    A model that multiplies float32, and computes something else in float64, keeps that: it may be
    what needs so many bits. So does what decides about sizes, indices and conditions, where one
    bit less may be another number; if layers stand before that, all stays in float64. And so does
    what is rounded to whole numbers, unless layers stand before.
    """
    passes = {_HALF: ComputeInFloat32(_HALF)}
    narrow: frozenset[str] = frozenset()
    deciding = _deciding(model) if _is_double(model) else None
    if deciding is not None:
        passes[_DOUBLE] = ComputeInFloat32(_DOUBLE, deciding)
        narrow = frozenset(
            str(value.name)
            for value in model.graph.inputs
            if value.dtype == _DOUBLE and any(use.node not in deciding for use in value.uses())
        )
    changed = [type for type, each in passes.items() if each(model).modified]
    said = tuple(
        f"What was float{type.bitwidth} is computed and counted in float32 here, and compared "
        "with that; inputs and outputs keep their type."
        for type in changed
    )
    return said, narrow


def _is_double(model: ir.Model) -> bool:
    """Whether it multiplies float64, and no float32."""
    values = (value for graph in graphs_in(model) for value in values_in(graph))
    if not any(value.dtype == _DOUBLE for value in values):
        return False
    InferShapes()(model)
    products = [node for node in nodes_in(model.graph) if multiplies(node)]
    types = {value.dtype for node in products for value in multiplied(node)}
    return _DOUBLE in types and _FLOAT not in types


def _deciding(model: ir.Model) -> set[ir.Node] | None:
    """The nodes whose floats become sizes, indices or conditions that something in the model reads;
    None if they cannot be told from its layers, or stand in branches. And those whose floats become
    whole numbers and that can be told."""
    found = _before((node for node in nodes_in(model.graph) if _decides(node, model)), model)
    if found is None:
        return None
    for node in nodes_in(model.graph):
        if has_trait(node, OpTrait.STEP) and node not in found:
            found |= _before([node], model) or set()
    return found


def _before(nodes: Iterable[ir.Node], model: ir.Model) -> set[ir.Node] | None:
    """Nodes, and all that floats come to them from; None if layers or branches are among them."""
    found: set[ir.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if node.graph is not model.graph or multiplies(node) or any(inner_graphs(node)):
            return None
        found.add(node)
        waiting += _float_producers(node)
    return found


def _decides(node: ir.Node, model: ir.Model) -> bool:
    """Whether it makes of float64 what is no float, or not known to be one."""
    kind = node.op_type if node.domain == "" else ""
    if kind in _BLIND:
        return False
    if not any(value is not None and value.dtype == _DOUBLE for value in node.inputs):
        return False
    if kind in _COUNTING:
        return True
    return any(
        value.dtype not in FLOATS
        and (value.uses() or (value.is_graph_output() and value.graph is not model.graph))
        for value in node.outputs
    )


def _float_producers(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        if value is not None and (value.dtype is None or value.dtype in FLOATS):
            producer = value.producer()
            if producer is not None:
                yield producer
