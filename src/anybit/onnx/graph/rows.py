# SPDX-License-Identifier: Apache-2.0
"""Independence of the rows of a batch: operators that mix elements along an axis."""

from collections.abc import Callable

import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.op_traits import OpTrait, has_trait, operators_with
from anybit.onnx.graph.reductions import reduced_axes

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
        return _sums_over(node, size)
    at, rank = _place(node.inputs[0] if node.inputs else None, size)
    rule = _RULES.get(node.op_type)
    return at is not None and rule is not None and rule(node, at, rank, opset)


def _place(value: ir.Value | None, size: ir.SymbolicDim) -> tuple[int | None, int]:
    if value is None or value.shape is None:
        return None, 0
    sizes = list(value.shape)
    return (sizes.index(size) if size in sizes else None), len(sizes)


def _sums_over(node: ir.Node, size: ir.SymbolicDim) -> bool:
    places = [_place(value, size) for value in node.inputs[:2]]
    summed = [-1, -2]
    if node.op_type == "Gemm":
        summed = [0 if attribute_of(node, "transA", 0) else 1]
        summed += [1 if attribute_of(node, "transB", 0) else 0]
    return any(
        at is not None and at == (axis if axis >= 0 else max(axis + rank, 0))
        for (at, rank), axis in zip(places, summed, strict=False)
    )


def _not_first(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    return at != 0


def _mixes_along(default: int) -> Callable[[ir.Node, int, int, int], bool]:
    def rule(node: ir.Node, at: int, rank: int, opset: int) -> bool:
        return at == attribute_of(node, "axis", default) % rank

    return rule


def _softmax(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    axis = attribute_of(node, "axis", -1 if opset >= _SOFTMAX_OPSET else 1) % rank
    return at == axis if opset >= _SOFTMAX_OPSET else at >= axis


def _from(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    return at >= attribute_of(node, "axis", -1) % rank


def _reduced(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    axes = reduced_axes(node, rank)
    return axes is None or at in axes


def _scanned(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    axis = node.inputs[1] if len(node.inputs) > 1 else None
    if axis is None or not is_constant(axis):
        return True
    return at == int(array_of(axis).ravel()[0]) % rank


def _recurrent(node: ir.Node, at: int, rank: int, opset: int) -> bool:
    return at != (0 if attribute_of(node, "layout", 0) else 1)


_RULES: dict[str, Callable[[ir.Node, int, int, int], bool]] = {
    **dict.fromkeys(operators_with(OpTrait.BATCHED), _not_first),
    **dict.fromkeys(operators_with(OpTrait.REDUCES_AXES), _reduced),
    **dict.fromkeys(operators_with(OpTrait.SOFTMAX), _softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _from),
    **dict.fromkeys(operators_with(OpTrait.RECURRENT), _recurrent),
    **dict.fromkeys(("Concat", "ArgMax", "ArgMin", "Gather"), _mixes_along(0)),
    **dict.fromkeys(("LpNormalization", "TopK"), _mixes_along(-1)),
    "CumSum": _scanned,
}
