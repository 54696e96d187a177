# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements that IEEE arithmetic determines, one input aside constant."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.carriers import Carrier, Codes, on_units
from anybit.onnx.analysis.points import image, points_of
from anybit.onnx.analysis.unions import union
from anybit.onnx.analysis.units import EXACT
from anybit.onnx.analysis.view import View, channels_of_constant, given, is_float, unknown
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import IntegerGrid

Function = Callable[[Array], Array]
Scales = Callable[[Codes], Sequence[tuple[Array, Array]]]
"""Other scales and zero-points of which results may be codes."""

_ZERO = np.float32(0)


def relu(node: ir.Node, view: View) -> Carrier | None:
    return applied(node, view, lambda x: np.maximum(x, _ZERO), among=True)


def leaky_relu(node: ir.Node, view: View) -> Carrier | None:
    slope = np.float32(attribute_of(node, "alpha", 0.01))
    return applied(node, view, lambda x: np.where(x < 0, x * slope, x))


def thresholded_relu(node: ir.Node, view: View) -> Carrier | None:
    limit = np.float32(attribute_of(node, "alpha", 1.0))
    turns = (0.0, float(limit), float(np.nextafter(limit, np.float32(np.inf))))
    return applied(node, view, lambda x: np.where(x > limit, x, _ZERO), turns=turns, among=True)


def prelu(node: ir.Node, view: View) -> Carrier | None:
    slope = view.array(given(node, 1))
    layout = None if slope is None else channels_of_constant(slope)
    if layout is None or layout[1].dtype != np.float32:
        return None
    axis, slopes = layout
    return applied(node, view, lambda x: np.where(x < 0, x * slopes, x), axis, slopes)


def clip(node: ir.Node, view: View) -> Carrier | None:
    bounds = []
    for index, name in ((1, "min"), (2, "max")):
        value = given(node, index)
        array = view.array(value)
        if value is not None and (array is None or array.size != 1):
            return None
        infinite = np.inf if index == 2 else -np.inf
        bounds.append(attribute_of(node, name, infinite) if array is None else array.flat[0])
    low, high = np.float32(bounds[0]), np.float32(bounds[1])
    x = view.carrier(given(node, 0))
    if x is not None and low <= x.lowest.min() and x.highest.max() <= high:
        return _typed(x, float(low), float(high))  # nothing is cut off
    turns = (0.0, float(low), float(high))
    found = applied(node, view, lambda x: np.minimum(np.maximum(x, low), high), turns=turns)
    return found if found is None or x is None else _within(found, x, low, high)


def _typed(x: Carrier, low: float, high: float) -> Carrier:
    """What a Clip leaves as it is; its codes have a narrower type then."""
    codes = x.codes
    if x.integers is None:
        return _within(x, x, np.float32(low), np.float32(high))
    if codes is None or not np.isfinite([low, high]).all():
        return x
    if np.any(codes.scale != 1) or np.any(codes.zeropt != 0):
        return x
    return replace(x, codes=replace(codes, allowed=range(int(low), int(high) + 1)))


def _within(found: Carrier, x: Carrier, low: np.float32, high: np.float32) -> Carrier:
    """Narrow the type of the codes that a Clip of x gives to those between its bounds.

    A quantizer with a zero-point is written as a wider one and a Clip to values on its grid.
    """
    codes, before = found.codes, x.codes
    allowed = None if before is None else before.allowed
    if codes is None or before is None or not isinstance(allowed, range) or allowed.step != 1:
        return found
    scales, zeropts = (
        {float(each) for each in (*one.flat, *other.flat)}
        for one, other in ((codes.scale, before.scale), (codes.zeropt, before.zeropt))
    )
    if len(scales) > 1 or len(zeropts) > 1 or min(scales) <= 0:
        return found
    scale, zeropt = (np.asarray(each.pop(), np.float32) for each in (scales, zeropts))
    grid = IntegerGrid(scale, zeropt, allowed)
    bounds = np.array([low, high])
    with np.errstate(all="ignore"):
        whole = np.rint(bounds.astype(np.float64) / scale + zeropt)
    whole = np.where(np.isinf(bounds), [allowed[0], allowed[-1]], whole)
    if not np.all(np.abs(whole) <= EXACT):
        return found
    if not np.all(np.isinf(bounds) | (grid.decode(whole.astype(np.int64)) == bounds)):
        return found
    ends = [int(each) for each in whole]
    narrower = range(max(allowed[0], ends[0]), min(allowed[-1], ends[1]) + 1)
    if int(codes.lowest.min()) < narrower.start or int(codes.highest.max()) >= narrower.stop:
        return found
    return replace(found, codes=replace(codes, allowed=narrower))


