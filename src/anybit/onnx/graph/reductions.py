# SPDX-License-Identifier: Apache-2.0
"""Axes of reductions."""

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array


def get_reduced_axes(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """Return the reduced axes of x in increasing order; None if they are computed or invalid.

    They are an attribute or, in later versions, the second input; without either, all axes.
    """
    operand = node.inputs[1] if len(node.inputs) > 1 else None
    axes = get_attribute(node, "axes", ())
    if operand is not None:
        if not is_constant(operand) or len(array := np.ravel(read_array(operand))) > rank:
            return None
        axes = tuple(array.tolist())
    if not axes:
        return () if get_attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    if any(not isinstance(axis, int) or not -rank <= axis < rank for axis in axes):
        return None
    return tuple(sorted({axis % rank for axis in axes}))
