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
    of_codes,
    of_interval,
    on_units,
)
from anybit.onnx.analysis.sums import error_of
from anybit.onnx.analysis.units import EXACT
from anybit.onnx.analysis.view import View, input_of
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import are_powers_of_two
from anybit.onnx.graph.reductions import get_reduced_axes


def averaged(node: ir.Node, view: View) -> int | None:
    """Return the number of elements of each mean; None if unknown.

    Raises:
        ModelError: An attribute of a wrong type.
    """
    sizes = view.sizes(input_of(node, 0))
    if node.op_type == "AveragePool":
        return math.prod(get_attribute(node, "kernel_shape", (0,)))
    if sizes is None:
        return None
    if node.op_type == "GlobalAveragePool":
        return _product(sizes[2:])
    axes = get_reduced_axes(node, len(sizes))
    return None if axes is None else _product([sizes[axis] for axis in axes])


def average_pool(node: ir.Node, view: View) -> AbstractValue | None:
    kernel = get_attribute(node, "kernel_shape", ())
    x = _with_channels(node, view)
    if x is None or not kernel or any(size < 1 for size in kernel):
        return None
    padded = any(get_attribute(node, "pads", ())) or get_attribute(node, "ceil_mode", 0)
    padded = padded or get_attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if padded:  # windows at borders are smaller
        return _bounded_mean(x, math.prod(kernel), node, with_zero=True)
    return _mean(x, math.prod(kernel), node)


def global_average_pool(node: ir.Node, view: View) -> AbstractValue | None:
    x, sizes = _with_channels(node, view), view.sizes(input_of(node, 0))
    if x is None or sizes is None or len(sizes) < 3:
        return None
    return _mean(x, _product(sizes[2:]), node)


def _with_channels(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the pooled tensor, with its channels if they lie along axis 1."""
    value = input_of(node, 0)
    x = view.abstract(value)
    if x is None or x.axis is None or x.axis == view.axis(value, 1):
        return x
    return x.whole()


def reduced(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of ReduceMean, ReduceSum, ReduceMin or ReduceMax."""
    value = input_of(node, 0)
    x, sizes = view.abstract(value), view.sizes(value)
    if x is None:
        return None
    axes = None if sizes is None else get_reduced_axes(node, len(sizes))
    if axes is None or sizes is None:
        return None if node.op_type not in _EXTREMES else _plain(x.whole())
    x = _remaining(x, axes, len(sizes), bool(get_attribute(node, "keepdims", 1)))
    count = _product([sizes[axis] for axis in axes])
    if node.op_type in _EXTREMES:
        return _plain(x)
    return _mean(x, count, node) if node.op_type == "ReduceMean" else _total(x, count, node)


# No tensor has more, and int64 sums of that many codes do not overflow.
_MOST_ELEMENTS = 2**38
_EXTREMES = ("ReduceMax", "ReduceMin")


def _plain(x: AbstractValue) -> AbstractValue:
    return replace(x, integers=None, sources=())


def _remaining(x: AbstractValue, axes: Sequence[int], rank: int, keeps: bool) -> AbstractValue:
    """Return x with its channels at their axis after a reduction, unless they are reduced."""
    if x.axis is None or rank + x.axis in axes:
        return x.whole()
    following = 0 if keeps else sum(axis > rank + x.axis for axis in axes)
    return replace(x, axis=x.axis + following)


def _product(sizes: Sequence[int | None]) -> int | None:
    fixed = [size for size in sizes if size is not None]
    return math.prod(fixed) if len(fixed) == len(sizes) else None


def _total(x: AbstractValue, count: int | None, node: ir.Node) -> AbstractValue | None:
    """Return a sum of `count` elements; exact for few multiples of a power of two."""
    if count is None or count > _MOST_ELEMENTS or not x.bounded:
        return None
    low, high = x.lowest * count, x.highest * count
    reach = float(np.maximum(np.abs(low), np.abs(high)).max())
    error = error_of(np.asarray(reach), np.asarray(count))
    if np.isinf(error):
        return None
    if x.exponent is None or reach > EXACT * 2.0**x.exponent:
        return of_interval(low - error, high + error, x.axis, sources=node.outputs[:1])
    codes = x.codes
    if codes is not None and codes.integral:
        lowest, highest = (bound * count for bound in codes.centered)
        step = codes.step if count else 1
        if np.any((lowest - lowest.min()) % step):
            step = 1
        summed = CodeRanges(codes.scale, np.zeros((), np.float32), lowest, highest, step)
        result = of_codes(summed, x.axis)
        if result is not None:
            return result
    return on_units(of_interval(low, high, x.axis, exponent=x.exponent))


def _mean(x: AbstractValue, count: int | None, node: ir.Node) -> AbstractValue | None:
    if count == 0 or not x.bounded:
        return None
    total = None if count is None else _total(x, count, node)
    codes = None if total is None else total.codes
    if count is None or total is None or codes is None or not are_powers_of_two(count):
        return _bounded_mean(x, count, node, with_zero=False)
    scale = np.asarray(codes.scale / np.float32(count))
    if np.any(scale * np.float32(count) != codes.scale):
        return _bounded_mean(x, count, node, with_zero=False)
    return of_codes(replace(codes, scale=scale), total.axis)


def _bounded_mean(
    x: AbstractValue, count: int | None, node: ir.Node, *, with_zero: bool
) -> AbstractValue:
    """Return bounds of means: those of the elements, up to rounding, unless sums are infinite."""
    low, high = x.lowest, x.highest
    if with_zero:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    if count is None or count > _MOST_ELEMENTS or not x.bounded:
        return of_interval(-np.inf, np.inf, nan=True)
    if np.isinf(error_of(np.asarray(count * x.reach), np.asarray(count))):
        return of_interval(-np.inf, np.inf, nan=True)
    error = error_of(np.asarray(x.reach), np.asarray(count + 2))
    sources = node.outputs[:1] if not with_zero else ()
    return of_interval(low - error, high + error, x.axis, nan=x.nan, sources=sources)
