# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions that IEEE arithmetic determines; only one input is not constant."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import AbstractValue, CodeRanges, encode_units
from anybit.onnx.analysis.points import list_points, map_points
from anybit.onnx.analysis.unions import unite
from anybit.onnx.analysis.units import EXACT
from anybit.onnx.analysis.view import (
    View,
    find_constant_channels,
    get_input,
    make_unknown,
    may_be_float32,
)
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import IntegerGrid

ElementFunction = Callable[[Array], Array]
FindScales = Callable[[CodeRanges], Sequence[tuple[Array, Array]]]
"""Further candidate scales and zero-points of results."""

_ZERO = np.float32(0)


def infer_relu(node: ir.Node, view: View) -> AbstractValue | None:
    return apply_function(node, view, lambda x: np.maximum(x, _ZERO), among=True)


def infer_leaky_relu(node: ir.Node, view: View) -> AbstractValue | None:
    slope = np.float32(get_attribute(node, "alpha", 0.01))
    return apply_function(node, view, lambda x: np.where(x < 0, x * slope, x))


def infer_thresholded_relu(node: ir.Node, view: View) -> AbstractValue | None:
    limit = np.float32(get_attribute(node, "alpha", 1.0))
    turns = (0.0, float(limit), float(np.nextafter(limit, np.float32(np.inf))))
    return apply_function(
        node, view, lambda x: np.where(x > limit, x, _ZERO), turns=turns, among=True
    )


def infer_prelu(node: ir.Node, view: View) -> AbstractValue | None:
    slope = view.get_array(get_input(node, 1))
    layout = None if slope is None else find_constant_channels(slope)
    if layout is None or layout[1].dtype != np.float32:
        return None
    axis, slopes = layout
    return apply_function(node, view, lambda x: np.where(x < 0, x * slopes, x), axis, slopes)


def infer_clip(node: ir.Node, view: View) -> AbstractValue | None:
    bounds = []
    for index, name in ((1, "min"), (2, "max")):
        value = get_input(node, index)
        array = view.get_array(value)
        if value is not None and (array is None or array.size != 1):
            return None
        infinite = np.inf if index == 2 else -np.inf
        bounds.append(get_attribute(node, name, infinite) if array is None else array.flat[0])
    low, high = np.float32(bounds[0]), np.float32(bounds[1])
    x = view.get_abstract(get_input(node, 0))
    if x is not None and low <= x.lowest.min() and x.highest.max() <= high:
        return _narrow_type(x, float(low), float(high))  # no value is clipped
    turns = (0.0, float(low), float(high))
    result = apply_function(node, view, lambda x: np.minimum(np.maximum(x, low), high), turns=turns)
    return result if result is None or x is None else _narrow_codes(result, x, low, high)


def _narrow_type(x: AbstractValue, low: float, high: float) -> AbstractValue:
    """Return x, unchanged by a Clip; its codes then have a narrower type."""
    codes = x.codes
    if x.integers is None:
        return _narrow_codes(x, x, np.float32(low), np.float32(high))
    if codes is None or not np.isfinite([low, high]).all():
        return x
    if np.any(codes.scale != 1) or np.any(codes.zeropt != 0):
        return x
    return replace(x, codes=replace(codes, allowed=range(int(low), int(high) + 1)))


def _narrow_codes(
    clipped: AbstractValue, x: AbstractValue, low: np.float32, high: np.float32
) -> AbstractValue:
    """Narrow the type of the codes after a Clip to those between its bounds.

    A quantizer with a zero-point is written as a wider one and a Clip to values of its grid.
    """
    codes, before = clipped.codes, x.codes
    allowed = None if before is None else before.allowed
    if codes is None or before is None or not isinstance(allowed, range) or allowed.step != 1:
        return clipped
    scales, zeropts = (
        {float(bound) for bound in (*one.flat, *other.flat)}
        for one, other in ((codes.scale, before.scale), (codes.zeropt, before.zeropt))
    )
    if len(scales) > 1 or len(zeropts) > 1 or min(scales) <= 0:
        return clipped
    scale, zeropt = (np.asarray(bound.pop(), np.float32) for bound in (scales, zeropts))
    grid = IntegerGrid(scale, zeropt, allowed)
    bounds = np.array([low, high])
    with np.errstate(all="ignore"):
        whole = np.rint(bounds.astype(np.float64) / scale + zeropt)
    whole = np.where(np.isinf(bounds), [allowed[0], allowed[-1]], whole)
    if not np.all(np.abs(whole) <= EXACT):
        return clipped
    if not np.all(np.isinf(bounds) | (grid.decode(whole.astype(np.int64)) == bounds)):
        return clipped
    ends = [int(bound) for bound in whole]
    narrower = range(max(allowed[0], ends[0]), min(allowed[-1], ends[1]) + 1)
    if int(codes.lowest.min()) < narrower.start or int(codes.highest.max()) >= narrower.stop:
        return clipped
    return replace(clipped, codes=replace(codes, allowed=narrower))


