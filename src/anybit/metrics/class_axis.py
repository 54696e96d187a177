# SPDX-License-Identifier: Apache-2.0
"""What a graph says of classes: along which axis the largest element is the answer.

An axis has classes where Softmax, LogSoftmax or Hardmax gives the tensor, or where one of these,
ArgMax or TopK reads it. Rows of a Gemm or MatMul may be the scores of a classifier.
"""

import onnx_ir as ir

from anybit.metrics.regions import TensorRegion, get_rank
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.op_traits import OpTrait, has_trait

# The largest vocabularies have as many words.
_MOST = 2**18
_BOX = 4
# What may stand between a product and an output that are still the same scores.
_TRANSPARENT = ("Add", "Cast", "Dropout", "Identity", "Reshape", "Squeeze", "Flatten")
_MOST_STEPS = 8


def find_class_region(value: ir.Value, opset: int) -> TensorRegion:
    """Return what the node that gives a value says of its classes."""
    node = value.producer()
    if node is not None and not node.domain and has_trait(node, OpTrait.SOFTMAX):
        axis = _normalized(node, get_rank(value), opset)
        return TensorRegion() if axis is None else TensorRegion({}, axis, "distribution")
    if _has_rows_of_scores(value) and _is_product(value):
        return TensorRegion({}, len(value.shape or ()) - 1, "logits")
    return TensorRegion()


def find_class_axis(node: ir.Node, rank: int | None, opset: int) -> int | None:
    """Return the axis of classes of what a node reads; None where it shows none."""
    if has_trait(node, OpTrait.SOFTMAX):
        return _normalized(node, rank, opset)
    default = {"ArgMax": 0, "TopK": -1}.get(node.op_type)
    if default is None:
        return None
    return _non_negative(attribute_of(node, "axis", default), rank)


def _normalized(node: ir.Node, rank: int | None, opset: int) -> int | None:
    """Return the axis of a Softmax. Before opset 13 it takes all axes from that one on as one."""
    axis = _non_negative(attribute_of(node, "axis", 1 if opset < 13 else -1), rank)
    if axis is None or rank is None:
        return None
    return axis if opset >= 13 or axis == rank - 1 else None


def _non_negative(axis: int, rank: int | None) -> int | None:
    if rank is None or not -rank <= axis < rank:
        return None
    return axis % rank


def _has_rows_of_scores(value: ir.Value) -> bool:
    """Return whether the size of the last axis may be one of classes, not of features or boxes."""
    sizes = () if value.shape is None else tuple(value.shape)
    last = sizes[-1] if len(sizes) in (2, 3) else None
    if not isinstance(last, int) or not 2 <= last <= _MOST:
        return False
    features = len(sizes) == 3 and isinstance(sizes[1], int) and sizes[1] < last
    return not (len(sizes) == 3 and last == _BOX) and not features


def _is_product(value: ir.Value) -> bool:
    """Return whether a Gemm or MatMul gives a value, perhaps with a bias added behind it."""
    for _ in range(_MOST_STEPS):
        node = value.producer()
        if node is None or node.domain:
            return False
        if has_trait(node, OpTrait.DENSE):
            return True
        data = [each for each in node.inputs[:2] if each is not None and each.producer()]
        if node.op_type not in _TRANSPARENT or not data:
            return False
        value = data[0]
    return False
