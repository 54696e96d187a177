# SPDX-License-Identifier: Apache-2.0
"""Targets of integer-only networks: also the nodes between the layers.

Sums, Concat and means need codes as inputs. So does a non-monotonic function after a sum, because
it would need too many thresholds. Monotonic functions do not: they become part of the quantizer
after them. Data movement keeps codes: the quantizer of its output stands before it, and tensors
that are concatenated share a grid.
"""

from collections.abc import Collection
from typing import TypeAlias

import onnx_ir as ir

from anybit.compiler.operators import (
    find_interpolation,
    find_kept_axis,
    get_varying_inputs,
    is_monotone,
)
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_identity, is_onnx_op
from anybit.ptq.graph.branches import walk_reachable
from anybit.ptq.graph.outputs import is_output_node
from anybit.ptq.graph.steep_nodes import SteepNodes, find_steep_argument
from anybit.ptq.graph.targets import TargetNode, Targets

_Path: TypeAlias = tuple[ir.Value, ...]

_ONE_OR_TWO_INPUTS = OpTrait.ELEMENTWISE | OpTrait.RECTIFIER
_UNSUPPORTED = "it has no integer form"
# Functions of a sum that are computed without a table, or thresholds for each channel.
_ARITHMETIC = ("Add", "BatchNormalization", "Clip", "Div", "Identity", "Mul", "Neg", "Relu", "Sub")


def add_elementwise_targets(targets: Targets, model: ir.Model) -> Targets:
    """Return the targets with the nodes between layers whose inputs must be codes.

    If outputs are quantized, nodes before the first layer and after the last one are among them.
    """
    integer_nodes = _find_nodes_between(
        model,
        {layer.node for layer in targets.layers if layer.weights},
        from_inputs=any(is_output_node(layer.node) for layer in targets.layers),
    )
    nodes = {layer.node for layer in targets.layers}
    steep_nodes = SteepNodes(model.graph, integer_nodes, nodes)
    analysis = _ElementwiseTargets(model, integer_nodes, nodes, steep_nodes)
    while analysis.steep:
        steep_nodes.add(analysis.steep)
        analysis = _ElementwiseTargets(model, integer_nodes, nodes, steep_nodes)
    positions = {node: position for position, node in enumerate(walk_reachable(model.graph))}
    layers = sorted([*targets.layers, *analysis.layers], key=lambda layer: positions[layer.node])
    skipped = {get_label(node): reason for node, reason in analysis.skipped.items()}
    return Targets(
        tuple(layers),
        targets.skipped | skipped,
        frozenset(integer_nodes.difference(analysis.skipped)),
        steep_nodes.remarks,
    )


def keeps_codes(node: ir.Node) -> bool:
    """Return whether the output of a node has the codes of its input, whatever the codes are."""
    if not has_trait(node, OpTrait.KEEPS_CODES):
        return False
    if node.op_type == "MaxPool" and len(node.outputs) > 1:
        return False
    match node.op_type:
        case "Resize" | "Upsample":
            return bool(get_attribute(node, "mode", "nearest") == "nearest")
        case "Pad":
            border = node.inputs[2] if len(node.inputs) > 2 else None
            is_zero = border is None or (is_constant(border) and not read_array(border).any())
            return get_attribute(node, "mode", "constant") != "constant" or is_zero
        case "ReduceMax":
            shape = None if node.inputs[0] is None else node.inputs[0].shape
            return shape is not None and find_kept_axis(node, len(shape)) is not None
    return True


def is_moved_input(value: ir.Value) -> bool:
    """Return whether only data movement leads from an input of the model to a value."""
    while (node := value.producer()) is not None and keeps_codes(node) and len(node.inputs):
        (first, *_) = node.inputs
        if first is None or node.op_type == "Concat":
            return False
        value = first
    return value.is_graph_input()


def _find_nodes_between(
    model: ir.Model, layers: Collection[ir.Node], *, from_inputs: bool
) -> set[ir.Node]:
    """Return the layers and the nodes on a path of floats from a layer to another or an output.

    With `from_inputs`, paths may also begin at the inputs of the model.
    """
    downstream: set[ir.Node] = set()
    for node in model.graph:
        values = [value for value in node.inputs if value is not None]
        starts = node in layers or (from_inputs and any(v.is_graph_input() for v in values))
        has_floats = any(value.dtype == ir.DataType.FLOAT for value in node.outputs)
        if has_floats and (starts or any(value.producer() in downstream for value in values)):
            downstream.add(node)
    upstream: set[ir.Node] = set()
    for node in reversed(model.graph):
        readers = {reader for value in node.outputs for reader, _ in value.uses()}
        if node in layers or is_output_node(node) or not upstream.isdisjoint(readers):
            upstream.add(node)
    return downstream & upstream


