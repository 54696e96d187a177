# SPDX-License-Identifier: Apache-2.0
"""What stands in the branches of If: recorded, quantized, and called by names of its own."""

from collections.abc import Container, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import array_of, constant
from anybit.onnx.graph.names import Names, names_of
from anybit.onnx.graph.walk import graphs_in, inner_graphs, values_in


def walk_reachable(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph and of the branches in it, in an order in which they can run. Those of
    loops, which run many times, are not among them."""
    for node in graph:
        if is_if(node):
            for branch in inner_graphs(node):
                yield from walk_reachable(branch)
        yield node


def is_if(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "If")


def separate_branches(model: ir.Model) -> None:
    """Put the weights in all branches into the main graph, and give no two values one name.

    Values of branches that exclude one another may have one name in a file.
    """
    unique = Names(value.name for value in values_in(model.graph))
    for graph in list(graphs_in(model))[1:]:
        for value in list(graph.initializers.values()):
            given = value.is_graph_output() or value.is_graph_input()
            if given or value.dtype != ir.DataType.FLOAT:
                continue
            # A new tensor: writers give it the name of its value, and this may be the caller's.
            outer = constant(unique(str(value.name)), ir.tensor(array_of(value)))
            model.graph.register_initializer(outer)
            value.replace_all_uses_with(outer)
            del graph.initializers[str(value.name)]
        for value in values_in(graph):
            if value.name and not value.is_initializer():
                value.name = unique(value.name)


def expose_branch_tensors(model: ir.Model, names: Container[str]) -> None:
    """Let the main graph compute those tensors of branches that are called so, and keep the names
    there. They are empty where another branch runs."""
    unique = names_of(model)
    holders = find_branch_owners(model)
    for node in list(walk_reachable(model.graph)):
        for value in node.outputs if node.graph is not model.graph else ():
            if value.name in names:
                name, value.name = value.name, unique(f"{value.name}_inside")
                _lift(value, model, holders, unique).name = name


def _lift(
    value: ir.Value, model: ir.Model, holders: Mapping[ir.Graph, ir.Node], unique: Names
) -> ir.Value:
    producer = value.producer()
    assert producer is not None, "made by a node"
    graph = producer.graph
    assert isinstance(graph, ir.Graph), "in a graph"
    if graph is model.graph:
        return value
    holder = holders[graph]
    for branch in inner_graphs(holder):
        branch.outputs.append(_result(value, branch is graph, branch, unique))
    holder.resize_outputs(len(holder.outputs) + 1)
    outer = holder.outputs[-1]
    outer.name, outer.type = unique(f"{value.name}_outside"), value.type
    return _lift(outer, model, holders, unique)


def _result(value: ir.Value, computed: bool, branch: ir.Graph, unique: Names) -> ir.Value:
    """The value, or an empty tensor of its type, as one more result of a branch."""
    if computed:
        node = ir.Node("", "Identity", [value])
    else:
        dtype = value.dtype or ir.DataType.FLOAT
        nothing = ir.tensor(np.empty(0, dtype.numpy()), dtype=dtype)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", nothing)])
    result = node.outputs[0]
    result.name, result.type = unique(f"{value.name}_seen"), value.type
    branch.append(node)
    return result


def find_branch_owners(model: ir.Model) -> dict[ir.Graph, ir.Node]:
    """Of each branch the If that it belongs to."""
    ifs = [node for node in walk_reachable(model.graph) if is_if(node)]
    return {branch: node for node in ifs for branch in inner_graphs(node)}


def find_enclosing_reader(
    value: ir.Value, reader: ir.Node, holders: Mapping[ir.Graph, ir.Node]
) -> ir.Node:
    """The node in the graph of a value that is, or holds, one that reads it."""
    producer, node = value.producer(), reader
    own = value.graph if producer is None else producer.graph
    while node.graph is not own:
        assert isinstance(node.graph, ir.Graph), "a node in a model"
        node = holders[node.graph]
    return node
