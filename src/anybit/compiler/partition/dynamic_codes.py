# SPDX-License-Identifier: Apache-2.0
"""Instructions of quantizers with computed scales, and products of their codes.

A sum of (code - zero-point) * weight is one of codes alone: further channels hold the zero-point,
and their weights add up to the negative sum of the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.dynamic_quantizers import ScaleFormula
from anybit.compiler.partition.accumulators import accumulate_product, compute_reach
from anybit.compiler.partition.element_functions import AddConstant
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    IntegerTensor,
    PlannedInstruction,
    RegionInput,
    RegionOutput,
)
from anybit.compiler.partition.layout import Layout
from anybit.compiler.partition.windows import is_padded
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.compiler.zero_weights import append_zero_weights, count_zero_weights
from anybit.onnx.analysis.products import ProductAnalysis
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
        rows: Key of the number of rows.
    """

    tensor: IntegerTensor
    bits: int
    scale: RegionInput | RegionOutput
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
    """

    root: AccumulatorRoot
    codes: DynamicCodes
    bias: Array | None
    y: ir.Value
    layout: Layout


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
    product: ProductAnalysis, layer: LayerInfo, codes: DynamicCodes, channels: int, y: Layout
) -> DynamicProduct:
    """Return the accumulators of a product of codes with a computed scale.

    Args:
        product: The product.
        layer: Its layer, for the report.
        codes: Its activations.
        channels: The channels of these without zero-points.
        y: Layout of its output.

    Raises:
        Unsupported: A window that does not fit, or sums of more than 32 bits.
    """
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


def _describe(layer: LayerInfo, codes: DynamicCodes) -> LayerInfo:
    """Return a layer as one of codes with a computed scale."""
    grid = codes.tensor.grid
    return replace(
        layer,
        guarantee=Guarantee.BOUNDED,
        reason=REASON,
        input_bits=codes.bits,
        bops=None if layer.macs is None else layer.macs * codes.bits * layer.weight_bits,
        input_codes=(grid.lowest, grid.highest),
        dynamic=True,
    )
