# SPDX-License-Identifier: Apache-2.0
"""Class axes of outputs: the axes along which the arg max is the prediction.

An axis has classes if Softmax, LogSoftmax or Hardmax computes the tensor along it, or if one of
these, ArgMax or TopK reads the tensor. Rows of a Gemm or MatMul may be the scores of a classifier.
"""

import onnx_ir as ir

from anybit.metrics.regions import TensorRegion, get_rank
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.op_traits import OpTrait, has_trait

_MAX_CLASSES = 2**18
"""The size of the largest vocabularies."""
_BOX_SIZE = 4
_TRANSPARENT_OPS = ("Add", "Cast", "Dropout", "Identity", "Reshape", "Squeeze", "Flatten")
"""Operators after a Gemm or MatMul that leave its rows the scores of classes."""
_MAX_STEPS = 8


def find_class_region(value: ir.Value, opset: int) -> TensorRegion:
    """Return the class axis of a value, as its producer shows it, as a region without bounds."""
    node = value.producer()
    if node is not None and not node.domain and has_trait(node, OpTrait.SOFTMAX):
        axis = _get_softmax_axis(node, get_rank(value), opset)
        return TensorRegion() if axis is None else TensorRegion({}, axis, "distribution")
    if _may_have_scores(value) and _is_product(value):
        return TensorRegion({}, len(value.shape or ()) - 1, "logits")
    return TensorRegion()


def find_class_axis(node: ir.Node, rank: int | None, opset: int) -> int | None:
    """Return the class axis that a node implies for its input; None without one."""
    if has_trait(node, OpTrait.SOFTMAX):
        return _get_softmax_axis(node, rank, opset)
    default = {"ArgMax": 0, "TopK": -1}.get(node.op_type)
    if default is None:
        return None
    return _normalize_axis(get_attribute(node, "axis", default), rank)


def _get_softmax_axis(node: ir.Node, rank: int | None, opset: int) -> int | None:
    """Return the axis of a Softmax; None before opset 13 if it flattens several axes."""
    axis = _normalize_axis(get_attribute(node, "axis", 1 if opset < 13 else -1), rank)
    if axis is None or rank is None:
        return None
    return axis if opset >= 13 or axis == rank - 1 else None


def _normalize_axis(axis: int, rank: int | None) -> int | None:
    if rank is None or not -rank <= axis < rank:
        return None
    return axis % rank


def _may_have_scores(value: ir.Value) -> bool:
    """Return whether the last axis may hold classes, rather than features or box coordinates."""
    sizes = () if value.shape is None else tuple(value.shape)
    last = sizes[-1] if len(sizes) in (2, 3) else None
    if not isinstance(last, int) or not 2 <= last <= _MAX_CLASSES:
        return False
    features = len(sizes) == 3 and isinstance(sizes[1], int) and sizes[1] < last
    return not (len(sizes) == 3 and last == _BOX_SIZE) and not features


def _is_product(value: ir.Value) -> bool:
    """Return whether a value is the output of a Gemm or MatMul, possibly after adding a bias."""
    for _ in range(_MAX_STEPS):
        node = value.producer()
        if node is None or node.domain:
            return False
        if has_trait(node, OpTrait.DENSE):
            return True
        computed = [x for x in node.inputs[:2] if x is not None and x.producer()]
        if node.op_type not in _TRANSPARENT_OPS or not computed:
            return False
        value = computed[0]
    return False
