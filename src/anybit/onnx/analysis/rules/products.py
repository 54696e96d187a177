# SPDX-License-Identifier: Apache-2.0
"""Conv, ConvTranspose, Gemm and MatMul."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.abstract_values import (
    AbstractValue,
    CodeRanges,
    encode_units,
    from_interval,
)
from anybit.onnx.analysis.integers import find_divisor
from anybit.onnx.analysis.layouts import ProductLayout, find_layout
from anybit.onnx.analysis.products import ProductAnalysis, Sum
from anybit.onnx.analysis.sums import (
    WeightParts,
    bound_error,
    exceeds_float32,
    find_accumulator,
    find_units,
)
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, find_exponents
from anybit.onnx.analysis.view import View, get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import (
    Array,
    are_powers_of_two,
    follows_from_constants,
)
from anybit.onnx.graph.macs import count_macs


def infer_product(node: ir.Node, view: View) -> tuple[ProductAnalysis, AbstractValue | None]:
    """Return the analysis of a MatMul-like node, and its output."""
    analysis = ProductAnalysis(node, None)
    try:
        layout = find_layout(node, view)
        analysis = replace(analysis, layout=layout, macs=_count_macs(node, layout, view))
        return _analyze_factors(analysis, layout, view)
    except ModelError as invalid:
        return replace(analysis, reason=f"invalid: {invalid}"), None


def _analyze_factors(
    analysis: ProductAnalysis, layout: ProductLayout | None, view: View
) -> tuple[ProductAnalysis, AbstractValue | None]:
    node = analysis.node
    if layout is None:
        return replace(analysis, reason=_explain_layout(node)), None
    x_value, weight_value = get_input(node, layout.x), get_input(node, layout.weight)
    if x_value is None or weight_value is None:
        return replace(analysis, reason="an input is missing"), None
    x = _align_channels(view.get_abstract(x_value), layout.x_axis)
    weight = view.get_weight(weight_value, layout.weight_axis)
    analysis = replace(analysis, x=x, weight=weight)
    values = _read_weight(weight_value, weight, view)
    if values is None:
        return replace(analysis, reason=_explain_weight(weight_value)), None
    if not view.can_afford(values.size):
        return replace(analysis, reason="too many products read too large weights"), None
    parts = WeightParts(layout.canonical(values))
    analysis = _add_codes(analysis, layout)
    return _analyze_sums(analysis, layout, values, parts, view)


def _explain_layout(node: ir.Node) -> str:
    """Return the reason why the layout of a node is not known."""
    for name in ("alpha", "beta") if node.op_type == "Gemm" else ():
        factor = get_attribute(node, name, 1.0)
        if factor != 1:
            return f"Gemm with {name}={factor}: only 1 is supported"
    if get_input(node, 0) is None or get_input(node, 1) is None:
        return "an input is missing"
    return "its weights have no spatial axis, or an unknown rank"


def _align_channels(x: AbstractValue | None, axis: int) -> AbstractValue | None:
    """Return x with channels along an axis, or without any."""
    return x if x is None or x.axis == axis else x.merge_channels()


def _read_weight(value: ir.Value, weight: AbstractValue | None, view: View) -> Array | None:
    """Return the values of a constant weight."""
    if weight is not None and weight.integers is not None and weight.grid is not None:
        return weight.grid.decode(weight.integers)
    array = view.get_array(value)
    if array is None or array.dtype != np.float32 or not np.isfinite(array).all():
        return None
    return array


def _explain_weight(value: ir.Value) -> str:
    """Return why the values of a weight cannot be read."""
    if follows_from_constants(value):
        return (
            "its weights are neither finite float32 constants nor codes with one scale per "
            "channel: quantize them per channel"
        )
    return "the weight is computed when the model runs"


def _add_codes(analysis: ProductAnalysis, layout: ProductLayout) -> ProductAnalysis:
    x, weight = analysis.x, analysis.weight
    if weight is None or weight.codes is None or weight.integers is None:
        return analysis
    if not weight.codes.integral:
        return analysis
    zeropt = weight.broadcast(weight.codes.zeropt).astype(np.int32)
    codes = weight.integers.astype(np.int32) - zeropt
    scale = _find_scale(weight.codes, weight.axis, layout, codes)
    analysis = replace(analysis, codes=codes, scale=scale)
    if (
        x is None
        or x.codes is None
        or analysis.scale is None
        or _find_x_scale(x.codes, layout) is None
    ):
        return analysis
    return replace(analysis, accumulator=find_accumulator(x, codes, weight, layout))


def _find_scale(
    codes: CodeRanges, axis: int | None, layout: ProductLayout, weight: Array
) -> Array | None:
    """Return the scale of the weight per output channel; None if one sum has several."""
    if codes.scale.ndim == 0 or np.all(codes.scale == codes.scale[0]):
        return np.asarray(codes.scale.flat[0])
    is_depthwise = layout.kind == "ConvTranspose" and len(weight) == layout.groups
    if is_depthwise and axis == -weight.ndim:
        return np.repeat(codes.scale, weight.shape[1])
    if axis != layout.weight_axis or layout.y_axis is None:
        return None
    return np.tile(codes.scale, layout.groups if layout.kind == "ConvTranspose" else 1)


def _find_x_scale(codes: CodeRanges, layout: ProductLayout) -> Array | None:
    """Return the scale of x: one number, or one per group; None if one sum has several."""
    if codes.scale.ndim == 0 or np.all(codes.scale == codes.scale[0]):
        return np.asarray(codes.scale.flat[0])
    if layout.groups < 2 or codes.scale.size % layout.groups:
        return None
    grouped = codes.scale.reshape(layout.groups, -1)
    return grouped[:, 0] if np.all(grouped == grouped[:, :1]) else None


def _analyze_sums(
    analysis: ProductAnalysis, layout: ProductLayout, values: Array, parts: WeightParts, view: View
) -> tuple[ProductAnalysis, AbstractValue | None]:
    bias_value = None if layout.bias is None else get_input(analysis.node, layout.bias)
    bias = view.get_abstract(bias_value)
    analysis = replace(analysis, bias=bias)
    x = analysis.x
    if x is None:
        return replace(analysis, reason="nothing is known of its input"), None
    reach = np.maximum(np.abs(x.lowest), np.abs(x.highest))
    magnitudes = parts.sum_magnitudes(reach)
    magnitudes = np.where(np.isnan(magnitudes), np.inf, magnitudes)  # 0 times infinity
    added = _read_bias(bias_value, bias, parts.channels, view)
    error = bound_error(magnitudes + np.abs(added if added is not None else np.inf), parts.terms)
    total = _analyze_exactness(x, analysis.weight, layout, values, parts, magnitudes, added)
    analysis = replace(analysis, sum=total, error=error)
    reason = _explain_rounding(analysis, total, added)
    analysis = replace(analysis, exact=not reason, reason=reason)
    return analysis, _make_output(analysis, x, error, layout, parts, total, added)


def _read_bias(
    value: ir.Value | None, bias: AbstractValue | None, channels: int, view: View
) -> Array | None:
    """Return the bias per channel: 0 without one; None if it is computed or broadcast."""
    if value is None:
        return np.zeros(channels)
    array = view.get_array(value)
    if array is None and bias is not None and bias.integers is not None and bias.grid is not None:
        array = bias.grid.decode(bias.integers)
    if array is None or array.dtype.kind not in "fiub" or not array.size:
        return None
    if array.size not in (1, channels) or array.size != max(array.shape[-1:], default=1):
        return None
    return np.broadcast_to(array.reshape(-1), (channels,)).astype(np.float64)


def _analyze_exactness(
    x: AbstractValue,
    weight: AbstractValue | None,
    layout: ProductLayout,
    values: Array,
    parts: WeightParts,
    magnitudes: Array,
    added: Array | None,
) -> Sum:
    """Return the exactness of the sums, in units that all their products are multiples of."""
    reach = magnitudes + (0 if added is None else np.abs(added))
    inexact = _find_inexact_scale(x, weight)
    if x.exponent is None:
        return Sum(None, magnitudes, reach, parts.terms, inexact)
    unit = x.exponent + find_units(values, layout)
    if added is None:
        return Sum(unit, magnitudes / _to_powers(unit), reach, parts.terms, inexact)
    finer = np.where(added == 0, unit, np.minimum(unit, find_exponents(added)))
    longest = reach / _to_powers(finer)
    # A bias that is not a multiple of the unit of the products needs a smaller unit.
    wrong = (longest > EXACT) & (reach / _to_powers(unit) <= EXACT)
    bias = float(added[wrong][0]) if wrong.any() else None
    return Sum(finer, longest, reach, parts.terms, inexact, bias)


def _to_powers(exponents: Array) -> Array:
    return np.exp2(exponents.astype(np.float64))


def _find_inexact_scale(*abstracts: AbstractValue | None) -> float | None:
    """Return a scale that is not a power of two."""
    for abstract in abstracts:
        if abstract is not None and abstract.codes is not None:
            wrong = abstract.codes.scale[~are_powers_of_two(np.abs(abstract.codes.scale))]
            wrong = wrong[wrong != 0]
            if wrong.size:
                return float(wrong.flat[0])
    return None


def _explain_rounding(analysis: ProductAnalysis, total: Sum, added: Array | None) -> str:
    """Return why float32 does not compute the sum exactly; "" if it does."""
    if not np.isfinite(total.reach).all():
        return "nothing bounds its input"
    if total.unit is None:
        return "its input is not on a grid"
    usable = (total.unit >= LOWEST_EXPONENT) & (total.unit <= 127)
    longest = float(total.longest.max())
    fits = not exceeds_float32(total.reach)
    if longest <= EXACT and usable.all() and fits and added is not None:
        return ""
    if longest <= EXACT and not fits:
        return f"sums reach {float(total.reach.max()):.4g}, beyond the numbers of float32"
    if total.inexact_scale is not None and longest > EXACT:
        return f"a step of {total.inexact_scale:.6g} is not a power of two: products round"
    if total.bias is not None:
        return f"the bias {total.bias:.6g} is not a multiple of the products' step"
    if longest > EXACT:
        return f"sums reach {longest:.4g} units, more than the 2^24 that float32 holds exactly"
    if added is None:
        return "the bias is computed when the model runs"
    return "products are too small for float32"


def _make_output(
    analysis: ProductAnalysis,
    x: AbstractValue,
    error: Array,
    layout: ProductLayout,
    parts: WeightParts,
    total: Sum,
    added: Array | None,
) -> AbstractValue | None:
    """Return the output: codes if the sums are exact, bounds otherwise."""
    if added is None or not np.isfinite(total.reach).all():
        return None
    low, high = x.lowest, x.highest
    if layout.padded:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    lowest, highest = (end + added for end in parts.bound_sums(low, high))
    sources = analysis.node.outputs[:1]
    if not analysis.exact or total.unit is None:
        # The sums above are rounded, too, in float64.
        if np.isinf(error).any():
            return from_interval(-np.inf, np.inf, nan=True, sources=sources)
        lowest, highest = lowest - error, highest + error
        if layout.y_axis is None:
            lowest, highest = lowest.min(), highest.max()
        return from_interval(lowest, highest, layout.y_axis, nan=x.nan, sources=sources)
    unit = int(total.unit.min())
    counted = _encode_sums(analysis, layout, added)
    if counted is not None:
        return replace(counted, exponent=unit, nan=x.nan)
    if layout.y_axis is None:
        lowest, highest = lowest.min(), highest.max()
    plain = from_interval(lowest, highest, layout.y_axis, exponent=unit, nan=x.nan, sources=sources)
    return encode_units(plain)


def _are_multiples(x: AbstractValue, analysis: ProductAnalysis) -> bool:
    """Return whether both factors are their codes times their scales, without rounding.

    Otherwise a sum of rounded multiples is exact, but may differ from the rounded multiple of its
    code.
    """
    weight, codes = analysis.weight, x.codes
    if codes is None or analysis.codes is None or weight is None or weight.codes is None:
        return False
    if weight.integers is None or weight.grid is None:
        return False
    scales = np.asarray(weight.broadcast(weight.codes.scale), np.float64)
    values = weight.grid.decode(weight.integers).astype(np.float64)
    if not np.array_equal(analysis.codes * scales, values):
        return False
    farthest = np.maximum(*(np.abs(end) for end in codes.centered))
    with np.errstate(all="ignore"):
        units = np.abs(codes.scale.astype(np.float64)) / _to_powers(find_exponents(codes.scale))
    return bool(np.all(np.where(codes.scale == 0, 0, units) * farthest <= EXACT))


def _encode_sums(
    analysis: ProductAnalysis, layout: ProductLayout, added: Array
) -> AbstractValue | None:
    """Return exact sums with their accumulators as codes, if each channel has one scale."""
    x, accumulator = analysis.x, analysis.accumulator
    if accumulator is None or x is None or analysis.scale is None or layout.y_axis is None:
        return None
    x_scale = None if x.codes is None else _find_x_scale(x.codes, layout)
    if x.codes is None or x_scale is None or not _are_multiples(x, analysis):
        return None
    channels = accumulator.lowest.size
    if x_scale.ndim:
        x_scale = np.repeat(x_scale, channels // x_scale.size)
    scale = np.asarray(x_scale * analysis.scale, np.float32)
    exact = x_scale.astype(np.float64) * np.asarray(analysis.scale, np.float64)
    if np.any(scale != exact) or np.any(scale == 0) or scale.size not in (1, channels):
        return None
    offset = added / scale
    if np.any(offset != np.rint(offset)) or np.any(np.abs(offset) > EXACT):
        return None
    step = 1
    if not layout.padded and analysis.codes is not None:
        # The step of the sums above the lowest one: sums of signs are all odd, or all even.
        step = x.codes.step * find_divisor(analysis.codes)
    whole = offset.astype(np.int64)
    lowest, highest = accumulator.lowest + whole, accumulator.highest + whole
    if max(np.abs(lowest).max(), np.abs(highest).max()) > EXACT:
        return None
    if np.any((lowest - lowest.min()) % step):
        step = 1
    none = np.zeros((), np.float32)
    axis, codes = CodeRanges(scale, none, lowest, highest, step).align(layout.y_axis)
    exact = codes.scale.astype(np.float64)
    ends = np.stack([codes.lowest * exact, codes.highest * exact])
    return AbstractValue(ends.min(axis=0), ends.max(axis=0), axis, None, False, codes)


def _count_macs(node: ir.Node, layout: ProductLayout | None, view: View) -> int | None:
    if layout is None:
        return None
    x, weight = (view.get_sizes(get_input(node, index)) for index in (0, 1))
    return count_macs(node, x, weight, view.get_sizes(node.outputs[0]))
