# SPDX-License-Identifier: Apache-2.0
"""Nodes that stay float32 because a quantization step is too coarse for their argument.

Near 0 a quotient, a reciprocal, a root or a logarithm changes more within one step of a quantizer
than everywhere else, and at the code 0 it is infinite or NaN. So the argument of such a node is not
quantized, nor is any activation that it is computed from. A normalization, such as a
LayerNormalization that is written out, is a function of one tensor: it stays float32 as a whole,
and its input may be quantized if a constant keeps its denominator from 0.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.lowbit.elementwise import varying_inputs
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.facts import Effect, effect_of
from anybit.onnx.graph.names import label_of
from anybit.quantization.intervals import Intervals
from anybit.text import listed, shown

# An argument that is never nearer to 0 is not small: 1 + exp(-x), say.
_AWAY = 0.125
# A normalization has no more nodes.
_MOST_NODES = 256
_ARGUMENTS = {"Log": 0, "ReduceLogSum": 0, "Reciprocal": 0, "Sqrt": 0, "Div": 1, "Mod": 1}
# However small its input is, the result of these is not.
_NORMALIZING = (
    *("GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax"),
    *("LpNormalization", "MeanVarianceNormalization", "RMSNormalization", "Softmax"),
)
_SINGLE = (Effect.ELEMENTWISE, Effect.RECTIFY, Effect.MOVE)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, None)


def steep_argument(node: ir.Node) -> ir.Value | None:
    """Return the input near whose zeros a node is steep; None for other nodes."""
    if node.domain:
        return None
    index = 0 if _is_steep_power(node) else _ARGUMENTS.get(node.op_type, len(node.inputs))
    value = node.inputs[index] if index < len(node.inputs) else None
    is_argument = value is not None and not is_constant(value) and value.dtype in _FLOATS
    return value if is_argument else None


@dataclass
class _Normalization:
    """A function of one tensor that divides by a statistic of it.

    Attributes:
        stem: The tensor.
        nodes: The nodes from there to the quotient.
    """

    stem: ir.Value
    nodes: set[ir.Node]


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
        self._positions = {node: at for at, node in enumerate(graph) if node not in layers}
        self._steep: dict[ir.Node, None] = {}
        outside = (node for node in self._positions if node not in inside)
        self.add(
            node
            for node in outside
            if (value := steep_argument(node)) and not self.is_away_from_zero(value)
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What stays float32, and why: one remark, or none."""
        if not self.kept:
            return ()
        steep = [node for node in self._steep if node in self.kept]
        others = [shown(label_of(node)) for node in self.kept if node not in self._steep]
        named = [f"{shown(label_of(node))} ({node.op_type})" for node in steep]
        first = f"{listed(named)} stay in floats" if named else "Some nodes stay in floats"
        rest = f", with the nodes that lead to them or complete them: {listed(others)}"
        return (
            f"{first}{rest if others else ''}. A step of a quantizer is too coarse for arguments "
            "near 0 of a quotient, a root or a logarithm: those would become 0, and results "
            "infinite or NaN.",
        )

    def is_away_from_zero(self, argument: ir.Value) -> bool:
        """Return whether an argument that is a function of one tensor is never near 0."""
        low, high = self._intervals(argument)
        return low >= _AWAY or high <= -_AWAY

    def add(self, steep: Iterable[ir.Node]) -> None:
        """Keep further steep nodes in float32, and all that depends on this."""
        self._steep.update(dict.fromkeys(steep))
        inverse = self._inverse()
        quotients = [node for node in self._positions if self._is_quotient(node, inverse)]
        proven = {node: found for node in quotients if (found := self._normalization(node))}
        kept: dict[ir.Node, str] = {}
        for node in quotients:
            kept[node] = "it divides by values near 0, which quantization would make 0"
        for node in self._steep:
            kept.setdefault(node, "it is steep near 0, where a quantization step is too coarse")
        covered = set().union(*(found.nodes for found in proven.values()))
        for node, found in proven.items():
            for each in found.nodes:
                kept.setdefault(each, f"it is part of a normalization, as {_named(node)} is")
        for node in self._completing(proven):
            kept.setdefault(node, "it adds up parts of one normalization")
        heads = [node for node in (*quotients, *self._steep) if node not in covered]
        for each, node in self._upstream(heads):
            kept.setdefault(each, f"it leads to {_named(node)}, which is steep near 0")
        self.kept = {node: reason for node, reason in kept.items() if node in self._inside}

    def _inverse(self) -> set[ir.Value]:
        """Return the reciprocals of arguments near 0, also scaled or moved."""
        found: set[ir.Value] = set()
        for node in self._positions:
            values = _floats(node)
            moved = len(values) == 1 and values[0] in found and effect_of(node) in _SINGLE
            if moved or (node in self._steep and _is_reciprocal(node)):
                found.update(node.outputs)
        return found

    def _is_quotient(self, node: ir.Node, inverse: Collection[ir.Value]) -> bool:
        """Return whether a node divides by another tensor, or multiplies by a reciprocal."""
        if node.domain or len(node.inputs) != 2:
            return False
        if node in self._steep:
            return node.op_type == "Div" and not _is_reciprocal(node)
        values = _floats(node)
        multiplies = node.op_type == "Mul" and len(values) > 1
        return multiplies and any(value in inverse for value in values)

    def _expandable(self, value: ir.Value) -> ir.Node | None:
        """Return the producer of a value, if it is small where what it reads is."""
        node = value.producer()
        if node is None or node not in self._positions:
            return None
        return None if not node.domain and node.op_type in _NORMALIZING else node

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

    def _normalization(self, quotient: ir.Node) -> _Normalization | None:
        """Return the normalization that ends in a quotient; None if its input is not one tensor, or
        if nothing keeps its denominator from 0 whatever that is."""
        frontier, nodes = set(_floats(quotient)), {quotient}
        found: _Normalization | None = None
        while len(nodes) <= _MOST_NODES:
            if len(frontier) == 1:
                (stem,) = frontier
                found = _Normalization(stem, set(nodes))
                producer = self._expandable(stem)
                # A difference from its own mean begins further up.
                if producer is None or len(_floats(producer)) == 1:
                    break
            producers = {node for value in frontier if (node := self._expandable(value))}
            if not producers:
                break
            last = max(producers, key=self._positions.__getitem__)
            nodes.add(last)
            frontier.difference_update(last.outputs)
            frontier.update(_floats(last))
        if found is None or not all(map(self._is_finite, found.nodes)):
            return None
        return found

    def _is_finite(self, node: ir.Node) -> bool:
        """Return whether a node is finite for every value of the tensors that it depends on."""
        argument = steep_argument(node)
        if argument is None:
            return True
        low, high = self._intervals(argument)
        is_root = node.op_type in ("Sqrt", "Pow") and not _is_reciprocal(node)
        return low > 0 or (low >= 0 and is_root) or (high < 0 and node.op_type == "Div")

    def _completing(self, proven: Mapping[ir.Node, _Normalization]) -> Iterator[ir.Node]:
        """Yield the nodes that add up quotients of one tensor: x * s + (bias - mean * s)."""
        stems = {node.outputs[0]: found.stem for node, found in proven.items()}
        for node in self._positions:
            values = _floats(node)
            known = {stems.get(value) for value in values}
            elementwise = effect_of(node) is Effect.ELEMENTWISE and node not in proven
            if not elementwise or len(known) != 1 or None in known:
                continue
            adds = node.op_type in ("Add", "Sub")
            if len(values) == 1 or adds:
                stems[node.outputs[0]] = next(each for each in known if each is not None)
            if len(values) > 1 and adds:
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
