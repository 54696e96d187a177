# SPDX-License-Identifier: Apache-2.0
"""Sizes that shape inference leaves open, and that products determine.

The channels after a Reshape to (rows, tokens, -1) have no known size, as after the heads of
attention. Where a matrix of K rows multiplies them, there are K of them, or the product fails.
"""

import onnx_ir as ir

from anybit.compiler.operators import is_matrix_product
from anybit.onnx.graph.shapes import (
    get_inferred_shape,
    get_named_sizes,
    get_sizes,
    iter_declarable,
    record_shape,
)


def infer_channels(model: ir.Model) -> None:
    """Replace names of sizes by the numbers of rows of the matrices that multiply them."""
    sizes: dict[str, int] = {}
    for node in model.graph:
        if is_matrix_product(node):
            sizes.update(_find_channels(node, model))
    if not sizes:
        return
    for value in iter_declarable(model):
        inferred = get_inferred_shape(value)
        if inferred is None or value.shape is None:
            continue
        numbers = [sizes.get(str(size), size) for size in get_sizes(inferred)]
        if numbers != list(get_sizes(inferred)):
            declared = [
                number if isinstance(number, int) else size
                for number, size in zip(numbers, value.shape, strict=True)
            ]
            record_shape(value, ir.Shape(numbers))
            value.shape = ir.Shape(declared)


def _find_channels(product: ir.Node, model: ir.Model) -> dict[str, int]:
    """Return the number of channels by its name; empty if it has none, or if both are known."""
    x, matrix = product.inputs[:2]
    channels = x and get_named_sizes(x, model)
    rows = matrix and get_named_sizes(matrix, model)
    if not channels or not rows or len(rows) != 2:
        return {}
    name, number = channels[-1], rows[0]
    return {name: number} if isinstance(name, str) and isinstance(number, int) else {}
