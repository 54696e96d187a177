# SPDX-License-Identifier: Apache-2.0
"""Bounds of activations that hold for every input, and also where activations are quantized.

A quantizer keeps signs: 0 has a code, and rounding keeps order. It does not keep other bounds. So a
function of a single tensor has the bounds that follow from its nodes; the result of any other node
has only a sign.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import varying_inputs
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.op_traits import OpTrait, has_trait

Interval: TypeAlias = tuple[float, float]

UNKNOWN: Interval = (-math.inf, math.inf)
_POSITIVE: Interval = (0.0, math.inf)

# Larger constants are tables and weights, which are not read for their bounds.
_LARGEST_CONSTANT = 2**20

# The result has the sign that all elements of the first input have.
_SIGN_KEEPING = OpTrait.DATA_MOVEMENT | OpTrait.SELECTION | OpTrait.MEAN | OpTrait.REDUCTION


class Intervals:
    """Intervals of the values of a graph, whose nodes are in topological order."""

    def __init__(self, graph: ir.Graph) -> None:
        self._known: dict[ir.Value, Interval] = {}
        for node in graph:
            found = self._of_node(node)
            if found != UNKNOWN and node.outputs:
                self._known[node.outputs[0]] = found

    def __call__(self, value: ir.Value | None) -> Interval:
        """Return the lowest and the highest number that a value can hold."""
        if value is None:
            return UNKNOWN
        if is_constant(value):
            return _of_constant(value)
        return self._known.get(value, UNKNOWN)

    def _of_node(self, node: ir.Node) -> Interval:
        if node.domain or not node.inputs:
            return UNKNOWN
        found = self._of_operator(node)
        if math.isnan(found[0]) or math.isnan(found[1]):
            return UNKNOWN
        is_function = has_trait(node, OpTrait.ELEMENTWISE | OpTrait.RECTIFIER)
        return found if is_function and len(varying_inputs(node)) == 1 else _sign(found)

    def _of_operator(self, node: ir.Node) -> Interval:
        kind, x = node.op_type, node.inputs[0]
        if _is_square(node):
            return _POSITIVE
        if kind in _UNARY:
            return _UNARY[kind](self(x))
        if kind in _BINARY and len(node.inputs) == 2:
            return _BINARY[kind](self(x), self(node.inputs[1]))
        if kind == "Clip":
            return _clipped(node, [self(value) for value in node.inputs])
        if kind in ("Concat", "Max", "Min"):
            return _joined(kind, [self(value) for value in node.inputs])
        if has_trait(node, OpTrait.NON_NEGATIVE):
            return _POSITIVE
        return self(x) if has_trait(node, _SIGN_KEEPING) else UNKNOWN


def _of_constant(value: ir.Value) -> Interval:
    tensor = value.const_value
    if tensor is None or tensor.size > _LARGEST_CONSTANT:
        return UNKNOWN
    array = array_of(value)
    if array.dtype.kind not in "fiu" or not array.size or np.isnan(array).any():
        return UNKNOWN
    return float(array.min()), float(array.max())


def _sign(of: Interval) -> Interval:
    """Return the half line of numbers of one sign."""
    if of[0] >= 0:
        return _POSITIVE
    return (-math.inf, 0.0) if of[1] <= 0 else UNKNOWN


def _is_square(node: ir.Node) -> bool:
    if node.op_type == "Mul":
        return len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
    exponent = node.inputs[1] if node.op_type == "Pow" and len(node.inputs) == 2 else None
    if exponent is None or not is_constant(exponent):
        return False
    return bool(np.all(np.mod(array_of(exponent).astype(np.float64), 2) == 0))


def _products(a: Interval, b: Interval) -> Interval:
    # 0 times an endless bound is 0: the bound itself is never reached.
    found = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(found), max(found)


def _quotients(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0 <= b[1]:
        return _POSITIVE if a[0] >= 0 and b[0] >= 0 else UNKNOWN
    return _products(a, (1 / b[1], 1 / b[0]))


def _power(a: Interval, b: Interval) -> Interval:
    if a[0] < 0:
        return UNKNOWN
    if a[0] == 0 or b[0] != b[1]:
        return _POSITIVE
    with np.errstate(all="ignore"):
        ends = [float(np.power(np.float64(each), b[0])) for each in a]
    return min(ends), max(ends)


def _exponential(a: Interval) -> Interval:
    low, high = (math.exp(min(max(each, -700.0), 700.0)) for each in a)
    return (0.0 if a[0] < -700 else low), (math.inf if a[1] > 700 else high)


def _root(a: Interval) -> Interval:
    return math.sqrt(max(a[0], 0.0)), math.sqrt(max(a[1], 0.0))


def _absolute(a: Interval) -> Interval:
    high = max(-a[0], a[1])
    return (0.0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), high


_UNARY: dict[str, Callable[[Interval], Interval]] = {
    "Abs": _absolute,
    "Exp": _exponential,
    "Neg": lambda a: (-a[1], -a[0]),
    "Reciprocal": lambda a: _quotients((1.0, 1.0), a),
    "Relu": lambda a: (max(a[0], 0.0), max(a[1], 0.0)),
    "Sqrt": _root,
}
_BINARY: dict[str, Callable[[Interval, Interval], Interval]] = {
    "Add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "Div": _quotients,
    "Mul": _products,
    "Pow": _power,
    "Sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
}


def _clipped(node: ir.Node, inputs: Sequence[Interval]) -> Interval:
    low, high = attribute_of(node, "min", -math.inf), attribute_of(node, "max", math.inf)
    if len(inputs) > 1 and node.inputs[1] is not None:
        low = inputs[1][0]
    if len(inputs) > 2 and node.inputs[2] is not None:
        high = inputs[2][1]
    x = inputs[0] if inputs else UNKNOWN
    return min(max(x[0], low), high), max(min(x[1], high), low)


def _joined(kind: str, inputs: Sequence[Interval]) -> Interval:
    lows, highs = zip(*inputs, strict=True)
    if kind == "Concat":
        return min(lows), max(highs)
    return (max(lows), max(highs)) if kind == "Max" else (min(lows), min(highs))
