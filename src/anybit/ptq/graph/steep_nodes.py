# SPDX-License-Identifier: Apache-2.0
"""Nodes that stay float32 because a quantization step is too coarse for their argument.

Near 0 a quotient, reciprocal, root or logarithm changes by more within one quantization step than
anywhere else, and at the code 0 it is infinite or NaN. So neither the argument of such a node is
quantized, nor any activation that it is computed from, back to sums of products, which are floats.
As a consequence, forms of LayerNormalization that `FuseLayerNorm` does not know stay float32 like
the operator itself.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import get_varying_inputs
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.ptq.graph.intervals import Intervals
from anybit.text import escape_name, join_names

_Denominator: TypeAlias = ir.Value | ir.Node

# Arguments whose magnitude is at least this, such as 1 + exp(-x), are not near 0.
_MIN_MAGNITUDE = 0.125
_ARGUMENT_INDICES = {"Log": 0, "ReduceLogSum": 0, "Reciprocal": 0, "Sqrt": 0, "Div": 1, "Mod": 1}
_UNARY = OpTrait.ELEMENTWISE | OpTrait.RECTIFIER | OpTrait.DATA_MOVEMENT
_FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, None)


def find_steep_argument(node: ir.Node) -> ir.Value | None:
    """Return the input near whose zeros a node is steep; None for other nodes."""
    if node.domain:
        return None
    is_power = _is_steep_power(node)
    index = 0 if is_power else _ARGUMENT_INDICES.get(node.op_type, len(node.inputs))
    value = node.inputs[index] if index < len(node.inputs) else None
    is_argument = value is not None and not is_constant(value) and value.dtype in _FLOAT_TYPES
    return value if is_argument else None


def is_provably_finite(node: ir.Node, intervals: Intervals) -> bool:
    """Return whether bounds prove that a steep node has a finite result for every input."""
    argument = find_steep_argument(node)
    if argument is None:
        return True
    low, high = intervals(argument)
    is_root = node.op_type in ("Sqrt", "Pow") and not _is_reciprocal(node)
    return low > 0 or (low >= 0 and is_root) or (high < 0 and node.op_type == "Div")


class SteepNodes:
    """Nodes that stay float32 around steep nodes.

    Attributes:
        kept: These nodes, each with the reason.

    Args:
        graph: Graph in topological order.
        candidates: Nodes that could be quantized.
        layers: Layers, whose sums of products are floats.
    """

    def __init__(
        self, graph: ir.Graph, candidates: Collection[ir.Node], layers: Collection[ir.Node]
    ) -> None:
        self.kept: dict[ir.Node, str] = {}
        self._intervals = Intervals(graph)
        self._candidates = candidates
        self._nodes = dict.fromkeys(node for node in graph if node not in layers)
        self._steep: dict[ir.Node, None] = {}
        others = (node for node in self._nodes if node not in candidates)
        self.add(
            node
            for node in others
            if (value := find_steep_argument(node)) and not self.is_away_from_zero(value)
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """One remark on the nodes and the reason; none without nodes."""
        if not self.kept:
            return ()
        steep = [node for node in self._steep if node in self.kept]
        others = [escape_name(get_label(node)) for node in self.kept if node not in self._steep]
        named = [f"{escape_name(get_label(node))} ({node.op_type})" for node in steep]
        nodes = [
            f"These nodes stay float32: {join_names(named)}"
            if named
            else "Some nodes stay float32",
            f"and the nodes that lead to or complete these: {join_names(others)}",
        ]
        return (
            f"{', '.join(nodes if others else nodes[:1])}. They divide by values near 0, or take "
            "a root or logarithm of them. A quantization step is too coarse there, and a value "
            "that becomes 0 makes results infinite or NaN.",
        )

    def is_away_from_zero(self, argument: ir.Value) -> bool:
        """Return whether an argument that is a function of one tensor is never near 0."""
        low, high = self._intervals(argument)
        return low >= _MIN_MAGNITUDE or high <= -_MIN_MAGNITUDE

    def add(self, steep: Iterable[ir.Node]) -> None:
        """Keep further steep nodes in float32, and the nodes around them."""
        self._steep.update(dict.fromkeys(steep))
        quotients = self._find_quotients(self._find_reciprocals())
        kept = dict.fromkeys(quotients, "it divides by values near 0, which would become 0")
        for node in self._steep:
            kept.setdefault(node, "it is steep near 0, where a quantization step is too coarse")
        for node in self._find_quotient_sums(quotients):
            kept.setdefault(node, "it sums quotients with a common denominator")
        for node, steep_node in self._walk_upstream([*quotients, *self._steep]):
            name = repr(escape_name(get_label(steep_node)))
            kept.setdefault(node, f"it leads to {name}, which is steep near 0")
        self.kept = {node: reason for node, reason in kept.items() if node in self._candidates}

    def _find_reciprocals(self) -> dict[ir.Value, ir.Node]:
        """Return the reciprocals of arguments near 0, each with its steep node.

        They may be scaled or moved.
        """
        reciprocals: dict[ir.Value, ir.Node] = {}
        for node in self._nodes:
            values = _get_float_inputs(node)
            is_moved = len(values) == 1 and values[0] in reciprocals and has_trait(node, _UNARY)
            if is_moved or (node in self._steep and _is_reciprocal(node)):
                origin = reciprocals[values[0]] if is_moved else node
                reciprocals.update(dict.fromkeys(node.outputs, origin))
        return reciprocals

    def _find_quotients(
        self, reciprocals: Mapping[ir.Value, ir.Node]
    ) -> dict[ir.Node, _Denominator]:
        """Return the nodes that divide by another tensor or multiply by its reciprocal.

        Each comes with the denominator, or with the node that inverts it.
        """
        quotients: dict[ir.Node, _Denominator] = {}
        for node in self._nodes:
            if node.domain or len(node.inputs) != 2:
                continue
            denominator = node.inputs[1]
            if node in self._steep:
                if node.op_type == "Div" and not _is_reciprocal(node) and denominator is not None:
                    quotients[node] = denominator
            elif node.op_type == "Mul" and len(values := _get_float_inputs(node)) > 1:
                origins = [reciprocals[value] for value in values if value in reciprocals]
                if origins:
                    quotients[node] = origins[0]
        return quotients

    def _walk_upstream(self, ends: Iterable[ir.Node]) -> Iterator[tuple[ir.Node, ir.Node]]:
        """Yield the nodes that lead to steep nodes, back to sums of products, each with its end."""
        visited: set[ir.Node] = set()
        for end in ends:
            waiting = _get_float_inputs(end)
            while waiting:
                node = self._get_scaling_producer(waiting.pop())
                if node is not None and node not in visited:
                    visited.add(node)
                    yield node, end
                    waiting += _get_float_inputs(node)

    def _get_scaling_producer(self, value: ir.Value) -> ir.Node | None:
        """Return the producer of a value if its output is small where its inputs are."""
        node = value.producer()
        if node is None or node not in self._nodes:
            return None
        return None if has_trait(node, OpTrait.NORMALIZATION) else node

    def _find_quotient_sums(self, quotients: Mapping[ir.Node, _Denominator]) -> Iterator[ir.Node]:
        """Yield the nodes that sum quotients of one denominator: x * s + (bias - mean * s)."""
        denominators = {node.outputs[0]: denominator for node, denominator in quotients.items()}
        for node in self._nodes:
            if not has_trait(node, OpTrait.ELEMENTWISE) or node in quotients:
                continue
            values = _get_float_inputs(node)
            of_inputs = {denominators.get(value) for value in values}
            common = next(iter(of_inputs)) if len(of_inputs) == 1 else None
            is_sum = node.op_type in ("Add", "Sub")
            if common is not None and (is_sum or len(values) == 1):
                denominators[node.outputs[0]] = common
                if len(values) > 1:
                    yield node


def _get_float_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the computed inputs, without sizes, indices and conditions."""
    return [value for value in get_varying_inputs(node) if value.dtype in _FLOAT_TYPES]


def _is_steep_power(node: ir.Node) -> bool:
    """Return whether an exponent is negative, or not an integer, or not constant."""
    if node.op_type != "Pow" or len(node.inputs) != 2 or node.inputs[1] is None:
        return False
    if not is_constant(node.inputs[1]):
        return True
    exponents = read_array(node.inputs[1]).astype(np.float64)
    return bool(np.any((exponents < 0) | (exponents != np.floor(exponents))))


def _is_reciprocal(node: ir.Node) -> bool:
    """Return whether the result of a steep node grows without bounds as its argument vanishes."""
    if node.op_type == "Div":
        return node.inputs[0] is not None and is_constant(node.inputs[0])
    if node.op_type == "Pow":
        exponent = node.inputs[1]
        if exponent is None or not is_constant(exponent):
            return True
        return float(read_array(exponent).min(initial=math.inf)) < 0
    return node.op_type == "Reciprocal"
