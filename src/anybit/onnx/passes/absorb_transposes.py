# SPDX-License-Identifier: Apache-2.0
"""Absorption of Transposes before a Flatten into the following weight."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.analysis.analysis import analyze
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.layout import Order, get_transpose_order, invert_order
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.passes._reorder import Change, change_input, get_rank, is_known
from anybit.onnx.passes.move_transposes import is_elementwise


class AbsorbTransposes(InPlacePass):
    """Absorption of a Transpose before Flatten and MatMul into the rows of the weight.

    Elementwise nodes with scalar operands may lie in between. The order of the sum changes, so only
    sums that float32 computes exactly in any order qualify; other Transposes stay. The model is
    normalized, and its shapes are inferred.
    """

    def call(self, model: ir.Model) -> PassResult:
        if not any(get_transpose_order(node) for node in iter_nodes(model.graph)):
            return PassResult(model, False)
        exact = {product.node for product in analyze(model).products if product.exact}
        matches = [
            match for node in iter_nodes(model.graph) for match in _find_matches(node, exact)
        ]
        editor = Editor(model)
        for match in matches:
            match.flatten.replace_input_with(0, match.transpose.inputs[0])
            change_input(match.product, 1, match.rows_in_order(), editor)
        if matches:
            RemoveUnusedNodesPass()(model)
        return PassResult(model, bool(matches))


@dataclass(frozen=True)
class _Match:
    """A Transpose of an image of these sizes, followed by a Flatten and a MatMul."""

    transpose: ir.Node
    order: Order
    sizes: tuple[int, ...]
    flatten: ir.Node
    product: ir.Node

    def rows_in_order(self) -> Change:
        """Return the change that permutes the rows of a weight like the Transpose."""
        sizes = tuple(self.sizes[axis - 1] for axis in self.order[1:])
        back = tuple(axis - 1 for axis in invert_order(self.order)[1:])

        def change(array: Array) -> Array:
            if array.ndim < 2 or array.shape[0] == 1:  # a number, or one per column
                return array
            columns = array.shape[1:]
            return array.reshape(sizes + columns).transpose(*back, len(back)).reshape(-1, *columns)

        return change


def _find_matches(node: ir.Node, exact: set[ir.Node]) -> Iterator[_Match]:
    order, x = get_transpose_order(node), node.inputs[0] if node.inputs else None
    if order is None or order[0] != 0 or x is None or x.shape is None:
        return
    sizes = tuple(size for size in x.shape[1:] if isinstance(size, int))
    flatten = _find_only_reader(node)
    if len(sizes) + 1 != len(order) or flatten is None or not _flattens(flatten, sizes):
        return
    product = _find_only_reader(flatten)
    while product is not None and _is_pointwise(product):
        product = _find_only_reader(product)
    if product is not None and product in exact and _has_rows(product, math.prod(sizes)):
        yield _Match(node, order, sizes, flatten, product)


def _find_only_reader(node: ir.Node) -> ir.Node | None:
    """Return the only reader of the only output, if it reads it as its first input."""
    result = node.outputs[0]
    readers = list(result.uses())
    if len(node.outputs) != 1 or result.is_graph_output() or len(readers) != 1:
        return None
    reader, index = readers[0]
    return reader if index == 0 and reader.graph is node.graph else None


def _flattens(node: ir.Node, sizes: tuple[int, ...]) -> bool:
    """Return whether a node flattens each row of an array of this shape to a vector."""
    shape = node.outputs[0].shape
    if node.domain != "" or node.op_type not in ("Reshape", "Flatten") or shape is None:
        return False
    return len(shape) == 2 and shape[1] == math.prod(sizes)


def _is_pointwise(node: ir.Node) -> bool:
    """Return whether a node applies one function to every element."""
    others = [value for value in node.inputs[1:] if value is not None]
    return is_elementwise(node) and all(
        is_known(value) and value.const_value is not None and value.const_value.size == 1
        for value in others
    )


def _has_rows(node: ir.Node, count: int) -> bool:
    weight = node.inputs[1] if is_onnx_op(node, "MatMul") else None
    if weight is None or not is_known(weight) or get_rank(weight) != 2:
        return False
    return weight.shape is not None and weight.shape[0] == count
