# SPDX-License-Identifier: Apache-2.0
"""Accumulators of products with integer weights, and of means, which have weights of 1."""

import math

import numpy as np
import onnx_ir as ir

from anybit.compiler.partition.element_functions import (
    AddConstant,
    ElementFunction,
    Mean,
    NodeChain,
)
from anybit.compiler.partition.expressions import (
    AccumulatorRoot,
    Accumulators,
    IntegerRange,
    IntegerTensor,
)
from anybit.compiler.partition.layout import Layout
from anybit.compiler.partition.transposed_convolutions import Convolution
from anybit.compiler.partition.windows import (
    SINGLE,
    derive_reduced_window,
    derive_window,
    is_padded,
    refuse_channels,
    refuse_shape,
)
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.analysis.products import ProductAnalysis, count_bits
from anybit.onnx.analysis.sums import bound_error
from anybit.onnx.analysis.units import EXACT
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.require import require_input
from anybit.quant_types.layer_info import Guarantee, LayerInfo
from anybit.text import format_count

_LARGEST_SUM = 2**31 - 1
_MOST_AVERAGED = 2**20
_MOST_WEIGHTS = 2**22
_LARGEST_FLOAT = 2.0**127
_SMALLEST_FLOAT = 2.0**-126


def accumulate_product(
    product: ProductAnalysis,
    layer: LayerInfo,
    source: IntegerTensor,
    y: Layout,
    transposed: Convolution | None = None,
) -> tuple[AccumulatorRoot, ElementFunction]:
    """Return the accumulators of a product, and the addition of its bias.

    Args:
        product: The product.
        layer: Its layer, for the report.
        source: Its activations.
        y: Layout of its output.
        transposed: The convolution that computes a ConvTranspose; None for other products.

    Raises:
        Unsupported: A window that does not fit, or sums of more than 32 bits.
    """
    layout, codes, scale = product.layout, product.codes, product.scale
    if layout is None or codes is None or scale is None:
        raise Unsupported(product.reason or "its weights are not integers with scales")
    window = None if transposed is None else transposed.window
    channels = np.arange(y.channels) if transposed is None else transposed.channels
    count = int(channels.max()) + 1
    weights, window, groups = _derive_weight_window(product, window, codes, source, y)
    scales = _compute_scales(scale, count, channels, weights, source)
    if product.error is None:
        raise Unsupported(product.reason or "nothing is known of the rounding of its sums")
    slack = np.broadcast_to(0.0 if product.exact else product.error, (count,))[channels]
    reach = compute_reach(source, weights, is_padded(window))
    root = AccumulatorRoot(
        node=product.node,
        source=source,
        window=window,
        groups=groups,
        weights=weights,
        accumulators=Accumulators(scales, reach, slack),
        layer=layer,
    )
    return root, _append_bias(product, count, channels)


def _derive_weight_window(
    product: ProductAnalysis,
    window: p.Window | None,
    codes: Array,
    source: IntegerTensor,
    y: Layout,
) -> tuple[Array, p.Window, int]:
    """Return the weights in the order of a program, their window, and the number of groups."""
    node, layout = product.node, product.layout
    if layout is None:
        raise Unsupported(product.reason)
    codes = codes.astype(np.int64)
    kernel = codes.shape[2:] if layout.kind == "Conv" else ()
    if window is None:
        window = derive_window(node, kernel, source.layout, y) if kernel else SINGLE
    groups = layout.groups if kernel else 1
    split = layout.canonical(codes)
    weights = split.reshape(y.channels, split.shape[2], *((1, *kernel)[-2:] if kernel else (1, 1)))
    weights = weights.transpose(0, 2, 3, 1)
    if window is None:
        raise refuse_shape(y)
    if weights.shape[3] * groups != source.layout.channels:
        raise refuse_channels(weights.shape[3] * groups, source.layout)
    return weights, window, groups


