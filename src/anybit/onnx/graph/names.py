# SPDX-License-Identifier: Apache-2.0
"""Unique names, and names of nodes in messages."""

from collections.abc import Iterable

import onnx_ir as ir

from anybit.onnx.graph.walk import iter_graphs, iter_nodes, iter_values

EXPORTED_NAME_KEY = "anybit.exported_name"
"""Metadata of a node: the name that it had before it was named after its weights."""
SOURCE_NAME_KEY = "anybit.source_name"
"""Metadata of a value: the name that it has in the source graph, where that differs."""


class NameGenerator:
    """A generator of unique names: the requested name, or name_1, name_2, and so on."""

    def __init__(self, taken: Iterable[str | None] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        unique, count = name, self._counts.get(name, 0)
        while unique in self._taken:
            count += 1
            unique = f"{name}_{count}"
        self._counts[name] = count
        self._taken.add(unique)
        return unique


def make_name_generator(model: ir.Model) -> NameGenerator:
    """Return a generator of names that no node and no value of the model has."""
    taken: list[str | None] = []
    for graph in iter_graphs(model):
        taken += (value.name for value in iter_values(graph))
        taken += (node.name for node in graph)
    return NameGenerator(taken)


def name_nodes(model: ir.Model, *, unnamed: bool) -> bool:
    """Rename nodes with duplicate names; if `unnamed`, name nodes without a name by their operator.

    Return whether any name changed. Existing names are not reused.
    """
    nodes = list(iter_nodes(model.graph))
    unique = NameGenerator(node.name for node in nodes)
    seen: set[str] = set()
    modified = False
    for node in nodes:
        if node.name in seen or (unnamed and not node.name):
            node.name = unique(node.name or node.op_type)
            modified = True
        if node.name:
            seen.add(node.name)
    return modified


def get_label(node: ir.Node) -> str:
    """Return the name of a node, or else of its first named output."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def get_output_name(node: ir.Node) -> str:
    """Return the name of the first output of a node, or else of the node or its operator."""
    return node.outputs[0].name or node.name or node.op_type


def get_source_name(value: ir.Value) -> str:
    """Return the name of a value in the source graph."""
    return str(value.metadata_props.get(SOURCE_NAME_KEY, value.name))


def get_all_names(node: ir.Node) -> list[str]:
    """Return the label of a node, and the name that its file gave it."""
    exported = node.metadata_props.get(EXPORTED_NAME_KEY)
    return [get_label(node), *([exported] if exported else [])]


def format_operator(node: ir.Node) -> str:
    """Return the operator of a node with its domain: `com.microsoft::Gelu`, but `Conv` of ONNX."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def describe(node: ir.Node) -> str:
    """Return the form of a node in messages, also of the native library: node 'q' (IntQuant)."""
    return f"node {get_label(node)!r} ({node.op_type})"
