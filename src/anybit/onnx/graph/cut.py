# SPDX-License-Identifier: Apache-2.0
"""Extraction of a subgraph as a model of its own."""

from collections.abc import Iterator, Sequence

import onnx_ir as ir


def cut(model: ir.Model, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> ir.Model:
    """Return a model of some nodes of a model, in this order, in which they can be run.

    Inputs that they do not compute are inputs of the new model, constants included: tensors are
    passed without a copy. Names stay. The source model is not changed.
    """
    computed = {value for node in nodes for value in node.outputs}
    inputs = dict.fromkeys(value for value in _read(nodes) if value not in computed)
    view = ir.GraphView(
        list(inputs),
        list(outputs),
        nodes=list(nodes),
        opset_imports=dict(model.graph.opset_imports),
        name="piece",
    )
    return ir.Model(view.clone(), ir_version=model.ir_version or 8)


def _read(nodes: Sequence[ir.Node]) -> Iterator[ir.Value]:
    """Yield the inputs of nodes, and the outer values that graphs inside them use."""
    for node in nodes:
        yield from (value for value in node.inputs if value is not None)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                yield from _captured(attribute.as_graph())
            elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
                for graph in attribute.as_graphs():
                    yield from _captured(graph)


def _captured(graph: ir.Graph) -> Iterator[ir.Value]:
    own = {*graph.inputs, *graph.initializers.values()}
    own.update(value for node in graph for value in node.outputs)
    for value in (*_read(list(graph)), *graph.outputs):
        if value not in own:
            yield value