def _compute_scales(
    scale: Array, count: int, channels: Array, weights: Array, source: IntegerTensor
) -> Array:
    """Return the value of one unit of the accumulators per channel, float32."""
    own = scale.astype(np.float64).reshape(-1)
    scales = source.grid.scale * np.broadcast_to(own, (count,))[channels]
    sizes = np.abs(weights).sum(axis=(1, 2, 3))
    # A channel that quantizes to zeros may have the smallest scale there is: its sums are 0.
    scales = np.where((sizes == 0) & (np.abs(scales) < _SMALLEST_FLOAT), 0.0, scales)
    _check_floats(scales, sizes, source)
    return scales.astype(np.float32)


def _append_bias(product: ProductAnalysis, count: int, channels: Array) -> ElementFunction:
    bias = read_bias(product, count)
    if bias is None:
        return ElementFunction()
    return ElementFunction().then(AddConstant(bias[channels]), monotone=True, uniform=False)


def read_bias(product: ProductAnalysis, count: int) -> Array | None:
    """Return the bias of a product, a number per channel; None without one.

    Raises:
        Unsupported: It is not a constant of float32, or has another size.
    """
    at = product.layout.bias if product.layout is not None else None
    inputs = product.node.inputs
    value = inputs[at] if at is not None and at < len(inputs) else None
    if value is None:
        return None
    if not is_constant(value) or read_array(value).dtype != np.float32:
        raise Unsupported("its bias is not a constant of float32")
    bias = read_array(value)
    if bias.size != 1 and not bias.size == bias.shape[-1] == count:
        raise Unsupported("its bias is not one number per channel")
    return np.broadcast_to(bias.reshape(-1), (count,))


def compute_reach(source: IntegerTensor, weights: Array, padded: bool) -> IntegerRange:
    """Return the range of the accumulators.

    Raises:
        Unsupported: It does not fit 32 bits.
    """
    largest = source.grid.step * (source.grid.levels - 1) + abs(source.grid.lowest)
    magnitudes = np.abs(weights).reshape(len(weights), -1).sum(axis=1)
    if int(magnitudes.max(initial=0)) * max(largest, 1) > _LARGEST_SUM:
        raise Unsupported("its sums need more than 32 bits")
    return bound_sums(weights, source.grid.lowest, source.grid.highest, padded=padded)


def bound_sums(weights: Array, lowest: int, highest: int, *, padded: bool) -> IntegerRange:
    """Return the range of the sums of each channel, over all codes from `lowest` to `highest`."""
    if padded:
        lowest, highest = min(lowest, 0), max(highest, 0)
    rows = weights.reshape(len(weights), -1)
    up, down = np.maximum(rows, 0).sum(axis=1), np.minimum(rows, 0).sum(axis=1)
    return IntegerRange(up * lowest + down * highest, up * highest + down * lowest)


def _check_floats(scales: Array, weights: Array, source: IntegerTensor) -> None:
    """Check that all products and partial sums are normal float32 numbers, in any order.

    Raises:
        Unsupported: Some become infinity or 0 in the float graph.
    """
    _check_units(scales, weights, max(abs(source.grid.lowest), abs(source.grid.highest)))


def check_block_floats(scales: Array, weights: Array, code: int) -> None:
    """Check that no product or sum of weights in blocks is too large or too small for float32.

    Args:
        scales: One per output channel and block.
        weights: The sums of the magnitudes of the weights of these.
        code: The largest magnitude of a code.

    Raises:
        Unsupported: Some become infinity or 0 in the float graph.
    """
    _check_units(np.where(weights == 0, 0.0, scales), weights, code)
    total = np.sum(np.abs(scales.astype(np.float64)) * weights, axis=1)
    _check_units(np.ones(len(total)), total, code)


def _check_units(scales: Array, weights: Array, code: int) -> None:
    units = np.abs(scales.astype(np.float64))
    if not np.all(units * weights * code < _LARGEST_FLOAT):
        raise Unsupported("its sums are beyond the numbers of float32")
    small = int(np.count_nonzero((units > 0) & (units < _SMALLEST_FLOAT)))
    if small:
        raise Unsupported(
            "its products are below the normal numbers of float32 in "
            f"{format_count(small, 'channel')}: let weights there be 0, or larger"
        )


