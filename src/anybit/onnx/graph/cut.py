# SPDX-License-Identifier: Apache-2.0
"""Extraction of a subgraph as a model of its own."""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from anybit.onnx.graph.walk import get_inner_graphs


def extract_subgraph(
    model: ir.Model, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]
) -> ir.Model:
    """Return a model of some nodes of a model, in this order, in which they can be run.

    Inputs that they do not compute are inputs of the new model, constants included: tensors are
    passed without a copy. Names stay. The source model is not changed.
    """
    computed = {value for node in nodes for value in node.outputs}
    inputs = dict.fromkeys(value for value in _iter_inputs(nodes) if value not in computed)
    view = ir.GraphView(
        list(inputs),
        list(outputs),
        nodes=list(nodes),
        opset_imports=dict(model.graph.opset_imports),
        name="piece",
    )
    return ir.Model(view.clone(), ir_version=model.ir_version or 8)


def _iter_inputs(nodes: Sequence[ir.Node]) -> Iterator[ir.Value]:
    """Yield the inputs of nodes, and the outer values that graphs inside them use."""
    for node in nodes:
        yield from (value for value in node.inputs if value is not None)
        for graph in get_inner_graphs(node):
            yield from _iter_captured_values(graph)


def _iter_captured_values(graph: ir.Graph) -> Iterator[ir.Value]:
    own = {*graph.inputs, *graph.initializers.values()}
    own.update(value for node in graph for value in node.outputs)
    for value in (*_iter_inputs(list(graph)), *graph.outputs):
        if value not in own:
            yield value
