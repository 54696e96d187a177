# SPDX-License-Identifier: Apache-2.0
"""Nodes before a QuantizeLinear that belong to the quantizer."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.quantizers.nodes import Scaling, get_dtype
from anybit.ops.grids import get_channels

# Up to this magnitude, RN(RN(n * scale) / scale) rounds to n.
_MOST_CODE = 2.0**22


@dataclass(frozen=True)
class ClampLimits:
    """The value before its limits, and the lowest and highest codes of the limits, per channel."""

    x: ir.Value
    lowest: Array
    highest: Array


def find_limits(x: ir.Value, scaling: Scaling) -> ClampLimits | None:
    """Return the limits of a Max and a Min, or a Clip, if they are exactly codes times scale."""
    lowest, highest = np.full((), -np.inf), np.full((), np.inf)
    is_limited = False
    for _ in range(2):
        node = x.producer()
        if node is None or node.domain:
            break
        bounds = _find_bounds(node)
        if bounds is None:
            break
        before, low, high = bounds
        low_codes = _encode_bound(low, scaling, before, -np.inf)
        high_codes = _encode_bound(high, scaling, before, np.inf)
        if low_codes is None or high_codes is None or before.dtype != ir.DataType.FLOAT:
            break
        lowest, highest = np.maximum(lowest, low_codes), np.minimum(highest, high_codes)
        x, is_limited = before, True
    if not is_limited or np.any(lowest > highest):
        return None
    return ClampLimits(x, lowest, highest)


def _find_bounds(node: ir.Node) -> tuple[ir.Value, Array | None, Array | None] | None:
    """Return the value that a node limits, and its lower and upper bound."""
    inputs = list(node.inputs)
    if node.op_type == "Clip" and 1 <= len(inputs) <= 3 and inputs[0] is not None:
        if {"min", "max"} & set(node.attributes):  # before opset 11
            return None
        bounds = [*inputs[1:], None, None][:2]
        if any(value is not None and not is_constant(value) for value in bounds):
            return None
        low, high = (None if value is None else read_array(value) for value in bounds)
        return inputs[0], low, high
    if node.op_type in ("Max", "Min") and len(inputs) == 2 and all(inputs):
        constants = [value for value in inputs if value is not None and is_constant(value)]
        others = [value for value in inputs if value is not None and not is_constant(value)]
        if len(constants) == 1 and len(others) == 1:
            limit = read_array(constants[0])
            below = node.op_type == "Max"
            return others[0], limit if below else None, None if below else limit
    return None


def _encode_bound(
    bound: Array | None, scaling: Scaling, x: ir.Value, absent: float
) -> Array | None:
    """Return the codes of a bound, less the zero-point; None if it is not on the grid."""
    if bound is None:
        return np.asarray(absent)
    if bound.dtype != np.float32 or not _fits(bound, x):
        return None
    layout = get_channels(scaling.scale, bound)
    if layout is None or layout.axis != scaling.layout.axis:
        return None
    with np.errstate(all="ignore"):
        codes = np.rint(layout.zeropt / layout.scale)
        exact = (codes * layout.scale == layout.zeropt) & (np.abs(codes) < _MOST_CODE)
    return codes.astype(np.float64) if np.all(exact) else None


def _fits(array: Array, x: ir.Value) -> bool:
    """Return whether an array broadcasts to x without enlarging it."""
    if array.ndim == 0:
        return True
    if x.shape is None or len(x.shape) < array.ndim:
        return False
    sizes = list(x.shape)[-array.ndim :]
    return all(size in (1, whole) for size, whole in zip(array.shape, sizes, strict=True))


def find_sign_source(quantize: ir.Node, scaling: Scaling) -> ir.Value | None:
    """Return x if a node quantizes Where(x >= 0, a, b), where a and b have the codes 1 and -1."""
    where = _find_producer(quantize, 0, "Where", 3)
    compare = _find_producer(where, 0, "GreaterOrEqual", 2) if where is not None else None
    if where is None or compare is None or not scaling.type.holds(-1, 1):
        return None
    x, zero = compare.inputs
    if x is None or get_dtype(x) != ir.DataType.FLOAT or np.any(scaling.layout.zeropt):
        return None
    plus, minus = (_read_scalar(where.inputs[index], x) for index in (1, 2))
    if scaling.layout.axis is not None or _read_scalar(zero, x) != 0:
        return None
    scale = float(scaling.layout.scale)
    return x if (plus, minus) == (scale, -scale) else None


def _find_producer(node: ir.Node, index: int, kind: str, inputs: int) -> ir.Node | None:
    value = node.inputs[index]
    producer = value.producer() if value is not None else None
    if producer is None or (producer.op_type, len(producer.inputs)) != (kind, inputs):
        return None
    return producer if not producer.domain and all(producer.inputs) else None


def _read_scalar(value: ir.Value | None, x: ir.Value) -> float | None:
    """Return the only number of a float32 constant that does not enlarge x."""
    if value is None or not is_constant(value):
        return None
    array = read_array(value)
    usable = array.size == 1 and array.dtype == np.float32 and _fits(array, x)
    return float(array.reshape(())) if usable else None