def accumulate_mean(
    model: ir.Model,
    node: ir.Node,
    source: IntegerTensor,
    y: Layout,
    reach: float,
    exponent: int | None,
) -> tuple[AccumulatorRoot, ElementFunction]:
    """Return the accumulators of a mean or a sum over axes without channels, and its division.

    Args:
        model: The graph.
        node: The node.
        source: Its input.
        y: Layout of its output.
        reach: Largest magnitude of its input.
        exponent: Its input is a multiple of this power of two; None if of none.

    Raises:
        Unsupported: Its windows differ in their numbers of elements, or have too many.
    """
    layout = source.layout
    kernel, window = _derive_mean_window(node, layout, y)
    count = math.prod(kernel)
    shape = (layout.channels, window.kernel_height, window.kernel_width, 1)
    if count > _MOST_AVERAGED or math.prod(shape) > _MOST_WEIGHTS:
        raise Unsupported("it is a mean of too many elements")
    weights = np.ones(shape, np.int64)
    _check_floats(np.array([source.grid.scale]), np.array([count]), source)
    exact = is_exact_sum(count * reach, exponent)
    slack = 0.0 if exact else bound_error(np.asarray(count * reach), np.asarray(count))
    bounds = compute_reach(source, weights, is_padded(window))
    root = AccumulatorRoot(
        node=node,
        source=source,
        window=window,
        groups=layout.channels,
        weights=weights,
        accumulators=Accumulators(
            np.full(layout.channels, source.grid.scale, np.float32),
            bounds,
            np.full(layout.channels, slack),
        ),
        layer=describe_mean(
            node, source, 1, (int(bounds.lowest.min()), int(bounds.highest.max())), exact=exact
        ),
    )
    start, result = require_input(node), node.outputs[0]
    nodes = NodeChain(model, (node,), (start,), result, layout.rank, layout.axis, kernel)
    return root, ElementFunction().then(Mean(nodes), monotone=True, uniform=True)


def is_exact_sum(reach: float, exponent: int | None) -> bool:
    """Return whether float32 holds all multiples of 2^exponent up to `reach`."""
    return exponent is not None and reach <= EXACT * 2.0**exponent


def describe_mean(
    node: ir.Node, source: IntegerTensor, weight_bits: int, span: tuple[int, int], *, exact: bool
) -> LayerInfo:
    """Return the layer of a node that adds codes, with the smallest and largest sum."""
    return LayerInfo(
        get_label(node),
        node.op_type,
        str(node.outputs[0].name),
        Guarantee.EXACT if exact else Guarantee.BOUNDED,
        "" if exact else "the scale of its input is not a short number",
        macs=0,
        weight_bits=weight_bits,
        input_bits=max(1, (source.grid.levels - 1).bit_length()),
        accumulator=span,
        accumulator_bits=count_bits(*span),
    )


def _derive_mean_window(node: ir.Node, x: Layout, y: Layout) -> tuple[tuple[int, ...], p.Window]:
    """Return the sizes of the window of a mean, and the window.

    Raises:
        Unsupported: Windows differ in their numbers of elements, or are dilated.
    """
    if not x.spatial:
        raise Unsupported("it is not a mean over height and width")
    if node.op_type != "AveragePool":
        return derive_reduced_window(node, x, y)
    kernel = tuple(get_attribute(node, "kernel_shape", ()))
    window = derive_window(node, kernel, x, y) if len(kernel) == len(x.spatial) else None
    counts_zeros = get_attribute(node, "count_include_pad", 0)
    differs = window is not None and is_padded(window) and not counts_zeros
    if window is None or differs or get_attribute(node, "ceil_mode", 0):
        raise Unsupported("means at its borders are of fewer elements")
    if any(dilation != 1 for dilation in get_attribute(node, "dilations", ())):
        raise Unsupported("it is a mean of elements that are not side by side")
    return kernel, window
