# SPDX-License-Identifier: Apache-2.0
"""Branches of If: weights outside of them, and tensors that the main graph can observe."""

from collections.abc import Container, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import make_constant, read_array
from anybit.onnx.graph.names import NameGenerator, make_name_generator
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.walk import get_inner_graphs, iter_graphs, iter_values

_AnyGraph: TypeAlias = ir.Graph | ir.Function | None
BranchOwners: TypeAlias = Mapping[_AnyGraph, ir.Node]
"""The If of each branch of a model."""


def walk_reachable(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph and its branches in an order in which they can run.

    Bodies of loops are left out: they run several times.
    """
    for node in graph:
        if is_if(node):
            for branch in get_inner_graphs(node):
                yield from walk_reachable(branch)
        yield node


def is_if(node: ir.Node) -> bool:
    """Return whether a node is the ONNX operator If."""
    return is_onnx_op(node, "If")


def separate_branches(model: ir.Model) -> None:
    """Move float32 weights of branches to the main graph, and make names unique.

    In a file, values of branches that exclude one another may share a name.
    """
    make_unique = NameGenerator(value.name for value in iter_values(model.graph))
    for graph in list(iter_graphs(model))[1:]:
        for value in list(graph.initializers.values()):
            is_fixed = value.is_graph_output() or value.is_graph_input()
            if is_fixed or value.dtype != ir.DataType.FLOAT:
                continue
            # A new tensor: writers rename a tensor after its value, and this may be the caller's.
            outer = make_constant(make_unique(str(value.name)), ir.tensor(read_array(value)))
            model.graph.register_initializer(outer)
            value.replace_all_uses_with(outer)
            del graph.initializers[str(value.name)]
        for value in iter_values(graph):
            if value.name and not value.is_initializer():
                value.name = make_unique(value.name)


def expose_branch_tensors(model: ir.Model, names: Container[str]) -> None:
    """Make the main graph compute the tensors of branches that have one of these names.

    They keep their names there, and are empty where another branch runs.
    """
    make_unique = make_name_generator(model)
    owners = find_branch_owners(model)
    for node in list(walk_reachable(model.graph)):
        for value in node.outputs if node.graph is not model.graph else ():
            if value.name in names:
                name, value.name = value.name, make_unique(f"{value.name}_inside")
                _export(value, node.graph, model, owners, make_unique).name = name


def find_branch_owners(model: ir.Model) -> BranchOwners:
    """Return the If that each branch of a model belongs to."""
    ifs = [node for node in walk_reachable(model.graph) if is_if(node)]
    return {branch: node for node in ifs for branch in get_inner_graphs(node)}


def find_enclosing_reader(value: ir.Value, reader: ir.Node, owners: BranchOwners) -> ir.Node:
    """Return the node in the graph of a value that is its reader, or whose branches contain it."""
    producer, node = value.producer(), reader
    graph = value.graph if producer is None else producer.graph
    while node.graph is not graph:
        node = owners[node.graph]
    return node


def _export(
    value: ir.Value,
    graph: _AnyGraph,
    model: ir.Model,
    owners: BranchOwners,
    make_unique: NameGenerator,
) -> ir.Value:
    """Return an output of the main graph's If with the content of a value inside its branches."""
    while graph is not model.graph:
        owner = owners[graph]
        for branch in get_inner_graphs(owner):
            branch.outputs.append(_append_result(value, branch is graph, branch, make_unique))
        owner.resize_outputs(len(owner.outputs) + 1)
        outer = owner.outputs[-1]
        outer.name, outer.type = make_unique(f"{value.name}_outside"), value.type
        value, graph = outer, owner.graph
    return value


def _append_result(
    value: ir.Value, is_computed: bool, branch: ir.Graph, make_unique: NameGenerator
) -> ir.Value:
    """Append a node to a branch that copies a value, or returns an empty tensor of its type."""
    if is_computed:
        node = ir.Node("", "Identity", [value])
    else:
        dtype = value.dtype or ir.DataType.FLOAT
        empty = ir.tensor(np.empty(0, dtype.numpy()), dtype=dtype)
        node = ir.Node("", "Constant", [], [ir.AttrTensor("value", empty)])
    result = node.outputs[0]
    result.name, result.type = make_unique(f"{value.name}_seen"), value.type
    branch.append(node)
    return result
