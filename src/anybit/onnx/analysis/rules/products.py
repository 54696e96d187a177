# SPDX-License-Identifier: Apache-2.0
"""Conv, ConvTranspose, Gemm and MatMul."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.carriers import Carrier, Codes, of_interval, on_units
from anybit.onnx.analysis.costs import multiplications
from anybit.onnx.analysis.integers import divisor_of
from anybit.onnx.analysis.layouts import Layout, layout_of
from anybit.onnx.analysis.products import ProductAnalysis, Sum
from anybit.onnx.analysis.sums import Parts, accumulator_of, beyond_float32, error_of, units_of
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, exponents_of
from anybit.onnx.analysis.view import View, given
from anybit.onnx.graph.constants import Array, are_powers_of_two


def product(node: ir.Node, view: View) -> tuple[ProductAnalysis, Carrier | None]:
    """What is known of a sum of products, and of its result."""
    found = ProductAnalysis(node, None)
    try:
        layout = layout_of(node, view)
        found = replace(found, layout=layout, macs=multiplications(node, layout, view))
        return _analyzed(found, layout, view)
    except ModelError as invalid:
        return replace(found, reason=f"invalid: {invalid}"), None


def _analyzed(
    found: ProductAnalysis, layout: Layout | None, view: View
) -> tuple[ProductAnalysis, Carrier | None]:
    node = found.node
    if layout is None:
        return replace(found, reason="its attributes are none that are known"), None
    x_value, weight_value = given(node, layout.x), given(node, layout.weight)
    if x_value is None or weight_value is None:
        return replace(found, reason="an input is missing"), None
    x = _along(view.carrier(x_value), layout.x_axis)
    weight = view.weight(weight_value, layout.weight_axis)
    found = replace(found, x=x, weight=weight)
    values = _values(weight_value, weight, view)
    if values is None:
        return replace(found, reason="the weight is computed when the model runs"), None
    if not view.afford(values.size):
        return replace(found, reason="too many products read too large weights"), None
    parts = Parts(layout.canonical(values))
    found = _with_codes(found, layout)
    return _judged(found, layout, values, parts, view)


def _along(x: Carrier | None, axis: int) -> Carrier | None:
    """x with channels along that axis, or without any."""
    return x if x is None or x.axis == axis else x.whole()


def _values(value: ir.Value, weight: Carrier | None, view: View) -> Array | None:
    """The values of a constant weight."""
    if weight is not None and weight.integers is not None and weight.grid is not None:
        return weight.grid.decode(weight.integers)
    array = view.array(value)
    if array is None or array.dtype != np.float32 or not np.isfinite(array).all():
        return None
    return array


def _with_codes(found: ProductAnalysis, layout: Layout) -> ProductAnalysis:
    x, weight = found.x, found.weight
    if weight is None or weight.codes is None or weight.integers is None:
        return found
    if not weight.codes.integral:
        return found
    zeropt = weight.broadcast(weight.codes.zeropt).astype(np.int32)
    codes = weight.integers.astype(np.int32) - zeropt
    found = replace(found, codes=codes, scale=_scale(weight, layout))
    if x is None or x.codes is None or found.scale is None or _x_scale(x, layout) is None:
        return found
    return replace(found, accumulator=accumulator_of(x, codes, weight, layout))


def _scale(weight: Carrier, layout: Layout) -> Array | None:
    """The scale of the weight per channel of the result; None if one sum has several."""
    codes = weight.codes
    assert codes is not None, "asked before"
    if codes.scale.ndim == 0 or np.all(codes.scale == codes.scale[0]):
        return np.asarray(codes.scale.flat[0])
    if weight.axis != layout.weight_axis or layout.y_axis is None:
        return None
    return np.tile(codes.scale, layout.groups if layout.kind == "ConvTranspose" else 1)


def _x_scale(x: Carrier, layout: Layout) -> Array | None:
    """The scale of x: one number, or one per group; None if one sum has several."""
    codes = x.codes
    assert codes is not None, "asked before"
    if codes.scale.ndim == 0 or np.all(codes.scale == codes.scale[0]):
        return np.asarray(codes.scale.flat[0])
    if layout.groups < 2 or codes.scale.size % layout.groups:
        return None
    grouped = codes.scale.reshape(layout.groups, -1)
    return grouped[:, 0] if np.all(grouped == grouped[:, :1]) else None


def _judged(
    found: ProductAnalysis, layout: Layout, values: Array, parts: Parts, view: View
) -> tuple[ProductAnalysis, Carrier | None]:
    bias_value = None if layout.bias is None else given(found.node, layout.bias)
    bias = view.carrier(bias_value)
    found = replace(found, bias=bias)
    x = found.x
    if x is None:
        return replace(found, reason="nothing is known of its input"), None
    reach = np.maximum(np.abs(x.lowest), np.abs(x.highest))
    magnitudes = parts.magnitudes(reach)
    magnitudes = np.where(np.isnan(magnitudes), np.inf, magnitudes)  # 0 times infinity
    added = _bias_values(bias_value, bias, parts.channels, view)
    error = error_of(magnitudes + np.abs(added if added is not None else np.inf), parts.terms)
    total = _sum(found, layout, values, parts, magnitudes, added)
    found = replace(found, sum=total, error=error)
    reason = _reason(found, total, added)
    found = replace(found, exact=not reason, reason=reason)
    return found, _result(found, layout, parts, total, added)


def _bias_values(
    value: ir.Value | None, bias: Carrier | None, channels: int, view: View
) -> Array | None:
    """What is added to each channel: 0 without a bias; None if it is computed, or broadcast."""
    if value is None:
        return np.zeros(channels)
    array = view.array(value)
    if array is None and bias is not None and bias.integers is not None and bias.grid is not None:
        array = bias.grid.decode(bias.integers)
    if array is None or array.dtype.kind not in "fiub" or not array.size:
        return None
    if array.size not in (1, channels) or array.size != max(array.shape[-1:], default=1):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,)).astype(np.float64)


def _sum(
    found: ProductAnalysis,
    layout: Layout,
    values: Array,
    parts: Parts,
    magnitudes: Array,
    added: Array | None,
) -> Sum:
    """How long the sums are, in units that all their products are multiples of."""
    x = found.x
    assert x is not None, "asked before"
    reach = magnitudes + (0 if added is None else np.abs(added))
    off = _off(x, found.weight)
    if x.exponent is None:
        return Sum(None, magnitudes, reach, parts.terms, off)
    unit = x.exponent + units_of(values, layout)
    if added is None:
        return Sum(unit, magnitudes / _powers(unit), reach, parts.terms, off)
    finer = np.where(added == 0, unit, np.minimum(unit, exponents_of(added)))
    longest = reach / _powers(finer)
    # A bias between the steps of the products makes sums longer, in its own steps.
    wrong = (longest > EXACT) & (reach / _powers(unit) <= EXACT)
    bias = float(added[wrong][0]) if wrong.any() else None
    return Sum(finer, longest, reach, parts.terms, off, bias)


def _powers(exponents: Array) -> Array:
    return np.exp2(exponents.astype(np.float64))


def _off(*carriers: Carrier | None) -> float | None:
    """A scale that is not a power of two."""
    for carrier in carriers:
        if carrier is not None and carrier.codes is not None:
            wrong = carrier.codes.scale[~are_powers_of_two(np.abs(carrier.codes.scale))]
            wrong = wrong[wrong != 0]
            if wrong.size:
                return float(wrong.flat[0])
    return None


def _reason(found: ProductAnalysis, total: Sum, added: Array | None) -> str:
    """Why float32 does not compute the sum exactly; "" if it does."""
    if not np.isfinite(total.reach).all():
        return "nothing bounds its input"
    if total.unit is None:
        return "its input is not on a grid"
    usable = (total.unit >= LOWEST_EXPONENT) & (total.unit <= 127)
    longest = float(total.longest.max())
    fits = not beyond_float32(total.reach)
    if longest <= EXACT and usable.all() and fits and added is not None:
        return ""
    if longest <= EXACT and not fits:
        return f"sums reach {float(total.reach.max()):.4g}, beyond the numbers of float32"
    if total.off is not None and longest > EXACT:
        return f"a step of {total.off:.6g} is not a power of two: products round"
    if total.bias is not None:
        return f"the bias {total.bias:.6g} is not a multiple of the products' step"
    if longest > EXACT:
        return f"sums reach {longest:.4g} units, more than the 2^24 that float32 holds exactly"
    if added is None:
        return "the bias is computed when the model runs"
    return "products are too small for float32"


def _result(
    found: ProductAnalysis, layout: Layout, parts: Parts, total: Sum, added: Array | None
) -> Carrier | None:
    """What is known of the sums: their codes where they are exact, bounds else."""
    x, error = found.x, found.error
    assert x is not None, "asked before"
    assert error is not None, "asked before"
    if added is None or not np.isfinite(total.reach).all():
        return None
    low, high = x.lowest, x.highest
    if layout.padded:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    lowest, highest = (end + added for end in parts.ends(low, high))
    sources = found.node.outputs[:1]
    if not found.exact or total.unit is None:
        # The sums above are rounded too, in float64.
        if np.isinf(error).any():
            return of_interval(-np.inf, np.inf, nan=True, sources=sources)
        lowest, highest = lowest - error, highest + error
        if layout.y_axis is None:
            lowest, highest = lowest.min(), highest.max()
        return of_interval(lowest, highest, layout.y_axis, nan=x.nan, sources=sources)
    unit = int(total.unit.min())
    counted = _counted(found, layout, added)
    if counted is not None:
        return replace(counted, exponent=unit, nan=x.nan)
    if layout.y_axis is None:
        lowest, highest = lowest.min(), highest.max()
    plain = of_interval(lowest, highest, layout.y_axis, exponent=unit, nan=x.nan, sources=sources)
    return on_units(plain)


def _are_multiples(x: Carrier, found: ProductAnalysis) -> bool:
    """Return whether both factors are their codes times their scales without a rounding.

    Else a sum of rounded multiples is exact, but need not be the rounded multiple of its code.
    """
    weight, codes = found.weight, x.codes
    assert codes is not None, "there is an accumulator"
    assert weight is not None, "there is an accumulator"
    assert weight.codes is not None, "there is an accumulator"
    assert weight.integers is not None, "there is an accumulator"
    assert weight.grid is not None, "there is an accumulator"
    assert found.codes is not None, "there is an accumulator"
    scales = np.asarray(weight.broadcast(weight.codes.scale), np.float64)
    values = weight.grid.decode(weight.integers).astype(np.float64)
    if not np.array_equal(found.codes * scales, values):
        return False
    farthest = np.maximum(*(np.abs(end) for end in codes.centered))
    with np.errstate(all="ignore"):
        units = np.abs(codes.scale.astype(np.float64)) / _powers(exponents_of(codes.scale))
    return bool(np.all(np.where(codes.scale == 0, 0, units) * farthest <= EXACT))


def _counted(found: ProductAnalysis, layout: Layout, added: Array) -> Carrier | None:
    """Exact sums with their accumulators for codes, where each channel has one scale."""
    x, accumulator = found.x, found.accumulator
    if accumulator is None or x is None or found.scale is None or layout.y_axis is None:
        return None
    if not _are_multiples(x, found):
        return None
    channels = accumulator.lowest.size
    x_scale = _x_scale(x, layout)
    assert x_scale is not None, "there is an accumulator"
    if x_scale.ndim:
        x_scale = np.repeat(x_scale, channels // x_scale.size)
    scale = np.asarray(x_scale * found.scale, np.float32)
    exact = x_scale.astype(np.float64) * np.asarray(found.scale, np.float64)
    if np.any(scale != exact) or np.any(scale == 0) or scale.size not in (1, channels):
        return None
    offset = added / scale
    if np.any(offset != np.rint(offset)) or np.any(np.abs(offset) > EXACT):
        return None
    assert x.codes is not None, "there is an accumulator"
    step = 1
    if not layout.padded and found.codes is not None:
        # A sum is a multiple of this above the lowest: those of signs are odd, or even.
        step = x.codes.step * divisor_of(found.codes)
    whole = offset.astype(np.int64)
    lowest, highest = accumulator.lowest + whole, accumulator.highest + whole
    if max(np.abs(lowest).max(), np.abs(highest).max()) > EXACT:
        return None
    if np.any((lowest - lowest.min()) % step):
        step = 1
    none = np.zeros((), np.float32)
    axis, codes = Codes(scale, none, lowest, highest, step).uniform(layout.y_axis)
    exact = codes.scale.astype(np.float64)
    ends = np.stack([codes.lowest * exact, codes.highest * exact])
    return Carrier(ends.min(axis=0), ends.max(axis=0), axis, None, False, codes)
