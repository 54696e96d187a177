# SPDX-License-Identifier: Apache-2.0
"""Detection of long vectors in shape inference.

ONNX evaluates integers that are computed from shapes one by one. A chain of Concats that each
double the vector is a file of 2 KB and exhausts any memory.
"""

import math
from collections.abc import Sequence

import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.walk import iter_nodes

# Shapes have few sizes; vectors computed from shapes, a few more.
_LONGEST = 2**12
_MOST_AXES = 64


def propagates_little(model: ir.Model) -> bool:
    """Return whether shape inference evaluates no long vector of integers."""
    lengths: dict[ir.Value, float] = {}
    for node in iter_nodes(model.graph):
        length = _count_outputs(node, [_count_followed(value, lengths) for value in node.inputs])
        if length is None:
            continue
        if length > _LONGEST and node.op_type in ("Concat", "Gather"):
            return False
        lengths.update(dict.fromkeys(node.outputs, length))
    return True


def _count_followed(value: ir.Value | None, lengths: dict[ir.Value, float]) -> float | None:
    """Return the maximal number of integers followed in a value; None if it is not followed."""
    if value is None:
        return 0
    if value.const_value is not None:  # of any type, but only vectors
        return value.const_value.size if len(value.const_value.shape) <= 1 else None
    return lengths.get(value)


def _count_outputs(node: ir.Node, inputs: Sequence[float | None]) -> float | None:
    if node.domain != "":
        return None
    match node.op_type:
        case "Shape" | "Size" | "Constant":
            return _MOST_AXES
        case "ConstantOfShape":
            return _count_filled(node.inputs[0] if node.inputs else None)
        case "Expand" | "Tile" | "Range":
            return math.inf
        case "Concat":
            return None if None in inputs else sum(length or 0 for length in inputs)
        case "Gather":
            return None if None in inputs[:2] or len(inputs) < 2 else inputs[1]
    if not inputs or inputs[0] is None:
        return None
    if not has_trait(node, OpTrait.DATA_MOVEMENT | OpTrait.ELEMENTWISE):
        return None
    return max(length or 0 for length in inputs)


def _count_filled(shape: ir.Value | None) -> float:
    if shape is None or not is_constant(shape) or read_array(shape).size > _MOST_AXES:
        return math.inf
    return math.prod(float(size) for size in read_array(shape).ravel())
