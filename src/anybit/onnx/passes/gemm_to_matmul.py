# SPDX-License-Identifier: Apache-2.0
"""Replacement of Gemm by MatMul and Add."""

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import are_powers_of_two
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_input, require_producer
from anybit.onnx.passes._reorder import (
    change_value,
    drop_unread,
    is_known,
    make_permutation,
    take_names,
)

_TRANSPOSED = ("transA", "transB")


class GemmToMatMul(InPlacePass):
    """Replacement of Gemm, unless a factor `alpha` or `beta` is not a power of two.

    A transposed constant is stored transposed, with its quantizer; other operands get a Transpose.
    ONNX Runtime's Gemm starts from C for more than 256 products, while Add comes last: sums that
    round may differ in the last bit. Sums of quantized values that float32 holds (see
    `anybit.check`) do not round.
    """

    def __init__(self, nodes: Collection[ir.Node] | None = None) -> None:
        """Store the nodes to replace; all by default."""
        super().__init__()
        self._nodes = nodes

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        nodes = [
            node
            for node in (model.graph.all_nodes() if self._nodes is None else self._nodes)
            if is_onnx_op(node, "Gemm") and _can_be_split(node)
        ]
        for node in nodes:
            _split(node, editor)
        return PassResult(model, bool(nodes))


def _can_be_split(node: ir.Node) -> bool:
    factors = np.abs([_get_factor(node, "alpha"), _get_factor(node, "beta")])
    return bool(are_powers_of_two(factors).all()) and None not in node.inputs[:2]


def _get_factor(node: ir.Node, name: str) -> float:
    return get_attribute(node, name, 1.0)


def _split(node: ir.Node, editor: Editor) -> None:
    result = node.outputs[0]
    name, dtype = node.name or node.op_type, result.dtype or ir.DataType.FLOAT
    old = list(node.inputs[:2])
    a, b = new = [_make_factor(node, index, editor) for index in range(2)]
    y = editor.insert(node, "MatMul", [a, b], name, like=result, dtype=dtype)
    product = require_producer(y)
    y = _multiply(y, _get_factor(node, "alpha"), node, editor)
    c = node.inputs[2] if len(node.inputs) > 2 else None
    if c is not None:
        c = _multiply(c, _get_factor(node, "beta"), node, editor)
        y = editor.insert(node, "Add", [y, c], f"{name}_bias", like=result, dtype=dtype)
    editor.replace(node, y)
    product.name = node.name
    for value, before in zip(new, old, strict=True):
        if value is not before and before is not None and is_known(before):
            drop_unread(before)
            take_names(value, before)


def _make_factor(node: ir.Node, index: int, editor: Editor) -> ir.Value:
    x = require_input(node, index)
    if not get_attribute(node, _TRANSPOSED[index], 0):
        return x
    if is_known(x):
        return change_value(x, make_permutation((1, 0)), editor, node)
    dtype = x.dtype or ir.DataType.FLOAT
    order = ir.AttrInt64s("perm", (1, 0))
    name = f"{node.name or node.op_type}_transposed"
    y = editor.insert(node, "Transpose", [x], name, like=x, dtype=dtype, attributes=[order])
    y.shape = None if x.shape is None else ir.Shape(list(reversed(list(x.shape))))
    return y


def _multiply(x: ir.Value, factor: float, node: ir.Node, editor: Editor) -> ir.Value:
    if factor == 1:
        return x
    dtype = x.dtype or ir.DataType.FLOAT
    name = node.name or node.op_type
    by = editor.share_parameter(name, "factor", np.asarray(factor), dtype)
    return editor.insert(node, "Mul", [x, by], f"{name}_scaled", like=x, dtype=dtype)
