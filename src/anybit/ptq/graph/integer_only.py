# SPDX-License-Identifier: Apache-2.0
"""What lies between layers: which of its tensors are to be codes, so that all of it is integer.

What adds, puts together or averages needs codes for what it reads; so does a function that rises
and falls behind a sum, where thresholds would be too many. Functions that only rise or fall need
none: they go with the quantizer behind them. What moves elements keeps their codes, so that the
quantizer of what it gives stands before it, and several tensors that come together have one grid.
"""

from collections.abc import Collection
from typing import TypeAlias

import onnx_ir as ir

from anybit.compiler.operators import is_monotone, varying_inputs
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_identity
from anybit.ptq.graph.branches import walk_reachable
from anybit.ptq.graph.steep_nodes import SteepNodes, find_steep_argument
from anybit.ptq.graph.targets import TargetNode, Targets

_Path: TypeAlias = tuple[ir.Value, ...]

_SINGLE = OpTrait.ELEMENTWISE | OpTrait.RECTIFIER
_FOREIGN = "integers do not compute it"


def add_elementwise_targets(placement: Targets, model: ir.Model) -> Targets:
    """A placement with all that has to read codes between the first and the last layer."""
    inside = _inside(model, {layer.node for layer in placement.layers if layer.weights})
    nodes = {layer.node for layer in placement.layers}
    around = SteepNodes(model.graph, inside, nodes)
    found = _Walk(model, inside, nodes, around)
    while found.steep:
        around.add(found.steep)
        found = _Walk(model, inside, nodes, around)
    positions = {node: place for place, node in enumerate(walk_reachable(model.graph))}
    layers = sorted([*placement.layers, *found.layers], key=lambda each: positions[each.node])
    left = {label_of(node): reason for node, reason in found.left.items()}
    return Targets(
        tuple(layers),
        placement.skipped | left,
        frozenset(inside.difference(found.left)),
        around.remarks,
    )


def _inside(model: ir.Model, layers: Collection[ir.Node]) -> set[ir.Node]:
    """The nodes that floats flow through from a layer to a layer, both included."""
    behind: set[ir.Node] = set()
    for node in model.graph:
        before = {value.producer() for value in node.inputs if value is not None}
        flows = any(value.dtype == ir.DataType.FLOAT for value in node.outputs)
        if flows and (node in layers or not behind.isdisjoint(before)):
            behind.add(node)
    ahead: set[ir.Node] = set()
    for node in reversed(model.graph):
        readers = {reader for value in node.outputs for reader, _ in value.uses()}
        if node in layers or not ahead.isdisjoint(readers):
            ahead.add(node)
    return behind & ahead


