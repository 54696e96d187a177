# SPDX-License-Identifier: Apache-2.0
"""Add, Sub, Mul and Div: with a constant, or of two tensors."""

from collections.abc import Callable
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
from anybit.onnx.analysis.rules.elementwise import apply_function, get_sources
from anybit.onnx.analysis.sums import exceeds_float32
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, find_exponents
from anybit.onnx.analysis.view import View, find_constant_channels, get_input
from anybit.onnx.graph.constants import Array, are_powers_of_two

_MOST_SOURCES = 2


def infer_arithmetic(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of one of the four operations."""
    for at in (1, 0):
        array = view.get_array(get_input(node, at))
        layout = None if array is None else find_constant_channels(array)
        if layout is not None and array is not None and array.dtype == np.float32:
            result = _combine_with_constant(node, view, at, *layout)
            if result is not None:
                return result
    return _combine_tensors(node, view)


def _combine_with_constant(
    node: ir.Node, view: View, at: int, axis: int | None, operand: Array
) -> AbstractValue | None:
    """Return the result with a constant operand, which is input `at`."""
    first, second = get_input(node, 0), get_input(node, 1)
    if first is None or second is None or not np.isfinite(operand).all():
        return None
    x = view.get_abstract(second if at == 0 else first)
    if x is None:
        return None
    compute = _OPERATIONS[node.op_type]
    divisor = (operand, operand) if at == 1 else (x.lowest, x.highest)
    if node.op_type == "Div" and _has_zero(*divisor):
        return None

    def function(values: Array) -> Array:
        return np.asarray(compute(operand, values) if at == 0 else compute(values, operand))

    def scales(codes: CodeRanges) -> list[tuple[Array, Array]]:
        return _list_scales(node.op_type, codes, operand, at)

    result = apply_function(node, view, function, axis, operand, scales=scales, at=1 - at)
    if result is None or result.codes is not None:
        return result
    exponent = _find_exponent(node.op_type, x, operand, at)
    return encode_units(replace(result, exponent=exponent)) if result.exponent is None else result


def _has_zero(lowest: Array, highest: Array) -> bool:
    return bool(np.any((lowest <= 0) & (highest >= 0)))


def _list_scales(
    kind: str, codes: CodeRanges, operand: Array, at: int
) -> list[tuple[Array, Array]]:
    """Return candidate scales and zero-points of the result."""
    scale, zeropt = codes.scale, codes.zeropt
    if kind == "Mul":
        return [(np.asarray(scale * operand), zeropt)]
    if kind == "Div":
        return [(np.asarray(scale / operand), zeropt)] if at == 1 else []
    shift = np.rint(np.asarray(operand / scale))
    moved = [(scale, np.asarray(zeropt - (shift if kind == "Add" else -shift), np.float32))]
    return moved if kind == "Add" or at == 1 else []


def _find_exponent(kind: str, x: AbstractValue, operand: Array, at: int) -> int | None:
    """Return the exponent that results are multiples of, rounded or not."""
    if x.exponent is None:
        return None
    if kind == "Div":
        if at == 0 or not are_powers_of_two(np.abs(operand)).all():
            return None
        exponent = x.exponent - int(find_exponents(operand).max())
    elif kind == "Mul":
        nonzero = operand[operand != 0]
        exponent = (
            x.exponent + int(find_exponents(nonzero).min(initial=2**10)) if nonzero.size else 0
        )
    else:
        nonzero = operand[operand != 0]
        exponent = int(find_exponents(nonzero).min(initial=x.exponent))
    return max(exponent, LOWEST_EXPONENT)


def _combine_tensors(node: ir.Node, view: View) -> AbstractValue | None:
    first, second = get_input(node, 0), get_input(node, 1)
    if first is None or second is None:
        return None
    abstracts = view.get_abstract(first), view.get_abstract(second)
    if abstracts[0] is None or abstracts[1] is None:
        return None
    a, b = _align_channels(abstracts[0], abstracts[1])
    if not a.bounded or not b.bounded:
        return None
    bounds = _combine_bounds(node.op_type, a, b)
    if bounds is None:
        return None
    low, high = bounds
    sources = _merge_sources(first, a, second, b)
    axis = a.axis if a.axis is not None else b.axis
    exponent = _find_common_exponent(node.op_type, a, b)
    reach = np.maximum(-low, high).max()
    nan = exceeds_float32(reach)
    if exponent is None or nan or reach > EXACT * 2.0**exponent:
        low, high = (_round_outward(bound, way) for bound, way in ((low, -np.inf), (high, np.inf)))
        result = from_interval(low, high, axis, exponent=exponent, sources=sources, nan=nan)
        return replace(result, exponent=None) if nan else result
    codes = _add_codes(node.op_type, a, b)
    if codes is not None:
        found_codes = from_codes(codes, axis)
        if found_codes is not None:
            return replace(found_codes, sources=sources)
    return encode_units(from_interval(low, high, axis, exponent=exponent, sources=sources))


def _align_channels(a: AbstractValue, b: AbstractValue) -> tuple[AbstractValue, AbstractValue]:
    """Return two tensors with the same channels; one without them is expanded."""
    if a.axis is None or b.axis is None or (a.axis == b.axis and a.lowest.size == b.lowest.size):
        return a, b
    return a.merge_channels(), b.merge_channels()


def _combine_bounds(kind: str, a: AbstractValue, b: AbstractValue) -> tuple[Array, Array] | None:
    match kind:
        case "Add":
            return a.lowest + b.lowest, a.highest + b.highest
        case "Sub":
            return a.lowest - b.highest, a.highest - b.lowest
        case "Mul":
            low, high = b.lowest, b.highest
        case _:
            if _has_zero(b.lowest, b.highest):
                return None
            low, high = 1 / b.highest, 1 / b.lowest
    corners = (x * y for x in (a.lowest, a.highest) for y in (low, high))
    stacked = np.stack(np.broadcast_arrays(*corners))
    return stacked.min(axis=0), stacked.max(axis=0)


def _round_outward(bound: Array, way: float) -> Array:
    """Return the next float32 in a direction."""
    return np.asarray(np.nextafter(np.float32(bound), np.float32(way)), np.float64)


def _find_common_exponent(kind: str, a: AbstractValue, b: AbstractValue) -> int | None:
    if a.exponent is None or b.exponent is None or kind == "Div":
        return None
    if kind == "Mul":
        return max(a.exponent + b.exponent, LOWEST_EXPONENT)
    return min(a.exponent if a.reach else b.exponent, b.exponent if b.reach else a.exponent)


def _add_codes(kind: str, a: AbstractValue, b: AbstractValue) -> CodeRanges | None:
    """Return the codes of a sum of two tensors with one scale: they add up, with zero-points 0."""
    if kind not in ("Add", "Sub") or a.codes is None or b.codes is None:
        return None
    if not a.codes.integral or not b.codes.integral:
        return None
    if not np.all(a.codes.scale == b.codes.scale):
        return None
    (low, high), (other_low, other_high) = a.codes.centered, b.codes.centered
    if kind == "Sub":
        other_low, other_high = -other_high, -other_low
    scale = a.codes.scale if a.codes.scale.ndim else b.codes.scale
    step = int(np.gcd(a.codes.step, b.codes.step))
    lowest = low + other_low
    if np.any((lowest - lowest.min()) % step):
        step = 1
    return CodeRanges(scale, np.zeros((), np.float32), lowest, high + other_high, step)


def _merge_sources(
    first: ir.Value, a: AbstractValue, second: ir.Value, b: AbstractValue
) -> tuple[ir.Value, ...]:
    """Return the tensors that determine the result; () if there are too many."""
    tensors: dict[ir.Value, None] = {}
    for value, abstract in ((first, a), (second, b)):
        own = get_sources(value, abstract)
        constant = (
            np.array_equal(abstract.lowest, abstract.highest) or abstract.integers is not None
        )
        if not own and not constant and not value.is_initializer():
            return ()
        tensors |= dict.fromkeys(own)
    return tuple(tensors) if len(tensors) <= _MOST_SOURCES else ()


_OPERATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Div": np.divide,
    "Mul": np.multiply,
    "Sub": np.subtract,
}
