# SPDX-License-Identifier: Apache-2.0
"""Number of multiplications of a sum of products, from proven sizes."""

import math
from collections.abc import Sequence

import onnx_ir as ir

from anybit.onnx.analysis.layouts import Layout
from anybit.onnx.analysis.view import View, input_of


def multiplications(node: ir.Node, layout: Layout | None, view: View) -> int | None:
    """Return the multiplications per inference, with a batch size of 1; None if unknown.

    Multiplications with padding zeros count, as is usual.
    """
    weight = view.sizes(input_of(node, 1))
    y = _sizes(view.sizes(node.outputs[0]))
    x = _sizes(view.sizes(input_of(node, 0)))
    if weight is None or None in weight:
        weight = None
    if layout is None or y is None or x is None:
        return None
    match node.op_type:
        case "Conv" if weight is not None:
            return math.prod(y) * math.prod(size or 0 for size in weight[1:])
        case "ConvTranspose" if weight is not None:
            return math.prod(x) * math.prod(size or 0 for size in weight[1:])
        case "MatMul":
            return math.prod(y) * x[-1] if x else None
        case "Gemm" if len(x) == 2:
            return math.prod(y) * x[layout.x_axis]
    return None


def _sizes(sizes: Sequence[int | None] | None) -> list[int] | None:
    """Return all sizes, with 1 for a free batch; None if another one is free."""
    if sizes is None or None in sizes[1:]:
        return None
    return [1 if size is None else size for size in sizes]
