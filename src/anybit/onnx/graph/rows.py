# SPDX-License-Identifier: Apache-2.0
"""Independence of the rows of a batch: operators that mix elements along an axis."""

from collections.abc import Callable

import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import OpTrait, has_trait, list_operators
from anybit.onnx.graph.reductions import get_reduced_axes

# Before this version, Softmax flattens the axes from its axis on.
_SOFTMAX_OPSET = 13


def mixes_rows(node: ir.Node, size: ir.SymbolicDim, opset: int) -> bool:
    """Return whether the node is known to compute one row from several rows.

    Rows lie along the axis of size `size`, which no other axis has. Unknown operators are assumed
    to treat rows independently; the shape of the output tells whether it still has that many rows.

    Raises:
        ModelError: An attribute has another type than it must have.
    """
    if node.domain != "":
        return False
    if has_trait(node, OpTrait.DENSE):
        return _mixes_in_product(node, size)
    at, rank = _find_axis(node.inputs[0] if node.inputs else None, size)
    rule = _RULES.get(node.op_type)
    return at is not None and rule is not None and rule(node, at, rank, opset)


def _find_axis(value: ir.Value | None, size: ir.SymbolicDim) -> tuple[int | None, int]:
    if value is None or value.shape is None:
        return None, 0
    sizes = list(value.shape)
    return (sizes.index(size) if size in sizes else None), len(sizes)


def _mixes_in_product(node: ir.Node, size: ir.SymbolicDim) -> bool:
    places = [_find_axis(value, size) for value in node.inputs[:2]]
    summed = [-1, -2]
    if node.op_type == "Gemm":
        summed = [0 if get_attribute(node, "transA", 0) else 1]
        summed += [1 if get_attribute(node, "transB", 0) else 0]
    return any(
        at is not None and at == (axis if axis >= 0 else max(axis + rank, 0))
        for (at, rank), axis in zip(places, summed, strict=False)
    )


def _mixes_beyond_first(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    return at != 0


def _make_axis_rule(default: int) -> Callable[[ir.Node, int, int, int], bool]:
    def rule(node: ir.Node, at: int, rank: int, opset: int) -> bool:
        return at == get_attribute(node, "axis", default) % rank

    return rule


def _mixes_in_softmax(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    axis = get_attribute(node, "axis", -1 if opset >= _SOFTMAX_OPSET else 1) % rank
    return at == axis if opset >= _SOFTMAX_OPSET else at >= axis


def _mixes_from_axis(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    return at >= get_attribute(node, "axis", -1) % rank


def _mixes_in_reduction(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    axes = get_reduced_axes(node, rank)
    return axes is None or at in axes


def _mixes_in_scan(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    axis = node.inputs[1] if len(node.inputs) > 1 else None
    if axis is None or not is_constant(axis):
        return True
    return at == int(read_array(axis).ravel()[0]) % rank


def _mixes_in_recurrence(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    return at != (0 if get_attribute(node, "layout", 0) else 1)


_RULES: dict[str, Callable[[ir.Node, int, int, int], bool]] = {
    **dict.fromkeys(list_operators(OpTrait.BATCHED), _mixes_beyond_first),
    **dict.fromkeys(list_operators(OpTrait.REDUCES_AXES), _mixes_in_reduction),
    **dict.fromkeys(list_operators(OpTrait.SOFTMAX), _mixes_in_softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _mixes_from_axis),
    **dict.fromkeys(list_operators(OpTrait.RECURRENT), _mixes_in_recurrence),
    **dict.fromkeys(("Concat", "ArgMax", "ArgMin", "Gather"), _make_axis_rule(0)),
    **dict.fromkeys(("LpNormalization", "TopK"), _make_axis_rule(-1)),
    "CumSum": _mixes_in_scan,
}
