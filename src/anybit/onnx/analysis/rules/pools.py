# SPDX-License-Identifier: Apache-2.0
"""Means, sums and extremes of several elements of one tensor."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import (
    AbstractValue,
    CodeRanges,
    encode_units,
    from_codes,
    from_interval,
)
from anybit.onnx.analysis.sums import bound_error
from anybit.onnx.analysis.units import EXACT
from anybit.onnx.analysis.view import View, get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import are_powers_of_two
from anybit.onnx.graph.reductions import get_reduced_axes


def count_averaged(node: ir.Node, view: View) -> int | None:
    """Return the number of elements of each mean; None if unknown.

    Raises:
        ModelError: An attribute of a wrong type.
    """
    sizes = view.get_sizes(get_input(node, 0))
    if node.op_type == "AveragePool":
        return math.prod(get_attribute(node, "kernel_shape", (0,)))
    if sizes is None:
        return None
    if node.op_type == "GlobalAveragePool":
        return _multiply_sizes(sizes[2:])
    axes = get_reduced_axes(node, len(sizes))
    return None if axes is None else _multiply_sizes([sizes[axis] for axis in axes])


def infer_average_pool(node: ir.Node, view: View) -> AbstractValue | None:
    kernel = get_attribute(node, "kernel_shape", ())
    x = _get_pooled(node, view)
    if x is None or not kernel or any(size < 1 for size in kernel):
        return None
    padded = any(get_attribute(node, "pads", ())) or get_attribute(node, "ceil_mode", 0)
    padded = padded or get_attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if padded:  # windows at borders are smaller
        return _bound_mean(x, math.prod(kernel), node, with_zero=True)
    return _infer_mean(x, math.prod(kernel), node)


def infer_global_average_pool(node: ir.Node, view: View) -> AbstractValue | None:
    x, sizes = _get_pooled(node, view), view.get_sizes(get_input(node, 0))
    if x is None or sizes is None or len(sizes) < 3:
        return None
    return _infer_mean(x, _multiply_sizes(sizes[2:]), node)


def _get_pooled(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the pooled tensor, with its channels if they lie along axis 1."""
    value = get_input(node, 0)
    x = view.get_abstract(value)
    if x is None or x.axis is None or x.axis == view.resolve_axis(value, 1):
        return x
    return x.merge_channels()


def infer_reduction(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of ReduceMean, ReduceSum, ReduceMin or ReduceMax."""
    value = get_input(node, 0)
    x, sizes = view.get_abstract(value), view.get_sizes(value)
    if x is None:
        return None
    axes = None if sizes is None else get_reduced_axes(node, len(sizes))
    if axes is None or sizes is None:
        return None if node.op_type not in _EXTREMES else _drop_positions(x.merge_channels())
    x = _reduce_channels(x, axes, len(sizes), bool(get_attribute(node, "keepdims", 1)))
    count = _multiply_sizes([sizes[axis] for axis in axes])
    if node.op_type in _EXTREMES:
        return _drop_positions(x)
    return (
        _infer_mean(x, count, node)
        if node.op_type == "ReduceMean"
        else _bound_total(x, count, node)
    )


# No tensor has more, and int64 sums of that many codes do not overflow.
_MOST_ELEMENTS = 2**38
_EXTREMES = ("ReduceMax", "ReduceMin")


def _drop_positions(x: AbstractValue) -> AbstractValue:
    return replace(x, integers=None, sources=())


def _reduce_channels(
    x: AbstractValue, axes: Sequence[int], rank: int, keeps: bool
) -> AbstractValue:
    """Return x with its channels at their axis after a reduction, unless they are reduced."""
    if x.axis is None or rank + x.axis in axes:
        return x.merge_channels()
    following = 0 if keeps else sum(axis > rank + x.axis for axis in axes)
    return replace(x, axis=x.axis + following)


def _multiply_sizes(sizes: Sequence[int | None]) -> int | None:
    fixed = [size for size in sizes if size is not None]
    return math.prod(fixed) if len(fixed) == len(sizes) else None


def _bound_total(x: AbstractValue, count: int | None, node: ir.Node) -> AbstractValue | None:
    """Return a sum of `count` elements; exact for few multiples of a power of two."""
    if count is None or count > _MOST_ELEMENTS or not x.bounded:
        return None
    low, high = x.lowest * count, x.highest * count
    reach = float(np.maximum(np.abs(low), np.abs(high)).max())
    error = bound_error(np.asarray(reach), np.asarray(count))
    if np.isinf(error):
        return None
    if x.exponent is None or reach > EXACT * 2.0**x.exponent:
        return from_interval(low - error, high + error, x.axis, sources=node.outputs[:1])
    codes = x.codes
    if codes is not None and codes.integral:
        lowest, highest = (bound * count for bound in codes.centered)
        step = codes.step if count else 1
        if np.any((lowest - lowest.min()) % step):
            step = 1
        summed = CodeRanges(codes.scale, np.zeros((), np.float32), lowest, highest, step)
        result = from_codes(summed, x.axis)
        if result is not None:
            return result
    return encode_units(from_interval(low, high, x.axis, exponent=x.exponent))


def _infer_mean(x: AbstractValue, count: int | None, node: ir.Node) -> AbstractValue | None:
    if count == 0 or not x.bounded:
        return None
    total = None if count is None else _bound_total(x, count, node)
    codes = None if total is None else total.codes
    if count is None or total is None or codes is None or not are_powers_of_two(count):
        return _bound_mean(x, count, node, with_zero=False)
    scale = np.asarray(codes.scale / np.float32(count))
    if np.any(scale * np.float32(count) != codes.scale):
        return _bound_mean(x, count, node, with_zero=False)
    return from_codes(replace(codes, scale=scale), total.axis)


def _bound_mean(
    x: AbstractValue, count: int | None, node: ir.Node, *, with_zero: bool
) -> AbstractValue:
    """Return bounds of means: the bounds of the elements, up to rounding, unless sums overflow."""
    low, high = x.lowest, x.highest
    if with_zero:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    if count is None or count > _MOST_ELEMENTS or not x.bounded:
        return from_interval(-np.inf, np.inf, nan=True)
    if np.isinf(bound_error(np.asarray(count * x.reach), np.asarray(count))):
        return from_interval(-np.inf, np.inf, nan=True)
    error = bound_error(np.asarray(x.reach), np.asarray(count + 2))
    sources = node.outputs[:1] if not with_zero else ()
    return from_interval(low - error, high + error, x.axis, nan=x.nan, sources=sources)
