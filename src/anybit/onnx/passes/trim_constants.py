# SPDX-License-Identifier: Apache-2.0
"""Constants with the fewest axes."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.constants import Array, is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.passes._reorder import Change, change_input, is_known
from anybit.onnx.passes.move_transposes import is_elementwise


class TrimConstants(InPlacePass):
    """Removal of leading axes of size 1 from constant operands, and merging of equal parameters.

    A constant [1, 1, 1, 8] that is added to [1, 6, 6, 8] becomes [8]. Equal scales per channel
    become one scale per tensor. Results keep their bits and shapes.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        count = 0
        for node in list(iter_nodes(model.graph)):
            if find_operator(node) is not None:
                count += _trim_parameters(node, editor)
            elif is_elementwise(node):
                count += _trim_operands(node, editor)
        return PassResult(model, bool(count))


def _trim_parameters(node: ir.Node, editor: Editor) -> int:
    operator = find_operator(node)
    if operator is None or not operator.broadcasts:
        return 0
    indices = [index for index, value in enumerate(node.inputs[1:], 1) if _is_stored(value)]
    return sum(_trim(node, index, _take_single, editor) for index in indices)


def _trim_operands(node: ir.Node, editor: Editor) -> int:
    result = node.outputs[0].shape
    ranks = [
        len(value.shape)
        for value in node.inputs
        if value is not None and value.shape is not None and not is_known(value)
    ]
    if result is None or max(ranks, default=0) < len(result):
        return 0  # the constant may determine the rank of the output
    indices = [index for index, value in enumerate(node.inputs) if is_known(value)]
    return sum(_trim(node, index, _strip_leading_ones, editor) for index in indices)


def _is_stored(value: ir.Value | None) -> bool:
    return value is not None and is_constant(value)


def _trim(node: ir.Node, index: int, change: Change, editor: Editor) -> bool:
    before = node.inputs[index]
    change_input(node, index, change, editor)
    return node.inputs[index] is not before


def _take_single(array: Array) -> Array:
    if array.ndim == 0 or array.size == 0 or not (array == array.flat[0]).all():
        return _strip_leading_ones(array)
    return array if array.shape == (1,) else array.reshape(-1)[:1]


def _strip_leading_ones(array: Array) -> Array:
    if array.ndim < 2 or array.shape[0] != 1:
        return array
    leading = next((axis for axis, size in enumerate(array.shape) if size != 1), array.ndim - 1)
    return array.reshape(array.shape[leading:])
