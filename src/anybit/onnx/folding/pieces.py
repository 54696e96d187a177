# SPDX-License-Identifier: Apache-2.0
"""Constant pieces of a graph: gathered, evaluated in one session, and replaced by their results."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.onnx.folding.extents import Extent, extent_of, result_extent
from anybit.onnx.graph.constants import Array, Content, array_of, constant, content, is_constant
from anybit.onnx.graph.cut import cut
from anybit.onnx.graph.editor import drop_if_unread, put_in_place_of
from anybit.onnx.graph.names import Names, names_of
from anybit.onnx.runtime import FAILURES, evaluate

# Constants of a branch that are larger stand outside, where the other branch may share them.
_SHARED = 2**8


class Piece:
    """Nodes of one graph that read constants, and one another's results, alone.

    Attributes:
        extents: What each result is at most.
    """

    def __init__(self, model: ir.Model) -> None:
        self.extents: dict[ir.Value, Extent] = {}
        self._model = model
        self._nodes: list[ir.Node] = []
        self._nbytes = 0

    def takes(self, node: ir.Node, limit: int) -> bool:
        """Whether the node can be evaluated, with no more bytes in all than the limit."""
        if self._nodes and self._nodes[0].graph is not node.graph:
            return False
        extent = self._extent(node)
        return extent is not None and self._nbytes + extent.nbytes <= limit

    def add(self, node: ir.Node) -> None:
        extent = self._extent(node)
        assert extent is not None, "asked before"
        self._nodes.append(node)
        self._nbytes += extent.nbytes
        self.extents[node.outputs[0]] = extent

    def evaluated(self) -> dict[ir.Value, Array]:
        """The results that others read.

        Where the runtime refuses the piece, each node is tried alone; what fails is left to the
        session of the whole model, which says better what is wrong.
        """
        if not self._nodes:
            return {}
        found = _evaluated(self._model, self._nodes, {})
        if found is None:
            found = {}
            for node in self._nodes if len(self._nodes) > 1 else ():
                found |= _evaluated(self._model, [node], found) or {}
        return found

    def _extent(self, node: ir.Node) -> Extent | None:
        if node.op_type == "Constant" and node.domain == "":
            return _stored(node)
        known = [self._known(value) for value in node.inputs]
        if any(each is not None and not _is_plain(each.array) for each in known):
            return None
        return result_extent(node, known)

    def _known(self, value: ir.Value | None) -> Extent | None:
        if value is None or value in self.extents:
            return None if value is None else self.extents[value]
        return extent_of(_array(value))


def _stored(node: ir.Node) -> Extent | None:
    """What a Constant holds in an attribute; those that hold a tensor are folded before."""
    if "sparse_value" in node.attributes:  # whose shape may be any
        return None
    values = [attribute.value for attribute in node.attributes.values()]
    return Extent(max((len(each) for each in values if isinstance(each, tuple)), default=1))


def _evaluated(
    model: ir.Model, nodes: Sequence[ir.Node], known: dict[ir.Value, Array]
) -> dict[ir.Value, Array] | None:
    """What nodes give to others; None if they cannot be run, or read what is neither constant nor
    known."""
    inside = set(nodes)
    results = {
        str(value.name): value
        for value in (node.outputs[0] for node in nodes)
        if value.is_graph_output() or any(reader not in inside for reader, _ in value.uses())
    }
    fragment = cut(model, nodes, list(results.values()))
    for node in fragment.graph:
        node.name = None  # the runtime refuses two of one name
    feeds = {}
    needed = {each for node in nodes for each in elements_read(node)}
    for value in {each for node in nodes for each in node.inputs if each is not None}:
        if value in known or is_constant(value) or value.producer() is None:
            feeds[str(value.name)] = known[value] if value in known else _array(value)
        elif value.producer() not in inside:
            if value in needed:
                return None
            feeds[str(value.name)] = _array(value)
    try:
        arrays = evaluate(fragment, feeds) if results else {}
    except FAILURES:
        return None
    return {results[name]: array for name, array in arrays.items()}


def elements_read(node: ir.Node) -> Sequence[ir.Value | None]:
    """The inputs whose elements matter: of what a CastLike is like only the type does."""
    like = node.inputs[1:2] if (node.domain, node.op_type) == ("", "CastLike") else ()
    typed = any(value is not None and value.dtype is not None for value in like)
    return node.inputs[:1] if typed else node.inputs


def _array(value: ir.Value) -> Array:
    """The array of a constant; for what is only a type, one of no elements."""
    if is_constant(value):
        return array_of(value)
    assert value.dtype is not None, "asked before"
    return np.empty(0, value.dtype.numpy())


def _is_plain(array: Array | None) -> bool:
    """Whether the runtime and NumPy agree on the type."""
    return array is None or array.dtype.isbuiltin == 1


class Results:
    """Puts constants in the place of nodes.

    Large ones of branches and loops go to the main graph, once each: both branches of an If may
    hold the same.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._shared: dict[Content, ir.Value] = {}
        self._unique: Names | None = None
        self._replaced: dict[ir.Graph, list[ir.Node]] = {}

    def put(self, node: ir.Node, tensor: ir.TensorProtocol) -> None:
        """Give the node's output as a constant, and drop inputs without readers.

        The node reads nothing and is read by nothing then; `finish` takes it out.
        """
        graph, old = node.graph, node.outputs[0]
        inputs = [value for value in node.inputs if value is not None]
        assert graph is not None, "nodes in a graph only"
        outer = graph is not self._model.graph and not old.is_graph_output()
        shares = outer and tensor.size > _SHARED
        value = self._hoisted(old, tensor) if shares else constant(old.name, tensor)
        put_in_place_of(old, value)
        for at in range(len(node.inputs)):
            node.replace_input_with(at, None)
        self._replaced.setdefault(graph, []).append(node)
        if not shares:
            graph.register_initializer(value)
        for each in inputs:
            drop_if_unread(each)

    def finish(self) -> None:
        """Take out the nodes: together, because each time the graph looks at all its outputs."""
        for graph, nodes in self._replaced.items():
            graph.remove(nodes, safe=True)
        self._replaced.clear()

    def _hoisted(self, old: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        key = content(tensor.numpy())
        if key not in self._shared:
            self._unique = self._unique or names_of(self._model)
            value = constant(self._unique(str(old.name)), tensor)
            self._model.graph.register_initializer(value)
            self._shared[key] = value
        return self._shared[key]
