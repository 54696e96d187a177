# SPDX-License-Identifier: Apache-2.0
"""Nodes that add up: products with weights that are codes, and means, whose weights are 1."""

import math

import numpy as np
import onnx_ir as ir

from anybit.lowbit import program as p
from anybit.lowbit.functions import AddConstant, Function, Mean, Nodes
from anybit.lowbit.parts import Coded, SumRoot
from anybit.lowbit.places import Place
from anybit.lowbit.staircases import Range
from anybit.lowbit.tails import Sum
from anybit.lowbit.uncovered import Uncovered
from anybit.lowbit.windows import SINGLE, is_padded, window_of
from anybit.onnx.analysis.products import ProductAnalysis, bits_of
from anybit.onnx.analysis.sums import error_of
from anybit.onnx.analysis.units import EXACT
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.names import label_of
from anybit.quant_types.layer_info import Guarantee, LayerInfo
from anybit.text import counted

_WEIGHTS = range(-128, 128)
_LARGEST_SUM = 2**31 - 1
_MOST_AVERAGED = 2**20
_MOST_WEIGHTS = 2**22
_LARGEST_FLOAT = 2.0**127
_SMALLEST_FLOAT = 2.0**-126


def check_factors(product: ProductAnalysis) -> None:
    """What is said of a product first, whatever its sizes are.

    Raises:
        Uncovered: No kernel computes its like.
    """
    if product.node.op_type == "ConvTranspose":
        raise Uncovered(
            "transposed convolutions are not among the kernels; a Resize to the nearest and a Conv "
            "in their place are"
        )
    if product.layout is not None and product.sum is None and product.x is not None:
        raise Uncovered(f"{product.reason}; kernels multiply with constants")


def source_axis(product: ProductAnalysis, rank: int) -> int:
    """The axis along which the channels of a product's input lie.

    Raises:
        Uncovered: The product is not one of a tensor of codes and a constant of codes.
    """
    node, layout = product.node, product.layout
    if layout is None:
        raise Uncovered(product.reason)
    if product.codes is None or product.scale is None:
        raise Uncovered(
            "its weights are not integers with one scale per channel: quantize them per channel"
        )
    if layout.x != 0 or layout.weight != 1 or product.codes.ndim < 2:
        raise Uncovered("its weights are not its second input")
    axis = layout.x_axis % rank
    if axis != (1 if node.op_type == "Conv" else rank - 1) or axis == 0:
        raise Uncovered("it sums over another axis than that of the channels")
    if node.op_type == "MatMul" and product.codes.ndim != 2:
        raise Uncovered("its weights are a batch of matrices")
    lowest, highest = product.codes.min(initial=0), product.codes.max(initial=0)
    if lowest not in _WEIGHTS or highest not in _WEIGHTS:
        raise Uncovered(
            f"its weights go from {lowest:g} to {highest:g}, beyond 8 bits: quantize them to fewer"
        )
    return axis


def product_root(
    product: ProductAnalysis, layer: LayerInfo, source: Coded, y: Place
) -> tuple[SumRoot, Function]:
    """The accumulators of a product, and what the node does with them: the bias is added.

    Raises:
        Uncovered: Weights that are not bytes, a window that does not fit, or too long sums.
    """
    weights, window, groups = _window_of_weights(product, source, y)
    scales = _scales(product, weights, source)
    if product.error is None:
        raise Uncovered(product.reason or "nothing is known of the rounding of its sums")
    slack = np.broadcast_to(0.0 if product.exact else product.error, (y.channels,))
    reach = _reach(source, weights, is_padded(window))
    root = SumRoot(
        node=product.node,
        source=source,
        window=window,
        groups=groups,
        weights=weights,
        sum=Sum(scales, reach, slack),
        layer=layer,
    )
    return root, _with_bias(product, y.channels)


def _window_of_weights(
    product: ProductAnalysis, source: Coded, y: Place
) -> tuple[Array, p.Window, int]:
    """The weights as a program has them, their window, and how many groups there are."""
    node, layout = product.node, product.layout
    assert layout is not None, "asked before"
    assert product.codes is not None, "asked before"
    codes = product.codes.astype(np.int64)
    kernel = codes.shape[2:] if node.op_type == "Conv" else ()
    window = window_of(node, kernel, source.place, y) if kernel else SINGLE
    groups = layout.groups if kernel else 1
    split = layout.canonical(codes)
    weights = split.reshape(y.channels, split.shape[2], *((1, *kernel)[-2:] if kernel else (1, 1)))
    weights = weights.transpose(0, 2, 3, 1)
    if window is None or weights.shape[3] * groups != source.place.channels:
        raise Uncovered("its sizes are not those of its attributes")
    return weights, window, groups


def _scales(product: ProductAnalysis, weights: Array, source: Coded) -> Array:
    """What a unit of each accumulator is, in float32."""
    assert product.scale is not None, "asked before"
    own = product.scale.astype(np.float64).reshape(-1)
    scales = source.codes.scale * np.broadcast_to(own, weights.shape[:1])
    sizes = np.abs(weights).sum(axis=(1, 2, 3))
    # A channel that quantizes to zeros has the smallest scale there is: whatever it is, they add up
    # to 0.
    scales = np.where((sizes == 0) & (np.abs(scales) < _SMALLEST_FLOAT), 0.0, scales)
    _check_floats(scales, sizes, source)
    return scales.astype(np.float32)


