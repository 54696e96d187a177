# SPDX-License-Identifier: Apache-2.0
"""Constant subgraphs: collected, evaluated in one session, and replaced by their outputs."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.onnx.folding.extents import Extent, bound_extent, measure_extent
from anybit.onnx.graph.constants import (
    Array,
    Content,
    is_constant,
    make_constant,
    make_content_key,
    read_array,
)
from anybit.onnx.graph.cut import extract_subgraph
from anybit.onnx.graph.editor import drop_if_unread, is_read, replace_value
from anybit.onnx.graph.names import NameGenerator, make_name_generator
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_graph
from anybit.onnx.runtime import FAILURES, evaluate

# Larger constants of a branch go to the main graph, where the other branch may share them.
_SHARED = 2**8


class FoldingSubgraph:
    """Nodes of one graph that read only constants and each other's outputs.

    Attributes:
        extents: The maximal extent of each output.
    """

    def __init__(self, model: ir.Model) -> None:
        self.extents: dict[ir.Value, Extent] = {}
        self._model = model
        self._nodes: list[ir.Node] = []
        self._nbytes = 0

    def can_take(self, node: ir.Node, limit: int) -> bool:
        """Return whether the node can be evaluated within a limit of total bytes."""
        if self._nodes and self._nodes[0].graph is not node.graph:
            return False
        extent = self._bound_extent(node)
        return extent is not None and self._nbytes + extent.nbytes <= limit

    def add(self, node: ir.Node) -> None:
        extent = self._bound_extent(node)
        assert extent is not None, "checked before"
        self._nodes.append(node)
        self._nbytes += extent.nbytes
        self.extents[node.outputs[0]] = extent

    def evaluate(self) -> dict[ir.Value, Array]:
        """Return the outputs that other nodes read.

        If the runtime refuses the subgraph, each node is tried alone. Failing nodes are left to the
        session of the whole model, which reports the problem better.
        """
        if not self._nodes:
            return {}
        results = _evaluate_nodes(self._model, self._nodes, {})
        if results is None:
            results = {}
            for node in self._nodes if len(self._nodes) > 1 else ():
                results |= _evaluate_nodes(self._model, [node], results) or {}
        return results

    def _bound_extent(self, node: ir.Node) -> Extent | None:
        if is_onnx_op(node, "Constant"):
            return _measure_stored(node)
        extents = [self._get_extent(value) for value in node.inputs]
        if any(extent is not None and not _is_plain(extent.array) for extent in extents):
            return None
        return bound_extent(node, extents)

    def _get_extent(self, value: ir.Value | None) -> Extent | None:
        if value is None or value in self.extents:
            return None if value is None else self.extents[value]
        return measure_extent(_read_or_empty(value))


def _measure_stored(node: ir.Node) -> Extent | None:
    """Return the extent of a Constant's attribute; constants with a tensor are folded before."""
    if "sparse_value" in node.attributes:  # of any shape
        return None
    values = [attribute.value for attribute in node.attributes.values()]
    return Extent(max((len(value) for value in values if isinstance(value, tuple)), default=1))


def _evaluate_nodes(
    model: ir.Model, nodes: Sequence[ir.Node], constants: dict[ir.Value, Array]
) -> dict[ir.Value, Array] | None:
    """Return the outputs of nodes that others read.

    None if they cannot be run, or read a value that is neither constant nor in `constants`.
    """
    inside = set(nodes)
    results = {
        str(value.name): value
        for value in (node.outputs[0] for node in nodes)
        if value.is_graph_output() or any(reader not in inside for reader, _ in value.uses())
    }
    fragment = extract_subgraph(model, nodes, list(results.values()))
    for node in fragment.graph:
        node.name = None  # the runtime refuses duplicate names
    feeds = {}
    needed = {operand for node in nodes for operand in get_inputs_read(node)}
    for value in {operand for node in nodes for operand in node.inputs if operand is not None}:
        if value in constants or is_constant(value) or value.producer() is None:
            feeds[str(value.name)] = (
                constants[value] if value in constants else _read_or_empty(value)
            )
        elif value.producer() not in inside:
            if value in needed:
                return None
            feeds[str(value.name)] = _read_or_empty(value)
    try:
        arrays = evaluate(fragment, feeds) if results else {}
    except FAILURES:
        return None
    return {results[name]: array for name, array in arrays.items()}


def get_inputs_read(node: ir.Node) -> Sequence[ir.Value | None]:
    """Return the inputs whose elements are used: CastLike only reads the type of its second."""
    like = node.inputs[1:2] if is_onnx_op(node, "CastLike") else ()
    typed = any(value is not None and value.dtype is not None for value in like)
    return node.inputs[:1] if typed else node.inputs


def _read_or_empty(value: ir.Value) -> Array:
    """Return the array of a constant; an empty one if only its type matters."""
    if is_constant(value):
        return read_array(value)
    assert value.dtype is not None, "checked before"
    return np.empty(0, value.dtype.numpy())


def _is_plain(array: Array | None) -> bool:
    """Return whether the runtime and NumPy agree on the type."""
    return array is None or array.dtype.isbuiltin == 1


class FoldedValues:
    """Replacement of nodes by constants.

    Large constants of branches and loops go to the main graph, once: both branches of an If may
    hold the same.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._shared: dict[Content, ir.Value] = {}
        self._unique: NameGenerator | None = None
        self._replaced: dict[ir.Graph, list[ir.Node]] = {}

    def put(self, node: ir.Node, tensors: Sequence[ir.TensorProtocol]) -> None:
        """Replace the outputs of a node that are read, and drop inputs without readers.

        The node then has no inputs and no readers; `finish` removes it.
        """
        graph = require_graph(node)
        inputs = [value for value in node.inputs if value is not None]
        for old, tensor in zip(node.outputs, tensors, strict=True):
            if not is_read(old) and not old.is_graph_output():
                continue
            outer = graph is not self._model.graph and not old.is_graph_output()
            shares = outer and tensor.size > _SHARED
            value = self._hoist(old, tensor) if shares else make_constant(old.name, tensor)
            replace_value(old, value)
            if not shares:
                graph.register_initializer(value)
        for at in range(len(node.inputs)):
            node.replace_input_with(at, None)
        self._replaced.setdefault(graph, []).append(node)
        for operand in inputs:
            drop_if_unread(operand)

    def finish(self) -> None:
        """Remove all nodes at once, because each removal scans all outputs of the graph."""
        for graph, nodes in self._replaced.items():
            graph.remove(nodes, safe=True)
        self._replaced.clear()

    def _hoist(self, old: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        key = make_content_key(tensor.numpy())
        if key not in self._shared:
            self._unique = self._unique or make_name_generator(self._model)
            value = make_constant(self._unique(str(old.name)), tensor)
            self._model.graph.register_initializer(value)
            self._shared[key] = value
        return self._shared[key]