class _Walk:
    """Goes through what lies between.

    Attributes:
        layers: What reads codes.
        left: What stays float between integers, and why.
        steep: Nodes whose argument it would quantize where they are steep.
    """

    def __init__(
        self,
        model: ir.Model,
        inside: set[ir.Node],
        layers: set[ir.Node],
        around: SteepNodes,
    ) -> None:
        self.left: dict[ir.Node, str] = {}
        self.steep: list[ir.Node] = []
        self._around = around
        self._opset = model.graph.opset_imports.get("", 1)
        # The values from which each is computed element by element, from the first to itself.
        self._paths: dict[ir.Value, _Path] = {}
        self._readers: dict[ir.Node, TargetNode] = {}
        self._bent: dict[ir.Value, TargetNode] = {}
        for node in model.graph:
            if node in inside and node not in layers:
                reason = around.kept.get(node) or self._visit(node)
                if reason:
                    self.left[node] = reason
        bent = {layer.node: layer for layer in self._bent.values()}
        self.layers = list({**bent, **self._readers}.values())

    def _visit(self, node: ir.Node) -> str:
        """Find out what a node needs; why it stays, or ""."""
        values = varying_inputs(node)
        if has_trait(node, OpTrait.RESHAPE):
            values = values[:1]  # the sizes that a graph computes are integers
        argument = find_steep_argument(node)
        if argument is not None:
            return self._steep(node, argument, [self._path(value) for value in values])
        if any(value.dtype != ir.DataType.FLOAT for value in values):
            return "it computes in other types than float32"
        if self._is_single(node):
            return self._single(node, values)
        if has_trait(node, OpTrait.SUM):
            return self._reduces(node)
        if not node.domain and node.op_type == "Concat":
            return self._reads(node, values)
        return "" if keeps_codes(node) else _FOREIGN

    def _is_single(self, node: ir.Node) -> bool:
        single = has_trait(node, _SINGLE, self._opset) or is_identity(node, self._opset)
        normal = not node.domain and node.op_type == "BatchNormalization"
        return len(node.outputs) == 1 and (single or normal)

    def _single(self, node: ir.Node, values: list[ir.Value]) -> str:
        y, paths = node.outputs[0], [self._path(value) for value in values]
        if len(values) == 1:
            self._paths[y] = (*paths[0], y)
            if not is_monotone([node], values[0]):
                self._bend(y, values[0], node)
            return ""
        if len(values) > 2:
            return "it has more than two inputs"
        common = tuple(one for one, other in zip(*paths, strict=False) if one is other)
        if not common:
            return self._reads(node, values)
        self._merge(y, common, paths)
        return ""

    def _steep(self, node: ir.Node, argument: ir.Value, paths: list[_Path]) -> str:
        """Compute a steep node and its argument from the codes of one tensor, if that is never
        near 0; else report the node."""
        heads = {path[0] for path in paths}
        computed = self._is_single(node) and {head.dtype for head in heads} == {ir.DataType.FLOAT}
        if computed and len(heads) == 1 and self._around.is_away_from_zero(argument):
            self._merge(node.outputs[0], paths[0][:1], paths)
        else:
            self.steep.append(node)
        return ""

    def _merge(self, y: ir.Value, common: _Path, paths: list[_Path]) -> None:
        """Functions of one tensor that come together are one function of that."""
        for path in paths:
            for value in path[len(common) :]:
                self._bent.pop(value, None)
        self._paths[y] = (*common, y)
        between = self._between(common[-1], y)
        reader = next(each for each, _ in common[-1].uses() if each in between)
        self._bend(y, common[-1], reader)

    def _between(self, x: ir.Value, y: ir.Value) -> set[ir.Node]:
        """The nodes that compute one value from another."""
        found, ahead = set(), [y]
        while ahead:
            value = ahead.pop()
            node = value.producer()
            if value is not x and node is not None and node not in found:
                found.add(node)
                ahead += varying_inputs(node)
        return found

    def _path(self, value: ir.Value) -> _Path:
        return self._paths.get(value, (value,))

    def _bend(self, y: ir.Value, x: ir.Value, node: ir.Node) -> None:
        """Let x be codes for a function of it, unless it is a function of a pair of codes."""
        if self._path(x)[0].producer() not in self._readers or self._is_mean(x):
            at = next(place for place, value in enumerate(node.inputs) if value is x)
            self._bent[y] = TargetNode(node, (at,), ())

    def _is_mean(self, x: ir.Value) -> bool:
        node = self._path(x)[0].producer()
        return node is not None and has_trait(node, OpTrait.MEAN)

    def _reduces(self, node: ir.Node) -> str:
        """Quantize the first input; axes, as an attribute or as a second input, are no operand."""
        x = node.inputs[0] if node.inputs else None
        if x is None or is_constant(x):
            return "its input is constant"
        self._readers[node] = TargetNode(node, (0,), ())
        return ""

    def _reads(self, node: ir.Node, values: list[ir.Value]) -> str:
        if any(value is not None and value not in values for value in node.inputs[:2]):
            return "one of its inputs is constant"
        places = tuple(place for place, value in enumerate(node.inputs) if value in values)
        self._readers[node] = TargetNode(node, places, ())
        return ""


def keeps_codes(node: ir.Node) -> bool:
    """Whether what comes out of a node has the codes of what goes in, whatever the codes are."""
    if not has_trait(node, OpTrait.KEEPS_CODES):
        return False
    if node.op_type == "MaxPool" and len(node.outputs) > 1:
        return False
    match node.op_type:
        case "Resize" | "Upsample":
            return bool(attribute_of(node, "mode", "nearest") == "nearest")
        case "Pad":
            filled = node.inputs[2] if len(node.inputs) > 2 else None
            zero = filled is None or (is_constant(filled) and not array_of(filled).any())
            return attribute_of(node, "mode", "constant") == "constant" and zero
    return True