def infer_neg(node: ir.Node, view: View) -> AbstractValue | None:
    return apply_function(
        node, view, lambda x: -x, scales=lambda codes: [(codes.scale, -codes.zeropt)]
    )


def make_rule(function: ElementFunction) -> Callable[[ir.Node, View], AbstractValue | None]:
    """Return the rule of a function without parameters."""

    def rule(node: ir.Node, view: View) -> AbstractValue | None:
        return apply_function(node, view, function)

    return rule


def infer_cast(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of a cast to float32, or to integers that hold the values."""
    x = view.get_abstract(get_input(node, 0))
    to = get_attribute(node, "to", 0)
    if x is None or to == ir.DataType.FLOAT.value:
        return x
    limits = _INTEGERS.get(to)
    if limits is None or not x.bounded:
        return None
    if np.any(x.lowest < limits.min) or np.any(x.highest > limits.max):
        return None
    return apply_function(node, view, np.trunc)


_INTEGERS = {
    ir.DataType[name.upper()].value: np.iinfo(name)
    for name in ("int8", "uint8", "int16", "uint16", "int32")
}


def apply_function(
    node: ir.Node,
    view: View,
    function: ElementFunction,
    axis: int | None = None,
    *parameters: Array,
    scales: FindScales = lambda codes: (),
    turns: Sequence[float] = (0.0,),
    among: bool = False,
    at: int = 0,
) -> AbstractValue | None:
    """Return the result of a function that is monotone between its turning points.

    `axis` is that of its `parameters`; with `among`, every result is the element itself or 0.
    """
    value = get_input(node, at)
    x = view.get_abstract(value)
    if value is None or (x is None and not may_be_float32(value)):
        return None
    if x is None:
        x = make_unknown(value)
    if axis is not None and x.axis not in (None, axis):
        x = x.merge_channels()
    points = list_points(x, axis, *parameters, turns=turns)
    tried: list[tuple[Array, Array]] = []
    if x.codes is not None:
        tried = [*scales(x.codes), (x.codes.scale, x.codes.zeropt)]
    result = map_points(points, function, tried, nan=x.nan, sources=get_sources(value, x))
    if among and not points.every:
        result = replace(result, exponent=x.exponent)
        kept = None if x.codes is None else unite([x, _make_zero(x)])
        if kept is not None and kept.codes is not None:
            return _limit_codes(kept, result)
        return encode_units(result)
    if np.all(result.lowest == -np.inf) and np.all(result.highest == np.inf):
        return None  # it is unknown
    return result


def _make_zero(x: AbstractValue) -> AbstractValue:
    none = np.zeros(())
    return AbstractValue(none, none, exponent=x.exponent)


def _limit_codes(kept: AbstractValue, other: AbstractValue) -> AbstractValue:
    """Return the codes of one value within the bounds of the other.

    A value is (code - zeropt) * scale * (1 + d) with |d| <= 2^-23, for both its roundings: a bound
    of values is a bound of codes up to that share. Float64 rounds by less than 2^-20 codes.
    """
    codes, grid = kept.codes, kept.grid
    if codes is None or grid is None or kept.axis != other.axis or np.any(codes.scale <= 0):
        return kept
    scale = codes.scale.astype(np.float64)
    low, high = (np.clip(bound / scale, -EXACT, EXACT) for bound in (other.lowest, other.highest))
    low = np.ceil(low + codes.zeropt - np.abs(low) * 2.0**-22 - 2.0**-20).astype(np.int64)
    high = np.floor(high + codes.zeropt + np.abs(high) * 2.0**-22 + 2.0**-20).astype(np.int64)
    lowest, highest = np.maximum(codes.lowest, low), np.minimum(codes.highest, high)
    if np.any(lowest > highest):
        return kept
    narrower = replace(codes, lowest=lowest, highest=highest, step=1)
    return replace(
        other,
        lowest=np.maximum(kept.lowest, other.lowest),
        highest=np.minimum(kept.highest, other.highest),
        codes=narrower,
    )


def get_sources(value: ir.Value, x: AbstractValue) -> tuple[ir.Value, ...]:
    """Return the tensors that determine an elementwise function of a tensor."""
    return x.sources or ((value,) if x.codes is not None else ())
