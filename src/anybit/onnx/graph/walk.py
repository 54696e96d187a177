# SPDX-License-Identifier: Apache-2.0
"""All that is in a graph, or in all graphs of a model."""

from collections.abc import Iterator

import onnx_ir as ir


def values_in(graph: ir.Graph) -> Iterator[ir.Value]:
    """Inputs, initializers and results of a graph; not of those inside its nodes."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def initializers_in(model: ir.Model) -> Iterator[ir.Value]:
    """The initializers of all graphs."""
    for graph in model.graphs():
        yield from graph.initializers.values()


def tensors_in(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """What the initializers of all graphs hold."""
    for value in initializers_in(model):
        if value.const_value is not None:
            yield value.const_value
