# SPDX-License-Identifier: Apache-2.0
"""Nodes that stay float32 because a quantization step is too coarse for their argument.

Near 0 a quotient, a reciprocal, a root or a logarithm changes more within one step of a quantizer
than everywhere else, and at the code 0 it is infinite or NaN. So the argument of such a node is not
quantized, nor is any activation that it is computed from, back to sums of products, which are
floats. So a LayerNormalization that is written out stays float32 as a whole, as the operator does.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import varying_inputs
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.ptq.graph.intervals import Intervals
from anybit.text import listed, shown

_Denominator: TypeAlias = ir.Value | ir.Node

# An argument that is never nearer to 0 is not small: 1 + exp(-x), say.
_AWAY = 0.125
_ARGUMENTS = {"Log": 0, "ReduceLogSum": 0, "Reciprocal": 0, "Sqrt": 0, "Div": 1, "Mod": 1}
_SINGLE = OpTrait.ELEMENTWISE | OpTrait.RECTIFIER | OpTrait.DATA_MOVEMENT
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, None)


def find_steep_argument(node: ir.Node) -> ir.Value | None:
    """Return the input near whose zeros a node is steep; None for other nodes."""
    if node.domain:
        return None
    index = 0 if _is_steep_power(node) else _ARGUMENTS.get(node.op_type, len(node.inputs))
    value = node.inputs[index] if index < len(node.inputs) else None
    is_argument = value is not None and not is_constant(value) and value.dtype in _FLOATS
    return value if is_argument else None


def is_provably_finite(node: ir.Node, intervals: Intervals) -> bool:
    """Return whether bounds keep the argument of a steep node from 0, and that of a root from
    negative numbers."""
    argument = find_steep_argument(node)
    if argument is None:
        return True
    low, high = intervals(argument)
    is_root = node.op_type in ("Sqrt", "Pow") and not _is_reciprocal(node)
    return low > 0 or (low >= 0 and is_root) or (high < 0 and node.op_type == "Div")


class SteepNodes:
    """The nodes that stay float32 around steep nodes.

    Attributes:
        kept: These nodes, each with the reason.

    Args:
        graph: The graph, in topological order.
        inside: The nodes that might be quantized.
        layers: The layers among them: their sums of products are floats.
    """

    def __init__(
        self, graph: ir.Graph, inside: Collection[ir.Node], layers: Collection[ir.Node]
    ) -> None:
        self.kept: dict[ir.Node, str] = {}
        self._intervals = Intervals(graph)
        self._inside = inside
        self._nodes = dict.fromkeys(node for node in graph if node not in layers)
        self._steep: dict[ir.Node, None] = {}
        outside = (node for node in self._nodes if node not in inside)
        self.add(
            node
            for node in outside
            if (value := find_steep_argument(node)) and not self.is_away_from_zero(value)
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What stays float32, and why: one remark, or none."""
        if not self.kept:
            return ()
        steep = [node for node in self._steep if node in self.kept]
        others = [shown(label_of(node)) for node in self.kept if node not in self._steep]
        named = [f"{shown(label_of(node))} ({node.op_type})" for node in steep]
        nodes = [
            f"These stay in floats: {listed(named)}" if named else "These stay in floats",
            f"and the nodes that lead to or complete these: {listed(others)}",
        ]
        return (
            f"{', '.join(nodes if others else nodes[:1])}. They divide by values near 0, or take "
            "a root or logarithm of them; a quantization step is too coarse there, and a value "
            "that becomes 0 makes results infinite or NaN.",
        )

    def is_away_from_zero(self, argument: ir.Value) -> bool:
        """Return whether an argument that is a function of one tensor is never near 0."""
        low, high = self._intervals(argument)
        return low >= _AWAY or high <= -_AWAY

    def add(self, steep: Iterable[ir.Node]) -> None:
        """Keep further steep nodes in float32, and all that depends on this."""
        self._steep.update(dict.fromkeys(steep))
        inverse = self._inverse()
        quotients = self._quotients(inverse)
        kept = dict.fromkeys(quotients, "it divides by values near 0, which would become 0")
        for node in self._steep:
            kept.setdefault(node, "it is steep near 0, where a quantization step is too coarse")
        for node in self._completing(quotients):
            kept.setdefault(node, "it adds up quotients that have one denominator")
        for each, node in self._upstream([*quotients, *self._steep]):
            kept.setdefault(each, f"it leads to {_named(node)}, which is steep near 0")
        self.kept = {node: reason for node, reason in kept.items() if node in self._inside}

    def _inverse(self) -> dict[ir.Value, ir.Node]:
        """Return the reciprocals of arguments near 0, also scaled or moved, each with the steep
        node that it comes from."""
        found: dict[ir.Value, ir.Node] = {}
        for node in self._nodes:
            values = _floats(node)
            moved = len(values) == 1 and values[0] in found and has_trait(node, _SINGLE)
            if moved or (node in self._steep and _is_reciprocal(node)):
                origin = found[values[0]] if moved else node
                found.update(dict.fromkeys(node.outputs, origin))
        return found

    def _quotients(self, inverse: Mapping[ir.Value, ir.Node]) -> dict[ir.Node, _Denominator]:
        """Return the nodes that divide by another tensor, or multiply by a reciprocal, each with
        the denominator or the node that inverts it."""
        found: dict[ir.Node, _Denominator] = {}
        for node in self._nodes:
            if node.domain or len(node.inputs) != 2:
                continue
            denominator = node.inputs[1]
            if node in self._steep:
                if node.op_type == "Div" and not _is_reciprocal(node) and denominator is not None:
                    found[node] = denominator
            elif node.op_type == "Mul" and len(values := _floats(node)) > 1:
                origins = [inverse[value] for value in values if value in inverse]
                if origins:
                    found[node] = origins[0]
        return found

    def _expandable(self, value: ir.Value) -> ir.Node | None:
        """Return the producer of a value, if it is small where what it reads is."""
        node = value.producer()
        if node is None or node not in self._nodes:
            return None
        return None if has_trait(node, OpTrait.NORMALIZATION) else node

    def _upstream(self, heads: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
        """Yield the nodes that lead to steep nodes, back to sums of products, each with one of
        these."""
        seen: set[ir.Node] = set()
        for last in heads:
            waiting = _floats(last)
            while waiting:
                node = self._expandable(waiting.pop())
                if node is not None and node not in seen:
                    seen.add(node)
                    yield node, last
                    waiting += _floats(node)

    def _completing(self, quotients: Mapping[ir.Node, _Denominator]) -> Iterator[ir.Node]:
        """Yield the nodes that add up quotients of one denominator: x * s + (bias - mean * s)."""
        known = {node.outputs[0]: denominator for node, denominator in quotients.items()}
        for node in self._nodes:
            if not has_trait(node, OpTrait.ELEMENTWISE) or node in quotients:
                continue
            values = _floats(node)
            denominators = {known.get(value) for value in values}
            common = next(iter(denominators)) if len(denominators) == 1 else None
            adds = node.op_type in ("Add", "Sub")
            if common is not None and (adds or len(values) == 1):
                known[node.outputs[0]] = common
                if len(values) > 1:
                    yield node


def _floats(node: ir.Node) -> list[ir.Value]:
    """Return the inputs that are computed and are no sizes, indices or conditions."""
    return [value for value in varying_inputs(node) if value.dtype in _FLOATS]


def _named(node: ir.Node) -> str:
    return repr(shown(label_of(node)))


def _is_steep_power(node: ir.Node) -> bool:
    """Return whether an exponent is negative, or not an integer, or not constant."""
    if node.op_type != "Pow" or len(node.inputs) != 2 or node.inputs[1] is None:
        return False
    if not is_constant(node.inputs[1]):
        return True
    exponents = array_of(node.inputs[1]).astype(np.float64)
    return bool(np.any((exponents < 0) | (exponents != np.floor(exponents))))


def _is_reciprocal(node: ir.Node) -> bool:
    """Return whether the result of a steep node grows without bounds as its argument vanishes."""
    if node.op_type == "Div":
        return node.inputs[0] is not None and is_constant(node.inputs[0])
    if node.op_type == "Pow":
        exponent = node.inputs[1]
        assert exponent is not None, "a power has two inputs"
        return not is_constant(exponent) or float(array_of(exponent).min(initial=math.inf)) < 0
    return node.op_type == "Reciprocal"
