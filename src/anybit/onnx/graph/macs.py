# SPDX-License-Identifier: Apache-2.0
"""Multiply-accumulate operations (MACs) of MatMul-like operators."""

from collections.abc import Sequence

import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute


def count_macs(
    node: ir.Node,
    x: Sequence[int | None] | None,
    weight: Sequence[int | None] | None,
    y: Sequence[int | None] | None,
) -> int | None:
    """Return the multiplications of a node per inference; None if sizes are unknown.

    Multiplications with padding zeros count, as is usual. Operators with other names than those of
    ONNX (`QLinearConv`, `QGemm`) are counted alike.

    Args:
        node: A convolution or a matrix product.
        x: Sizes of the activations. The first is a batch size, 1 if it is dynamic.
        weight: Sizes of the second factor.
        y: Sizes of the output, with a batch size like x.
    """
    if "Conv" in node.op_type:
        moved = _count_elements(x if node.op_type == "ConvTranspose" else y)
        kernel = None if weight is None else _count_elements(weight[1:], batch=None)
        return None if moved is None or kernel is None else moved * kernel
    outputs, reduced = _count_elements(y), _get_reduced_size(node, x, weight)
    if outputs is not None and reduced is not None:
        return outputs * reduced
    inputs = _count_elements(x)
    if inputs is None or weight is None or len(weight) != 2:
        return None
    columns = weight[0 if get_attribute(node, "transB", 0) else 1]
    return None if columns is None else inputs * columns


def _get_reduced_size(
    node: ir.Node, x: Sequence[int | None] | None, weight: Sequence[int | None] | None
) -> int | None:
    """Return the size of the axis along which a matrix product adds."""
    if weight:
        is_transposed = len(weight) == 1 or get_attribute(node, "transB", 0)
        size = weight[-1 if is_transposed else -2]
        if size is not None:
            return size
    return x[0 if get_attribute(node, "transA", 0) else -1] if x else None


def _count_elements(sizes: Sequence[int | None] | None, batch: int | None = 1) -> int | None:
    """Return the product of sizes, with a number for a dynamic batch size; None if unknown."""
    if sizes is None:
        return None
    product = 1
    for axis, size in enumerate(sizes):
        count = batch if size is None and axis == 0 else size
        if count is None:
            return None
        product *= count
    return product
