# SPDX-License-Identifier: Apache-2.0
"""Parts of nodes that a rewrite needs, and errors for nodes without them."""

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.names import describe


def require_graph(node: ir.Node) -> ir.Graph:
    """Return the graph of a node.

    Raises:
        ValueError: The node was removed from its graph.
    """
    if node.graph is None:
        raise ValueError(f"{describe(node)} is not in a graph")
    return node.graph


def require_input(node: ir.Node, index: int = 0) -> ir.Value:
    """Return an input of a node.

    Raises:
        ModelError: The node lacks the input.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        raise ModelError(f"{describe(node)} lacks its input {index}; export the model again")
    return value


def require_shape(value: ir.Value) -> ir.Shape:
    """Return the shape of a value.

    Raises:
        ModelError: The rank is unknown.
    """
    if value.shape is None:
        raise ModelError(f"the rank of {value.name!r} is unknown; declare it in the model")
    return value.shape


def require_producer(value: ir.Value) -> ir.Node:
    """Return the node that computes a value.

    Raises:
        ValueError: No node computes it.
    """
    node = value.producer()
    if node is None:
        raise ValueError(f"no node computes {value.name!r}")
    return node
