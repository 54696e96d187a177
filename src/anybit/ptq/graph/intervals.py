# SPDX-License-Identifier: Apache-2.0
"""Bounds of activations that hold for every input, also where activations are quantized.

Quantization preserves signs, because 0 has a code and rounding is monotonic. It does not preserve
other bounds. A function of a single tensor has the bounds that follow from its nodes; the result of
any other node has only a sign.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import get_varying_inputs
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import OpTrait, has_trait

FloatInterval: TypeAlias = tuple[float, float]

UNKNOWN: FloatInterval = (-math.inf, math.inf)
_POSITIVE: FloatInterval = (0.0, math.inf)

# Larger constants are tables and weights; their bounds do not matter.
_LARGEST_CONSTANT = 2**20

# The result has the sign that all elements of the first input have.
_SIGN_KEEPING = OpTrait.DATA_MOVEMENT | OpTrait.SELECTION | OpTrait.MEAN | OpTrait.REDUCTION


class Intervals:
    """Intervals of the values of a graph, whose nodes are in topological order."""

    def __init__(self, graph: ir.Graph) -> None:
        self._intervals: dict[ir.Value, FloatInterval] = {}
        for node in graph:
            interval = self._bound_node(node)
            if interval != UNKNOWN and node.outputs:
                self._intervals[node.outputs[0]] = interval

    def __call__(self, value: ir.Value | None) -> FloatInterval:
        """Return the lowest and the highest number that a value can hold."""
        if value is None:
            return UNKNOWN
        if is_constant(value):
            return _bound_constant(value)
        return self._intervals.get(value, UNKNOWN)

    def _bound_node(self, node: ir.Node) -> FloatInterval:
        if node.domain or not node.inputs:
            return UNKNOWN
        interval = self._bound_operator(node)
        if math.isnan(interval[0]) or math.isnan(interval[1]):
            return UNKNOWN
        is_function = has_trait(node, OpTrait.ELEMENTWISE | OpTrait.RECTIFIER)
        is_unary = is_function and len(get_varying_inputs(node)) == 1
        return interval if is_unary else _keep_sign(interval)

    def _bound_operator(self, node: ir.Node) -> FloatInterval:
        operator, x = node.op_type, node.inputs[0]
        if _is_square(node):
            return _POSITIVE
        if operator in _UNARY:
            return _UNARY[operator](self(x))
        if operator in _BINARY and len(node.inputs) == 2:
            return _BINARY[operator](self(x), self(node.inputs[1]))
        if operator == "Clip":
            return _bound_clip(node, [self(value) for value in node.inputs])
        if operator in ("Concat", "Max", "Min"):
            return _bound_variadic(operator, [self(value) for value in node.inputs])
        if has_trait(node, OpTrait.NON_NEGATIVE):
            return _POSITIVE
        return self(x) if has_trait(node, _SIGN_KEEPING) else UNKNOWN


def _bound_constant(value: ir.Value) -> FloatInterval:
    tensor = value.const_value
    if tensor is None or tensor.size > _LARGEST_CONSTANT:
        return UNKNOWN
    array = read_array(value)
    if array.dtype.kind not in "fiu" or not array.size or np.isnan(array).any():
        return UNKNOWN
    return float(array.min()), float(array.max())


def _keep_sign(interval: FloatInterval) -> FloatInterval:
    """Return the numbers with the sign of an interval; all numbers if it has both signs."""
    if interval[0] >= 0:
        return _POSITIVE
    return (-math.inf, 0.0) if interval[1] <= 0 else UNKNOWN


def _is_square(node: ir.Node) -> bool:
    """Return whether a node multiplies a value by itself, or raises it to an even power."""
    if node.op_type == "Mul":
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    exponent = node.inputs[1] if node.op_type == "Pow" and len(node.inputs) == 2 else None
    if exponent is None or not is_constant(exponent):
        return False
    return bool(np.all(np.mod(read_array(exponent).astype(np.float64), 2) == 0))


def _multiply(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    # 0 times an infinite bound is 0: values are finite.
    products = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(products), max(products)


def _divide(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    if b[0] <= 0 <= b[1]:
        return _POSITIVE if a[0] >= 0 and b[0] >= 0 else UNKNOWN
    return _multiply(a, (1 / b[1], 1 / b[0]))


def _raise_to_power(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    if a[0] < 0:
        return UNKNOWN
    if a[0] == 0 or b[0] != b[1]:
        return _POSITIVE
    with np.errstate(all="ignore"):
        ends = [float(np.power(np.float64(end), b[0])) for end in a]
    return min(ends), max(ends)


def _exponentiate(a: FloatInterval) -> FloatInterval:
    low, high = (math.exp(min(max(end, -700.0), 700.0)) for end in a)
    return (0.0 if a[0] < -700 else low), (math.inf if a[1] > 700 else high)


def _take_root(a: FloatInterval) -> FloatInterval:
    return math.sqrt(max(a[0], 0.0)), math.sqrt(max(a[1], 0.0))


def _take_magnitude(a: FloatInterval) -> FloatInterval:
    high = max(-a[0], a[1])
    return (0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), high


_UNARY: dict[str, Callable[[FloatInterval], FloatInterval]] = {
    "Abs": _take_magnitude,
    "Exp": _exponentiate,
    "Neg": lambda a: (-a[1], -a[0]),
    "Reciprocal": lambda a: _divide((1.0, 1.0), a),
    "Relu": lambda a: (max(a[0], 0.0), max(a[1], 0.0)),
    "Sqrt": _take_root,
}
_BINARY: dict[str, Callable[[FloatInterval, FloatInterval], FloatInterval]] = {
    "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "Div": _divide,
    "Mul": _multiply,
    "Pow": _raise_to_power,
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
}


def _bound_clip(node: ir.Node, inputs: Sequence[FloatInterval]) -> FloatInterval:
    low, high = get_attribute(node, "min", -math.inf), get_attribute(node, "max", math.inf)
    if len(inputs) > 1 and node.inputs[1] is not None:
        low = inputs[1][0]
    if len(inputs) > 2 and node.inputs[2] is not None:
        high = inputs[2][1]
    x = inputs[0] if inputs else UNKNOWN
    return min(max(x[0], low), high), max(min(x[1], high), low)


def _bound_variadic(operator: str, inputs: Sequence[FloatInterval]) -> FloatInterval:
    """Return the bounds of Concat, Max or Min."""
    lows, highs = zip(*inputs, strict=True)
    if operator == "Concat":
        return min(lows), max(highs)
    return (max(lows), max(highs)) if operator == "Max" else (min(lows), min(highs))
