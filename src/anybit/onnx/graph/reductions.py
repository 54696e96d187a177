# SPDX-License-Identifier: Apache-2.0
"""Which axes a reduction goes over."""

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import array_of, is_constant


def reduced_axes(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """The axes of x, from the front, in order; None where they are computed or not among them.

    They are an attribute or, in later versions, the second input; without any all are meant.
    """
    given = node.inputs[1] if len(node.inputs) > 1 else None
    named = attribute_of(node, "axes", ())
    if given is not None:
        if not is_constant(given) or len(array := np.ravel(array_of(given))) > rank:
            return None
        named = tuple(array.tolist())
    if not named:
        return () if attribute_of(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    if any(not isinstance(axis, int) or not -rank <= axis < rank for axis in named):
        return None
    return tuple(sorted({axis % rank for axis in named}))