def negated(node: ir.Node, view: View) -> Carrier | None:
    return applied(node, view, lambda x: -x, scales=lambda codes: [(codes.scale, -codes.zeropt)])


def simple(function: Function) -> Callable[[ir.Node, View], Carrier | None]:
    """The rule of a function without parameters."""

    def rule(node: ir.Node, view: View) -> Carrier | None:
        return applied(node, view, function)

    return rule


def cast(node: ir.Node, view: View) -> Carrier | None:
    """To float32, or to integers that hold the values."""
    x = view.carrier(given(node, 0))
    to = attribute_of(node, "to", 0)
    if x is None or to == ir.DataType.FLOAT.value:
        return x
    limits = _INTEGERS.get(to)
    if limits is None or not x.bounded:
        return None
    if np.any(x.lowest < limits.min) or np.any(x.highest > limits.max):
        return None
    return applied(node, view, np.trunc)


_INTEGERS = {
    ir.DataType[name.upper()].value: np.iinfo(name)
    for name in ("int8", "uint8", "int16", "uint16", "int32")
}


def applied(
    node: ir.Node,
    view: View,
    function: Function,
    axis: int | None = None,
    *parameters: Array,
    scales: Scales = lambda codes: (),
    turns: Sequence[float] = (0.0,),
    among: bool = False,
    at: int = 0,
) -> Carrier | None:
    """What a function gives that is monotone between its turning points.

    `axis` is that of its own `parameters`; what is `among` gives the element itself, or 0.
    """
    value = given(node, at)
    x = view.carrier(value)
    if value is None or (x is None and not is_float(value)):
        return None
    if x is None:
        x = unknown(value)
    if axis is not None and x.axis not in (None, axis):
        x = x.whole()
    points = points_of(x, axis, *parameters, turns=turns)
    tried: list[tuple[Array, Array]] = []
    if x.codes is not None:
        tried = [*scales(x.codes), (x.codes.scale, x.codes.zeropt)]
    found = image(points, function, tried, nan=x.nan, sources=sources_of(value, x))
    if among and not points.every:
        found = replace(found, exponent=x.exponent)
        kept = None if x.codes is None else union([x, _zero(x)])
        if kept is not None and kept.codes is not None:
            return _limited(kept, found)
        return on_units(found)
    if np.all(found.lowest == -np.inf) and np.all(found.highest == np.inf):
        return None  # nothing is known of it
    return found


def _zero(x: Carrier) -> Carrier:
    none = np.zeros(())
    return Carrier(none, none, exponent=x.exponent)


def _limited(kept: Carrier, found: Carrier) -> Carrier:
    """The codes of one carrier within the bounds of the other.

    A value is (code - zeropt) * scale * (1 + d) with |d| <= 2^-23, for both its roundings: a bound
    of values is one of codes but for that share of it. Float64 rounds by less than 2^-20 codes.
    """
    codes, grid = kept.codes, kept.grid
    if codes is None or grid is None or kept.axis != found.axis or np.any(codes.scale <= 0):
        return kept
    scale = codes.scale.astype(np.float64)
    low, high = (np.clip(each / scale, -EXACT, EXACT) for each in (found.lowest, found.highest))
    low = np.ceil(low + codes.zeropt - np.abs(low) * 2.0**-22 - 2.0**-20).astype(np.int64)
    high = np.floor(high + codes.zeropt + np.abs(high) * 2.0**-22 + 2.0**-20).astype(np.int64)
    lowest, highest = np.maximum(codes.lowest, low), np.minimum(codes.highest, high)
    if np.any(lowest > highest):
        return kept
    narrower = replace(codes, lowest=lowest, highest=highest, step=1)
    return replace(
        found,
        lowest=np.maximum(kept.lowest, found.lowest),
        highest=np.minimum(kept.highest, found.highest),
        codes=narrower,
    )


def sources_of(value: ir.Value, x: Carrier) -> tuple[ir.Value, ...]:
    """Of what a function of the elements of a tensor is a function."""
    return x.sources or ((value,) if x.codes is not None else ())
