# SPDX-License-Identifier: Apache-2.0
"""Legalization: sums without an integer kernel, and the reasons."""

from collections.abc import Mapping

import onnx_ir as ir

from anybit.compiler.analyze.analysis import AnalyzedModel
from anybit.compiler.analyze.block_weights import BlockWeights
from anybit.compiler.operators import find_kept_axis, has_two_operands
from anybit.compiler.reason import Reason
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.graph.constants import Array, find_unfolded_node, is_constant
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.require import require_input
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import get_dtype, is_dequantize, read_scaling

_WEIGHTS = range(-128, 128)
_LEAST_BLOCK, _MOST_BITS = 8, 8
_LARGEST_INDEX = 2**_MOST_BITS - 1


def legalize(analyzed: AnalyzedModel) -> Mapping[ir.Node, Reason]:
    """Return the reason for each product and mean that has to stay float32."""
    reasons: dict[ir.Node, Reason] = {}
    for product in analyzed.analysis.products:
        reason = _check_product(product, analyzed)
        if reason is not None:
            reasons[product.node] = reason
    products = {product.node for product in analyzed.analysis.products}
    for node in analyzed.model.graph:
        if is_mean(node) and node not in products and not _reduces_space(node, analyzed):
            reasons[node] = Reason("it is not a mean over height and width, or over channels")
    return reasons


def is_mean(node: ir.Node) -> bool:
    """Return whether a node adds up elements without weights."""
    return has_trait(node, OpTrait.SUM)


def _check_product(product: ProductAnalysis, analyzed: AnalyzedModel) -> Reason | None:
    """Return why no kernel computes a product; None if one does."""
    if product.codes is None and (unread := _check_folding(product.node)) is not None:
        return unread
    if has_two_operands(product.node):
        return None
    blocks = analyzed.block_weights.get(product.node)
    if blocks is not None and product.x is not None and product.x.codes is not None:
        return Reason(
            "its weights have a scale per block, which kernels multiply only with scales that are "
            "computed at run time: quantize activations with 'int8 dynamic', or weights per channel"
        )
    if product.layout is not None and product.sum is None and product.x is not None:
        has_weights = is_constant(require_input(product.node, product.layout.weight))
        return Reason(product.reason + "; kernels multiply with constants" * (not has_weights))
    sizes = analyzed.shapes.sizes(require_input(product.node))
    if isinstance(sizes, Reason):
        return sizes
    rank = len(sizes) + 1
    return check_weights(product, rank) if blocks is None else _check_blocks(product, blocks, rank)


def _check_folding(node: ir.Node) -> Reason | None:
    """Return why constant factors of a product are computed by nodes; None if none are."""
    for value in node.inputs[:2]:
        unfolded = None if value is None else find_unfolded_node(value)
        if unfolded is None:
            continue
        if not is_dequantize(unfolded):
            return Reason(f"{describe(unfolded)} computes its weights, and is not folded")
        try:
            read_scaling(unfolded, get_dtype(require_input(unfolded)), blocks=True)
        except Inexpressible as error:
            return Reason(
                f"{describe(unfolded)} of its weights has no integer form: {error}; quantize them "
                "again, for example per channel"
            )
    return None


def _check_blocks(product: ProductAnalysis, blocks: BlockWeights, rank: int) -> Reason | None:
    """Return why weights with a scale per block do not fit a kernel; None if they do."""
    if blocks.block < _LEAST_BLOCK:
        return Reason(
            f"its weights have blocks of {blocks.block} with one scale: "
            f"quantize them per block of at least {_LEAST_BLOCK}"
        )
    return _check_axis(product, rank) or _check_range(
        blocks.codes, range(-_LARGEST_INDEX, _LARGEST_INDEX + 1), blocks.bits
    )


def check_weights(product: ProductAnalysis, rank: int) -> Reason | None:
    """Return why the weights of a product do not fit a kernel; None if they do.

    Args:
        product: The product.
        rank: Rank of its activations.
    """
    node, layout = product.node, product.layout
    if layout is None:
        return Reason(product.reason)
    if product.codes is None or product.scale is None:
        return Reason(
            "its weights are not integers with one scale per channel: quantize them per channel"
        )
    if layout.x != 0 or layout.weight != 1 or product.codes.ndim < 2:
        return Reason("its weights are not its second input")
    if node.op_type == "MatMul" and product.codes.ndim != 2:
        return _check_axis(product, rank) or Reason("its weights are a batch of matrices")
    return _check_axis(product, rank) or _check_range(product.codes, _WEIGHTS)


def _check_axis(product: ProductAnalysis, rank: int) -> Reason | None:
    node, layout = product.node, product.layout
    axis = 0 if layout is None else layout.x_axis % rank
    if axis != (1 if has_trait(node, OpTrait.CONVOLUTION) else rank - 1) or axis == 0:
        return Reason("it sums over another axis than the channels")
    return None


def _check_range(codes: Array, weights: range, bits: int = _MOST_BITS) -> Reason | None:
    lowest, highest = codes.min(initial=0), codes.max(initial=0)
    if lowest not in weights or highest not in weights or bits > _MOST_BITS:
        return Reason(
            f"its weights go from {lowest:g} to {highest:g}: quantize them to integers of 8 bits"
        )
    return None


def _reduces_space(node: ir.Node, analyzed: AnalyzedModel) -> bool:
    """Return whether a mean is one over axes that can be height and width."""
    x = node.inputs[0]
    if x is None:
        return False
    sizes = analyzed.shapes.sizes(x)
    if not node.op_type.startswith("Reduce"):
        return True
    return not isinstance(sizes, Reason) and find_kept_axis(node, len(sizes) + 1) is not None
