# SPDX-License-Identifier: Apache-2.0
"""Sizes that shape inference leaves open, and that products determine.

The channels after a Reshape to (rows, tokens, -1) have no known size, as after the heads of
attention. Where a matrix of K rows multiplies them, there are K of them, or the product fails.
"""

import onnx_ir as ir

from anybit.compiler.operators import is_matrix_product
from anybit.onnx.graph.shapes import get_named_sizes, rename_sizes


def infer_channels(model: ir.Model) -> None:
    """Replace names of sizes by the numbers of rows of the matrices that multiply them."""
    sizes: dict[str, int] = {}
    for node in model.graph:
        if is_matrix_product(node):
            sizes.update(_find_channels(node, model))
    rename_sizes(model, sizes)


def _find_channels(product: ir.Node, model: ir.Model) -> dict[str, int]:
    """Return the number of channels by its name; empty if it has none, or if both are known."""
    x, matrix = product.inputs[:2]
    channels = x and get_named_sizes(x, model)
    rows = matrix and get_named_sizes(matrix, model)
    if not channels or not rows or len(rows) != 2:
        return {}
    name, number = channels[-1], rows[0]
    return {name: number} if isinstance(name, str) and isinstance(number, int) else {}