class _ElementwiseTargets:
    """Targets among the nodes between layers.

    Attributes:
        layers: Nodes whose inputs must be codes.
        skipped: Nodes that stay float32, with the reason.
        steep: Steep nodes whose argument this would quantize.
    """

    def __init__(
        self,
        model: ir.Model,
        integer_nodes: set[ir.Node],
        layers: set[ir.Node],
        steep_nodes: SteepNodes,
    ) -> None:
        self.skipped: dict[ir.Node, str] = {}
        self.steep: list[ir.Node] = []
        self._steep_nodes = steep_nodes
        self._has_outputs = any(map(is_output_node, integer_nodes))
        self._opset = model.graph.opset_imports.get("", 1)
        # The values that an elementwise function of one tensor passes through, from that tensor.
        self._paths: dict[ir.Value, _Path] = {}
        self._operators: dict[ir.Node, TargetNode] = {}
        self._functions: dict[ir.Value, TargetNode] = {}
        for node in model.graph:
            if node in integer_nodes and node not in layers:
                reason = steep_nodes.kept.get(node) or self._visit(node)
                if reason:
                    self.skipped[node] = reason
        functions = {layer.node: layer for layer in self._functions.values()}
        self.layers = list({**functions, **self._operators}.values())

    def _visit(self, node: ir.Node) -> str:
        """Add the targets of a node; return why it stays float32, or ""."""
        values = get_varying_inputs(node)
        if has_trait(node, OpTrait.RESHAPE):
            values = values[:1]  # the others are sizes
        argument = find_steep_argument(node)
        if argument is not None:
            return self._visit_steep(node, argument, [self._get_path(value) for value in values])
        if any(value.dtype != ir.DataType.FLOAT for value in values):
            return "it computes in a type other than float32"
        if self._is_elementwise(node):
            return self._visit_elementwise(node, values)
        if has_trait(node, OpTrait.SUM) or find_interpolation(node) is not None:
            return self._visit_reduction(node)
        if is_onnx_op(node, "Concat"):
            return self._quantize_inputs(node, values)
        return "" if keeps_codes(node) else _UNSUPPORTED

    def _is_elementwise(self, node: ir.Node) -> bool:
        has_function = has_trait(node, _ONE_OR_TWO_INPUTS, self._opset)
        is_affine = is_onnx_op(node, "BatchNormalization")
        return len(node.outputs) == 1 and (
            has_function or is_identity(node, self._opset) or is_affine
        )

    def _visit_elementwise(self, node: ir.Node, values: list[ir.Value]) -> str:
        y, paths = node.outputs[0], [self._get_path(value) for value in values]
        if len(values) == 1:
            self._paths[y] = (*paths[0], y)
            x = values[0]
            is_table = self._has_outputs and node.op_type not in _ARITHMETIC
            if is_table or is_moved_input(x) or not is_monotone([node], x):
                self._quantize_argument(y, x, node)
            return ""
        if len(values) > 2:
            return "it has more than two inputs"
        common = tuple(one for one, other in zip(*paths, strict=False) if one is other)
        if not common:
            return self._quantize_inputs(node, values)
        self._merge_paths(y, common, paths)
        return ""

    def _visit_steep(self, node: ir.Node, argument: ir.Value, paths: list[_Path]) -> str:
        """Compute a steep node from the codes of one tensor, if its argument is never near 0.

        Otherwise the node is added to `steep`.
        """
        tensors = {path[0] for path in paths}
        is_float32 = {tensor.dtype for tensor in tensors} == {ir.DataType.FLOAT}
        is_function = self._is_elementwise(node) and is_float32 and len(tensors) == 1
        if is_function and self._steep_nodes.is_away_from_zero(argument):
            self._merge_paths(node.outputs[0], paths[0][:1], paths)
        else:
            self.steep.append(node)
        return ""

    def _visit_reduction(self, node: ir.Node) -> str:
        """Quantize the first input; a second one holds axes."""
        x = node.inputs[0] if node.inputs else None
        if x is None or is_constant(x):
            return "its input is constant"
        self._operators[node] = TargetNode(node, (0,), ())
        return ""

    def _quantize_inputs(self, node: ir.Node, values: list[ir.Value]) -> str:
        if any(value is not None and value not in values for value in node.inputs[:2]):
            return "one of its inputs is constant"
        indices = tuple(index for index, value in enumerate(node.inputs) if value in values)
        self._operators[node] = TargetNode(node, indices, ())
        return ""

    def _quantize_argument(self, y: ir.Value, x: ir.Value, node: ir.Node) -> None:
        """Quantize x for its function y, unless y is a function of the codes of two tensors.

        Quantize such an x, too, if outputs are quantized: devices have no memory for tables of all
        pairs.
        """
        if self._has_outputs or not self._is_pair(x):
            index = next(index for index, value in enumerate(node.inputs) if value is x)
            self._functions[y] = TargetNode(node, (index,), ())

    def _merge_paths(self, y: ir.Value, common: _Path, paths: list[_Path]) -> None:
        """Replace functions of one tensor that meet in a node by one function of that tensor."""
        for path in paths:
            for value in path[len(common) :]:
                self._functions.pop(value, None)
        x = common[-1]
        self._paths[y] = (*common, y)
        nodes = _find_nodes_from(x, y)
        reader = next(node for node, _ in x.uses() if node in nodes)
        self._quantize_argument(y, x, reader)

    def _get_path(self, value: ir.Value) -> _Path:
        return self._paths.get(value, (value,))

    def _is_pair(self, x: ir.Value) -> bool:
        """Return whether a value is a function of the codes of two tensors."""
        node = self._get_path(x)[0].producer()
        return node in self._operators and not has_trait(node, OpTrait.MEAN)


def _find_nodes_from(x: ir.Value, y: ir.Value) -> set[ir.Node]:
    """Return the nodes that compute y from x."""
    nodes: set[ir.Node] = set()
    waiting = [y]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value is not x and node is not None and node not in nodes:
            nodes.add(node)
            waiting += get_varying_inputs(node)
    return nodes
