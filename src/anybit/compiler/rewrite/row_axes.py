# SPDX-License-Identifier: Apache-2.0
"""Reshapes that merge the leading axes of rows: programs take all axes, so few are needed.

Axes are merged to find regions (`prepare/flatten_rows.py`). The node of a program and elementwise
operators compute the same on rows of several axes. Where nothing else stands between the Reshapes,
these and the nodes that compute their shapes are removed.
"""

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.compiler.analyze.disjoint_sets import DisjointSets
from anybit.compiler.prepare.flatten_rows import MERGED, RESTORED, ROWS
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.onnx.operators.integer_network import PROGRAM, is_integer_network


class _Rows:
    """Values of merged axes, in sets that nodes connect."""

    def __init__(self, model: ir.Model) -> None:
        self.sets = DisjointSets[ir.Value]()
        self._opset = model.graph.opset_imports.get("", 1)
        self._axes: dict[ir.Value, int] = {}
        """The leading axes of each value before they were merged."""
        self._kept: list[ir.Value] = []
        for node in model.graph:
            self._add(node)

    def _add(self, node: ir.Node) -> None:
        role, x = node.metadata_props.get(ROWS), node.inputs[0] if node.inputs else None
        if role == MERGED and x is not None:
            self._axes[node.outputs[0]] = len(x.shape or ()) - 1
        rows = [value for value in node.inputs if value is not None and value in self._axes]
        if not rows or role is not None:
            return
        self._axes |= dict.fromkeys(node.outputs, self._axes[rows[0]])
        for value in (*rows, *node.outputs):
            self.sets.join(rows[0], value)
        if not self._takes_several_axes(node, {self._axes[value] for value in rows}):
            self._kept.append(rows[0])

    def _takes_several_axes(self, node: ir.Node, counts: set[int]) -> bool:
        """Return whether a node computes the same on rows of several axes."""
        if len(counts) > 1 or any(y.is_graph_output() for y in node.outputs):
            return False
        if is_integer_network(node):
            return all(value in self._axes for value in node.inputs[len(PROGRAM) :])
        is_alike = has_trait(node, OpTrait.ELEMENTWISE | OpTrait.RECTIFIER, self._opset)
        return (is_alike or is_onnx_op(node, "LayerNormalization")) and all(
            value is None or value in self._axes or _has_one_row(value) for value in node.inputs
        )

    def restore(self) -> set[ir.Value]:
        """Give the values their own axes where all nodes take them; return these values."""
        kept = {self.sets.find(value) for value in self._kept}
        restored = {value for value in self._axes if self.sets.find(value) not in kept}
        for value in restored:
            last = list(value.shape)[-1] if value.shape is not None else None
            value.shape = ir.Shape([*[None] * self._axes[value], last])
        return restored


def restore_row_axes(model: ir.Model) -> None:
    """Remove Reshapes of rows where all nodes between them take several leading axes, in place."""
    restored, count = _Rows(model).restore(), 0
    for node in list(model.graph):
        role, x = node.metadata_props.pop(ROWS, None), node.inputs[0] if node.inputs else None
        rows = x if role == RESTORED else node.outputs[0]
        if role is None or x is None or rows not in restored:
            continue
        _bypass(node, x)
        count += 1
    if count:
        RemoveUnusedNodesPass()(model)


def _has_one_row(value: ir.Value) -> bool:
    """Return whether a value is a constant without further rows."""
    return is_constant(value) and all(size == 1 for size in list(value.shape or ())[:-1])


def _bypass(node: ir.Node, x: ir.Value) -> None:
    """Let all readers of a Reshape read its input."""
    y = node.outputs[0]
    if y.is_graph_output():
        y.name, x.name = None, y.name
    y.replace_all_uses_with(x, replace_graph_outputs=True)
