# SPDX-License-Identifier: Apache-2.0
"""Removal of nodes that return their input."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_identity, is_onnx_op
from anybit.onnx.graph.reductions import get_reduced_axes
from anybit.onnx.graph.require import require_graph, require_input

_BOUNDS = 3  # x, starts, ends


class DropIdentities(InPlacePass):
    """Removal of Identity, Dropout in inference, reductions over no axes, and whole Slices.

    Graph inputs and outputs keep their names, so a node between an input or a constant and an
    output stays.
    """

    def call(self, model: ir.Model) -> PassResult:
        opset = model.graph.opset_imports.get("", 1)
        nodes = [node for node in model.graph.all_nodes() if _is_identity(node, opset)]
        return PassResult(model, bool(sum(_try_drop(node) for node in nodes)))


def _is_identity(node: ir.Node, opset: int) -> bool:
    if not node.inputs or node.inputs[0] is None:
        return False
    if not (is_identity(node, opset) or _reduces_nothing(node) or _slices_whole_axes(node)):
        return False
    mask = node.outputs[1:]
    return not any(output.uses() or output.is_graph_output() for output in mask)


def _reduces_nothing(node: ir.Node) -> bool:
    """Return whether noop_with_empty_axes makes a reduction the identity."""
    return has_trait(node, OpTrait.KEEPS_SINGLE_ELEMENT) and get_reduced_axes(node, 1) == ()


def _slices_whole_axes(node: ir.Node) -> bool:
    """Return whether a Slice goes from 0 to the largest integer, as exporters write `x[:]`."""
    if not is_onnx_op(node, "Slice") or len(node.inputs) < _BOUNDS:
        return False
    bounds = [node.inputs[place] for place in (1, 2, 4) if place < len(node.inputs)]
    expected = (0, np.iinfo(np.int64).max, 1)
    return all(
        value is None or (is_constant(value) and bool(np.all(read_array(value) == number)))
        for value, number in zip(bounds, expected, strict=False)
    )


def _try_drop(node: ir.Node) -> bool:
    x, y, graph = require_input(node), node.outputs[0], require_graph(node)
    if y.is_graph_output():
        producer = x.producer()
        if producer is None or producer.graph is not graph or x.is_graph_output():
            return False
    if x.shape is None:
        x.shape = y.shape
    if x.type is None:
        x.type = y.type
    name = y.name if y.is_graph_output() else x.name
    y.replace_all_uses_with(x, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    x.name = name
    return True
