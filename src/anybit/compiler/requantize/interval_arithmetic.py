# SPDX-License-Identifier: Apache-2.0
"""Interval arithmetic of float nodes: bounds of a function on intervals of float32 numbers.

Monotonic nodes are evaluated at both ends. Sums and products of two functions are bounded by those
of their ends, rounded to float32 as the graph rounds them. Functions that runtimes approximate
are bounded with a margin.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import get_varying_inputs, is_monotone
from anybit.compiler.partition.element_functions import (
    AddConstant,
    ElementFunction,
    Mean,
    NodeChain,
)
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.op_traits import is_onnx_op

_EXACT = np.float32(0)
_MARGIN = np.float32(2**-19)
"""Bound of the error of an approximated function, many times that of common runtimes."""

_APPROXIMATED = frozenset({"Sigmoid", "Tanh", "Erf"})
"""Increasing functions with values in [-1, 1], whose implementations differ."""

_GATED = frozenset({"HardSwish", "Gelu"})
"""Functions x * gate(x) with an increasing gate in [0, 1]."""

_NEAR_ZERO = np.float32(2**-20)

PairFunction: TypeAlias = Callable[[Array, Array], Array]

_PAIRS: dict[str, PairFunction] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Min": np.minimum,
}
"""Operations that are monotonic in both operands, each with one rounding."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Intervals of float32 numbers, element by element.

    Attributes:
        low, high: The ends.
        valid: Whether the ends are bounds: all intermediate results are finite.
    """

    low: Array
    high: Array
    valid: Array

    @classmethod
    def of(cls, *ends: Array) -> "Interval":
        """Return the smallest interval with numbers in it."""
        low, high = reduce(np.minimum, ends), reduce(np.maximum, ends)  # NaN if any end is
        valid = np.isfinite(low) & np.isfinite(high)
        return cls(np.where(valid, low, 0), np.where(valid, high, 0), valid)


@dataclass(frozen=True, eq=False)
class _Step:
    """Nodes of one or two inputs.

    Attributes:
        xs, y: The inputs and the output.
        apply: The nodes as a function of these inputs, monotonic in each.
        margin: Bound of the error.
    """

    xs: tuple[ir.Value, ...]
    y: ir.Value
    apply: Callable[..., Array]
    margin: np.float32 = _EXACT

    def bound(self, *xs: Interval) -> Interval:
        """Return bounds of the results."""
        if len(xs) == 1:
            (x,) = xs
            y = Interval.of(self.apply(x.low), self.apply(x.high))
        else:
            one, other = xs
            corners = [
                self.apply(a, b) for a in (one.low, one.high) for b in (other.low, other.high)
            ]
            y = Interval.of(*corners)
        valid = y.valid & np.logical_and.reduce([x.valid for x in xs])
        return Interval(y.low - self.margin, y.high + self.margin, valid)


class _GatedStep(_Step):
    """A node that multiplies its input by an increasing function of it."""

    def bound(self, *xs: Interval) -> Interval:
        """Return bounds of the results."""
        (x,) = xs
        # The gate of 0 is not known.
        below = np.where(np.abs(x.low) < _NEAR_ZERO, -_NEAR_ZERO, x.low)
        above = np.where(np.abs(x.high) < _NEAR_ZERO, _NEAR_ZERO, x.high)
        gates = self.apply(below) / below - self.margin, self.apply(above) / above + self.margin
        y = Interval.of(*(end * gate for end in (x.low, x.high) for gate in gates))
        return replace(y, valid=y.valid & x.valid)


class Enclosure:
    """Bounds of a function of single elements on intervals.

    Raises:
        Unsupported: A node is neither monotonic nor an operation on two results.
    """

    def __init__(self, function: ElementFunction) -> None:
        self._parts: list[tuple[tuple[_Step, ...], ir.Value] | AddConstant | Mean] = []
        for part in function.parts:
            match part:
                case AddConstant() | Mean():
                    self._parts.append(part)
                case NodeChain() if len(part.xs) == 1:
                    self._parts.append((tuple(_split(part)), part.xs[0]))
                case _:
                    raise Unsupported("no interval bounds for its epilogue")

    def __call__(self, low: Array, high: Array) -> Interval:
        """Return bounds of the results for numbers from `low` to `high`."""
        with np.errstate(all="ignore"):
            interval = Interval.of(low, high)
            for part in self._parts:
                if isinstance(part, tuple):
                    steps, x = part
                    results = {x: interval}
                    for step in steps:
                        results[step.y] = step.bound(*(results[x] for x in step.xs))
                    interval = results[steps[-1].y] if steps else interval
                else:
                    valid = interval.valid
                    ends = Interval.of(part(interval.low), part(interval.high))
                    interval = replace(ends, valid=ends.valid & valid)
        return interval


def _split(part: NodeChain) -> Iterator[_Step]:
    """Yield the nodes of a chain as steps; monotonic nodes in a row are one."""
    reads = Counter(value for node in part.nodes for value in node.inputs)
    nodes: list[ir.Node] = []
    for node in part.nodes:
        varying = get_varying_inputs(node)
        approximated = is_onnx_op(node, *_APPROXIMATED)
        if nodes and (approximated or varying != list(nodes[-1].outputs) or reads[varying[0]] > 1):
            yield _make_step(part, nodes)
            nodes = []
        if len(varying) == 1 and not approximated and is_monotone((node,), varying[0]):
            nodes.append(node)
            continue
        if nodes:
            yield _make_step(part, nodes)
            nodes = []
        if approximated and varying == list(node.inputs):
            yield replace(_make_step(part, [node]), margin=_MARGIN)
        elif is_onnx_op(node, *_GATED):
            step = _make_step(part, [node])
            yield _GatedStep(step.xs, step.y, step.apply, _MARGIN)
        elif is_onnx_op(node, *_PAIRS) and len(node.inputs) == 2:
            xs = tuple(value for value in node.inputs if value in varying)
            if len(xs) != 2:
                raise Unsupported(f"no interval bounds for {node.op_type}")
            yield _Step(xs, node.outputs[0], _PAIRS[node.op_type])
        else:
            raise Unsupported(f"no interval bounds for {node.op_type}")
    if nodes:
        yield _make_step(part, nodes)


def _make_step(part: NodeChain, nodes: list[ir.Node]) -> _Step:
    (x,) = get_varying_inputs(nodes[0])
    y = nodes[-1].outputs[0]
    return _Step((x,), y, replace(part, nodes=tuple(nodes), xs=(x,), y=y))