def _with_bias(product: ProductAnalysis, channels: int) -> Function:
    at = product.layout.bias if product.layout is not None else None
    inputs = product.node.inputs
    value = inputs[at] if at is not None and at < len(inputs) else None
    if value is None:
        return Function()
    if not is_constant(value) or array_of(value).dtype != np.float32:
        raise Uncovered("its bias is not a constant of float32")
    bias = array_of(value)
    if bias.size != 1 and not bias.size == bias.shape[-1] == channels:
        raise Uncovered("its bias is not one number per channel")
    part = AddConstant(np.broadcast_to(bias.reshape(-1), (channels,)))
    return Function().then(part, monotone=True, uniform=False)


def _reach(source: Coded, weights: Array, padded: bool) -> Range:
    """The accumulators that there can be.

    Raises:
        Uncovered: They are more than 32 bits hold.
    """
    low, high = source.codes.lowest, source.codes.highest
    if padded:
        low, high = min(low, 0), max(high, 0)
    each = weights.reshape(len(weights), -1)
    up, down = np.maximum(each, 0).sum(axis=1), np.minimum(each, 0).sum(axis=1)
    largest = source.codes.step * (source.codes.levels - 1) + abs(source.codes.lowest)
    if int((up - down).max(initial=0)) * max(largest, 1) > _LARGEST_SUM:
        raise Uncovered("its sums need more than 32 bits")
    return Range(up * low + down * high, up * high + down * low)


def _check_floats(scales: Array, weights: Array, source: Coded) -> None:
    """That float32 has a normal number for all that is added up, in whatever order.

    Raises:
        Uncovered: The float graph makes infinities or zeros of some.
    """
    code = max(abs(source.codes.lowest), abs(source.codes.highest))
    units = np.abs(scales.astype(np.float64))
    if not np.all(units * weights * code < _LARGEST_FLOAT):
        raise Uncovered("its sums are beyond the numbers of float32")
    small = int(np.count_nonzero((units > 0) & (units < _SMALLEST_FLOAT)))
    if small:
        raise Uncovered(
            f"its products are below the normal numbers of float32 in {counted(small, 'channel')}: "
            "let weights there be 0, or larger"
        )


def mean_root(
    model: ir.Model, node: ir.Node, source: Coded, y: Place, reach: float, exponent: int | None
) -> tuple[SumRoot, Function]:
    """The accumulators of a mean or a sum over height and width, and what the node makes of them.

    Args:
        model: The graph.
        node: The node.
        source: What it reads.
        y: How its result lies.
        reach: The largest magnitude of its input.
        exponent: Of which power of two its input is a multiple.

    Raises:
        Uncovered: It is a mean over something else.
    """
    place = source.place
    kernel, window = _mean_window(node, place, y)
    count = math.prod(kernel)
    shape = (place.channels, window.kernel_height, window.kernel_width, 1)
    if count > _MOST_AVERAGED or math.prod(shape) > _MOST_WEIGHTS:
        raise Uncovered("it is a mean of too many elements")
    weights = np.ones(shape, np.int64)
    _check_floats(np.array([source.codes.scale]), np.array([count]), source)
    exact = exponent is not None and count * reach <= EXACT * 2.0**exponent
    slack = 0.0 if exact else error_of(np.asarray(count * reach), np.asarray(count))
    reached = _reach(source, weights, is_padded(window))
    span = int(reached.lowest.min()), int(reached.highest.max())
    root = SumRoot(
        node=node,
        source=source,
        window=window,
        groups=place.channels,
        weights=weights,
        sum=Sum(
            np.full(place.channels, source.codes.scale, np.float32),
            reached,
            np.full(place.channels, slack),
        ),
        layer=LayerInfo(
            label_of(node),
            node.op_type,
            str(node.outputs[0].name),
            Guarantee.EXACT if exact else Guarantee.BOUNDED,
            "" if exact else "the scale of its input is not a short number",
            macs=0,
            weight_bits=1,
            input_bits=max(1, (source.codes.levels - 1).bit_length()),
            accumulator=span,
            accumulator_bits=bits_of(*span),
        ),
    )
    start, result = node.inputs[0], node.outputs[0]
    assert start is not None, "it has a source"
    nodes = Nodes(model, (node,), (start,), result, place.rank, place.axis, kernel)
    return root, Function().then(Mean(nodes), monotone=True, uniform=True)


def _mean_window(node: ir.Node, x: Place, y: Place) -> tuple[tuple[int, ...], p.Window]:
    """How many elements a mean is of along each axis, and its window.

    Raises:
        Uncovered: Not all of its means are of as many elements side by side.
    """
    if not x.spatial or not x.channels_first:
        raise Uncovered("it is not a mean over height and width")
    if node.op_type != "AveragePool":
        return x.spatial, p.Window(x.height, x.width, 1, 1, 1, 1, 0, 0, 0, 0)
    kernel = tuple(attribute_of(node, "kernel_shape", ()))
    window = window_of(node, kernel, x, y) if len(kernel) == len(x.spatial) else None
    zeros = attribute_of(node, "count_include_pad", 0)
    fewer = window is not None and is_padded(window) and not zeros
    if window is None or fewer or attribute_of(node, "ceil_mode", 0):
        raise Uncovered("means at its borders are of fewer elements")
    if any(dilation != 1 for dilation in attribute_of(node, "dilations", ())):
        raise Uncovered("it is a mean of elements that are not side by side")
    return kernel, window
