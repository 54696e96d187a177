# SPDX-License-Identifier: Apache-2.0
"""Instructions of quantizers with computed scales, and products of their codes.

A sum of (code - zero-point) * weight is one of codes alone: further channels hold the zero-point,
and their weights add up to the negative sum of the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.analyze.block_weights import BlockWeights
from anybit.compiler.dynamic_quantizers import ScaleFormula
from anybit.compiler.layer import CompiledLayer
from anybit.compiler.partition.accumulators import (
    accumulate_product,
    bound_sums,
    check_block_floats,
    compute_reach,
    read_bias,
)
from anybit.compiler.partition.element_functions import AddConstant
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Accumulators,
    IntegerRange,
    IntegerTensor,
    PlannedInstruction,
    RegionInput,
    RegionOutput,
)
from anybit.compiler.partition.layout import Layout
from anybit.compiler.partition.windows import SINGLE, is_padded, refuse_channels
from anybit.compiler.program import program as p
from anybit.compiler.program.encoding import pack_indices
from anybit.compiler.reason import Unsupported
from anybit.compiler.zero_weights import append_zero_weights, count_zero_weights
from anybit.onnx.analysis.products import ProductAnalysis, count_bits
from anybit.onnx.graph.constants import Array
from anybit.quant_types.layer_info import Guarantee, LayerInfo

REASON = "scales of its input are computed at run time, and float32 sums round in an open order"


@dataclass(frozen=True, eq=False)
class DynamicCodes:
    """Codes with a computed scale, as a region holds them.

    Attributes:
        tensor: The codes; channels after those of the input hold the zero-point.
        bits: The width of the quantizer; the codes that occur may need fewer bits.
        scale: The scales.
        zero: The zero-points; None for 0.
        rows: Key of the number of rows.
    """

    tensor: IntegerTensor
    bits: int
    scale: RegionInput | RegionOutput
    zero: RegionInput | RegionOutput | None
    rows: object


@dataclass(frozen=True, eq=False)
class DynamicProduct:
    """The accumulators of codes with a computed scale, and what the graph adds to them.

    Attributes:
        root: The accumulators.
        codes: The codes and their scales.
        bias: A number per channel; None without a bias.
        y: The output of the node.
        layout: Its layout.
        blocks: Its weights if they have a scale per block: those of the root are 1 then.
    """

    root: AccumulatorRoot
    codes: DynamicCodes
    bias: Array | None
    y: ir.Value
    layout: Layout
    blocks: BlockWeights | None = None


def plan_scale(
    formula: ScaleFormula, source: RegionInput | RegionOutput, target: RegionOutput
) -> PlannedInstruction:
    """Return the instruction that computes scales."""
    numbers = ("steps", "least", "most")
    constants = {name: np.array([getattr(formula, name)], np.float32) for name in numbers}
    fields = {"asymmetric": int(formula.asymmetric), **constants}
    return PlannedInstruction(p.DynamicScale, (source,), target, fields)


def plan_zero(
    codes: range,
    source: RegionInput | RegionOutput,
    scale: RegionInput | RegionOutput,
    target: RegionOutput,
) -> PlannedInstruction:
    """Return the instruction that computes zero-points."""
    fields = {"lowest": codes[0], "highest": codes[-1]}
    return PlannedInstruction(p.DynamicZero, (source, scale), target, fields)


def plan_codes(
    reads: Iterable[RegionInput | RegionOutput],
    target: IntegerTensor,
    rounds_first: bool,
    order: tuple[int, ...],
) -> PlannedInstruction:
    """Return the instruction that quantizes floats by a scale, and a zero-point if there is one."""
    fields = {"rounds_first": int(rounds_first), "channels": np.array(order, np.int32)}
    return PlannedInstruction(p.DynamicQuantize, tuple(reads), target, fields)


def count_zero_channels(products: Iterable[ProductAnalysis]) -> int:
    """Return the number of channels that zero-points need for the weights of some products.

    Raises:
        Unsupported: Too many, or the weights have groups.
    """
    most = 0
    for product in products:
        layout, codes = product.layout, product.codes
        if layout is None or codes is None:
            raise Unsupported(product.reason or "its weights are not integers with scales")
        if layout.groups > 1 and layout.kind != "MatMul":
            raise Unsupported(
                "its input has zero-points that are computed at run time, and its channels are in "
                "groups: quantize it with int8 dynamic"
            )
        weights = layout.canonical(codes.astype(np.int64))[0]
        most = max(most, count_zero_weights(weights.transpose(0, 2, 1)))
    return most


def accumulate_dynamic_product(
    product: ProductAnalysis,
    layer: LayerInfo,
    codes: DynamicCodes,
    channels: int,
    y: Layout,
    blocks: BlockWeights | None = None,
) -> DynamicProduct:
    """Return the accumulators of a product of codes with a computed scale.

    Args:
        product: The product.
        layer: Its layer, for the report.
        codes: Its activations.
        channels: The channels of these without zero-points.
        y: Layout of its output.
        blocks: Its weights if they have a scale per block.

    Raises:
        Unsupported: A window that does not fit, or sums of more than 32 bits.
    """
    if blocks is not None:
        return _accumulate_blocks(product, blocks, layer, codes, y)
    tensor = codes.tensor
    plain = replace(tensor, layout=replace(tensor.layout, channels=channels))
    assumed = replace(product, error=np.zeros(()), exact=False)
    root, before = accumulate_product(assumed, _describe(layer, codes), plain, y)
    count = tensor.layout.channels - channels
    if count:
        weights = append_zero_weights(root.weights, count)
        reach = compute_reach(tensor, weights, is_padded(root.window))
        sums = replace(root.accumulators, reach=reach)
        root = replace(root, source=tensor, weights=weights, accumulators=sums)
    else:
        root = replace(root, source=tensor)
    biases = [part.bias for part in before.parts if isinstance(part, AddConstant)]
    return DynamicProduct(root, codes, biases[0] if biases else None, product.node.outputs[0], y)


def _accumulate_blocks(
    product: ProductAnalysis,
    blocks: BlockWeights,
    layer: LayerInfo,
    codes: DynamicCodes,
    y: Layout,
) -> DynamicProduct:
    """Return the accumulators of weights with a scale per block.

    Raises:
        Unsupported: Scales that are too large or too small.
    """
    channels, depth = blocks.codes.shape
    source = codes.tensor
    if source.layout.channels != depth:
        raise refuse_channels(depth, source.layout)
    first, last = source.grid.lowest, source.grid.highest
    lowest, highest = (first, last) if codes.zero is None else (first - last, last - first)
    starts = np.arange(0, depth, blocks.block)
    spans, sizes = [], []
    for start in starts:
        part = blocks.codes[:, start : start + blocks.block]
        sums = bound_sums(part, lowest, highest, padded=False)
        spans.append((int(sums.lowest.min()), int(sums.highest.max())))
        sizes.append(np.abs(part).sum(axis=1))
    check_block_floats(blocks.scales, np.stack(sizes, axis=1), max(abs(lowest), abs(highest)))
    span = min(low for low, _ in spans), max(high for _, high in spans)
    bits, ends = blocks.bits, (int(blocks.codes.min()), int(blocks.codes.max()))
    info = replace(
        layer,
        accumulator=span,
        accumulator_bits=count_bits(*span),
        weight_bits=bits,
        weight_codes=ends,
        parameters=blocks.codes.size,
        sparsity=float(1 - np.count_nonzero(blocks.codes) / blocks.codes.size),
    )
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels)
    root = AccumulatorRoot(
        node=product.node,
        source=source,
        window=SINGLE,
        groups=1,
        weights=blocks.codes.reshape(channels, 1, 1, depth),
        accumulators=Accumulators(ones, IntegerRange(zeros, zeros), zeros),
        layer=_describe(info, codes),
    )
    bias = read_bias(product, channels)
    return DynamicProduct(root, codes, bias, product.node.outputs[0], y, blocks)


def plan_block_product(
    product: DynamicProduct, target: RegionOutput, layer: CompiledLayer
) -> PlannedInstruction:
    """Return the instruction that adds up the scaled accumulators of blocks."""
    blocks, codes = product.blocks, product.codes
    assert blocks is not None, "it has blocks"
    bits, zeros = blocks.bits, blocks.zero_points
    fields = {
        "block": blocks.block,
        "weight_bits": bits,
        "weights": pack_indices(blocks.indices.ravel().astype(np.uint8), bits),
        "scales": blocks.scales.astype(np.float32),
    }
    reads = [codes.tensor, *([] if codes.zero is None else [codes.zero])]
    if zeros is None:
        fields["lowest"] = int(blocks.codes.min())
        return PlannedInstruction(p.BlockProduct, tuple(reads), target, fields, layer)
    fields["zero_points"] = pack_indices(zeros.ravel().astype(np.uint8), bits)
    return PlannedInstruction(p.AsymmetricBlockProduct, tuple(reads), target, fields, layer)


def _describe(layer: LayerInfo, codes: DynamicCodes) -> LayerInfo:
    """Return a layer as one of codes with a computed scale."""
    grid = codes.tensor.grid
    return replace(
        layer,
        guarantee=Guarantee.BOUNDED,
        reason=REASON,
        input_bits=codes.bits,
        input_codes=(grid.lowest, grid.highest),
        dynamic=True,
    )
