# SPDX-License-Identifier: Apache-2.0
"""Names that nothing else has, and how messages call a node."""

from collections.abc import Iterable

import onnx_ir as ir

from anybit.onnx.graph.walk import graphs_in, nodes_in, values_in

EXPORTED_NAME_KEY = "anybit.exported_name"
"""Metadata of a node: the name that it had before it was named after its weights."""


class Names:
    """Gives out names that are not taken yet: the wish itself, else wish_1, wish_2 and so on."""

    def __init__(self, taken: Iterable[str | None] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def __call__(self, wish: str) -> str:
        chosen, count = wish, self._counts.get(wish, 0)
        while chosen in self._taken:
            count += 1
            chosen = f"{wish}_{count}"
        self._counts[wish] = count
        self._taken.add(chosen)
        return chosen


def names_of(model: ir.Model) -> Names:
    """Names that no node and no value of the model has."""
    taken: list[str | None] = []
    for graph in graphs_in(model):
        taken += (value.name for value in values_in(graph))
        taken += (node.name for node in graph)
    return Names(taken)


def name_nodes(model: ir.Model, *, unnamed: bool) -> bool:
    """Give the later of nodes of one name another; those without a name, if asked for, their kind.

    Whether any name was changed. Names that are there already are not given to others.
    """
    nodes = list(nodes_in(model.graph))
    unique = Names(node.name for node in nodes)
    seen: set[str] = set()
    modified = False
    for node in nodes:
        if node.name in seen or (unnamed and not node.name):
            node.name = unique(node.name or node.op_type)
            modified = True
        if node.name:
            seen.add(node.name)
    return modified


def label_of(node: ir.Node) -> str:
    """What a node is called: its own name, or else that of its first named output."""
    return node.name or next((value.name for value in node.outputs if value.name), "")


def all_names_of(node: ir.Node) -> list[str]:
    """Return the label of a node, and the name that its file gave it."""
    exported = node.metadata_props.get(EXPORTED_NAME_KEY)
    return [label_of(node), *([exported] if exported else [])]


def described(node: ir.Node) -> str:
    """A node as messages name it, in Python and in the native library: node 'q' (IntQuant)."""
    return f"node {label_of(node)!r} ({node.op_type})"
