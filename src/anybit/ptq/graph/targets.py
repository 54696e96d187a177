# SPDX-License-Identifier: Apache-2.0
"""Quantization targets: the MatMul-like nodes of a model, and the activations that they multiply.

Other tensors stay float32. Masks, the inputs of Softmax, statistics and indices lose their meaning
in few bits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, get_bias_index, has_trait, is_onnx_op
from anybit.onnx.graph.walk import get_inner_graphs, iter_nodes
from anybit.onnx.qdq.packed_weights import is_nbits
from anybit.ptq.graph.branches import is_if, walk_reachable
from anybit.ptq.graph.stored_weights import explain_unreadable, find_stored_inputs

NodeInput: TypeAlias = tuple[ir.Node, int]
"""A node and the index of one of its inputs."""


@dataclass(frozen=True)
class WeightInput:
    """A constant factor of a layer.

    Attributes:
        index: Index of the node's input.
        channel_axes: Axes along which scales vary, if they are per channel.
        input_axis: Axis along which the channels of the activation lie; None without such an axis.
        repeats: Number of consecutive elements on `input_axis` for one channel of the activation.
    """

    index: int
    channel_axes: tuple[int, ...]
    input_axis: int | None
    repeats: int = 1


@dataclass(frozen=True)
class TargetNode:
    """A node whose inputs are quantized. Targets with the same node are equal.

    Attributes:
        node: The node.
        activations: Indices of the factors that the model computes.
        weights: Constant factors.
        bias: Index of a constant bias; None without one.
        activation_axis: Axis of the activation along which its channels lie; None if unknown.
        stored: Indices of constant factors that the model has quantized already.
    """

    node: ir.Node
    activations: tuple[int, ...] = field(compare=False)
    weights: tuple[WeightInput, ...] = field(compare=False)
    bias: int | None = field(default=None, compare=False)
    activation_axis: int | None = field(default=None, compare=False)
    stored: tuple[int, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """Name of the node, or of its output where the node has none."""
        return get_label(self.node)

    @property
    def activation_values(self) -> list[tuple[int, ir.Value]]:
        """Factors that the model computes, with their indices."""
        inputs = [(index, self.node.inputs[index]) for index in self.activations]
        return [(index, value) for index, value in inputs if value is not None]

    @property
    def constants(self) -> list[tuple[WeightInput, Array]]:
        """Weights with their float values."""
        inputs = [(weight, self.node.inputs[weight.index]) for weight in self.weights]
        return [(weight, read_array(value)) for weight, value in inputs if value is not None]

    @property
    def bias_axis(self) -> int | None:
        """Axis of the output along which the bias lies; None without an unscaled bias."""
        bias = None if self.bias is None else self.node.inputs[self.bias]
        if bias is None or bias.const_value is None or not bias.const_value.shape:
            return None
        if bias.const_value.shape.numpy()[-1] != bias.const_value.size:
            return None
        if self.node.op_type != "Gemm":
            return 1
        unscaled = all(get_attribute(self.node, name, 1.0) == 1 for name in ("alpha", "beta"))
        return -1 if unscaled and bias.const_value.size > 1 else None

    @property
    def computed_inputs(self) -> list[ir.Value]:
        """All inputs that are not constant, including states and lengths."""
        return [value for value in self.node.inputs if value is not None and not is_constant(value)]


@dataclass(frozen=True, eq=False)
class ActivationTensor:
    """A tensor that layers multiply. It gets one quantizer, or one grid for several.

    Attributes:
        value: The tensor.
        readers: The layers with the index of their input.
        sites: Tensors that are quantized in place of `value`, with the inputs that then use the
            quantized tensor; empty if `value` itself is quantized for its readers.
        smooth: Whether channels may be scaled against the weights (SmoothQuant).
    """

    value: ir.Value
    readers: list[tuple[TargetNode, int]] = field(default_factory=list)
    sites: tuple[tuple[ir.Value, tuple[NodeInput, ...]], ...] = ()
    smooth: bool = True

    @property
    def uses(self) -> tuple[NodeInput, ...]:
        """Inputs that use the tensor itself, and would use it quantized."""
        if not self.sites:
            return tuple((layer.node, index) for layer, index in self.readers)
        return dict(self.sites).get(self.value) or tuple(
            (node, index) for node, index in self.value.uses()
        )


@dataclass(frozen=True)
class Targets:
    """Nodes to quantize, and nodes that stay float32.

    Attributes:
        layers: Nodes to quantize, in an order in which they can run.
        skipped: Names of nodes that stay float32 although they have weights, with the reason.
        integer_nodes: Nodes from the first to the last layer, if all of them shall be integer.
        remarks: Remarks on nodes among them that cannot be integer.
    """

    layers: tuple[TargetNode, ...]
    skipped: dict[str, str]
    integer_nodes: frozenset[ir.Node] = frozenset()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class SmoothingChannels:
    """Channels of an activation that SmoothQuant may scale.

    Attributes:
        axis: Axis of the activation.
        count: Number of channels.
    """

    axis: int
    count: int


def find_targets(model: ir.Model) -> Targets:
    """Return the nodes of a model to quantize. Shapes are inferred and constants folded before."""
    layers, skipped = [], {}
    for node in walk_reachable(model.graph):
        layer = _make_target(node)
        if layer is not None:
            layers.append(layer)
        elif reason := _explain_skip(node):
            skipped[get_label(node)] = reason
        for inner in () if is_if(node) else _iterate_inner_layers(node):
            skipped[get_label(inner)] = (
                f"it is inside {get_label(node)!r}, which runs it repeatedly"
            )
    return Targets(tuple(layers), skipped)


def collect_activations(layers: Iterable[TargetNode]) -> tuple[ActivationTensor, ...]:
    """Return the activations that layers multiply, each with all of its readers."""
    tensors: dict[ir.Value, ActivationTensor] = {}
    for layer in layers:
        for index, value in layer.activation_values:
            tensors.setdefault(value, ActivationTensor(value)).readers.append((layer, index))
    return tuple(tensors.values())


def find_smoothing_channels(tensor: ActivationTensor) -> SmoothingChannels | None:
    """Return the channels of a tensor that all of its readers can scale; None without any."""
    if tensor.sites or not tensor.smooth:
        return None  # nodes other than layers use it
    axes, counts = set(), []
    for layer, index in tensor.readers:
        if len(layer.weights) != 1:
            return None
        ((weight, array),) = layer.constants
        if weight.input_axis is None or index == weight.index:
            return None
        axes.add(layer.activation_axis)
        counts.append(int(array.shape[weight.input_axis]) // weight.repeats)
    axis = axes.pop() if len(axes) == 1 else None
    return None if axis is None else SmoothingChannels(axis, counts[0])


def is_matmul_like(node: ir.Node) -> bool:
    """Return whether a node sums products, whether or not it is a target."""
    return has_trait(node, OpTrait.RECURRENT | OpTrait.MATMUL)


def get_factors(node: ir.Node) -> list[ir.Value]:
    """Return the first two inputs of a MatMul-like node."""
    return [value for value in node.inputs[:2] if value is not None]


def _make_target(node: ir.Node) -> TargetNode | None:
    if is_nbits(node):
        return _make_stored_target(node)
    if _get_factor_dtypes(node) - {ir.DataType.FLOAT}:
        return None
    if has_trait(node, OpTrait.RECURRENT):
        return _make_recurrent_target(node)
    if not has_trait(node, OpTrait.MATMUL):
        return None
    constant = [index for index in (0, 1) if _get_constant(node, index) is not None]
    if len(constant) == 2:
        return None  # constant folding left it: a user may need it
    if find_stored_inputs(node):
        return None if constant else _make_stored_target(node)
    if any(_is_empty(node.inputs[index]) for index in constant):
        return None
    activations = tuple(index for index in (0, 1) if index not in constant)
    if not constant:
        return TargetNode(node, activations, ())
    bias = get_bias_index(node)
    bias = bias if bias is not None and _get_constant(node, bias) is not None else None
    weight = _make_weight_input(node, constant[0], _get_constant_shape(node, constant[0]))
    return TargetNode(node, activations, (weight,), bias, _get_activation_axis(node))


def _make_stored_target(node: ir.Node) -> TargetNode | None:
    """Return a target whose weights are quantized already; None if nothing else is computed."""
    if explain_unreadable(node):
        return None
    stored = find_stored_inputs(node)
    factors = (0,) if is_nbits(node) else (0, 1)
    computed = [index for index in factors if index not in stored]
    values = [get_input(node, index) for index in computed]
    if not all(value is not None and value.dtype == ir.DataType.FLOAT for value in values):
        return None
    if not values or any(value is not None and is_constant(value) for value in values):
        return None
    return TargetNode(node, tuple(computed), (), stored=stored)


def _make_weight_input(node: ir.Node, index: int, shape: tuple[int, ...]) -> WeightInput:
    rank = len(shape)
    if node.op_type == "MatMul":
        if rank < 2:
            return WeightInput(index, (), None)
        channel, inputs = (rank - 1, rank - 2) if index == 1 else (rank - 2, rank - 1)
        # Each matrix of a stack has channels of its own.
        return WeightInput(index, (*range(rank - 2), channel), inputs if rank == 2 else None)
    if index != 1:
        return WeightInput(index, (), None)  # a convolution of a constant with computed weights
    channel = 1 if node.op_type == "ConvTranspose" else 0
    if node.op_type == "Gemm":
        channel = 0 if get_attribute(node, "transB", 0) else 1
    groups = get_attribute(node, "group", 1)
    if groups == 1:
        return WeightInput(index, (channel,), 1 - channel)
    outer, inner = shape[:2]
    if node.op_type == "ConvTranspose" and groups == outer:
        return WeightInput(index, (0, 1), None)
    if node.op_type == "Conv" and inner == 1 and groups > 0 and outer % groups == 0:
        return WeightInput(index, (channel,), channel, outer // groups)
    return WeightInput(index, (channel,), None)


def _get_activation_axis(node: ir.Node) -> int | None:
    match node.op_type:
        case "MatMul":
            by_columns = _get_constant(node, 1) is not None or _get_rank(node.inputs[1]) == 1
            return -1 if by_columns else -2
        case "Gemm":
            return None if get_attribute(node, "transA", 0) else -1
        case _:
            return 1


def _make_recurrent_target(node: ir.Node) -> TargetNode | None:
    constant = [_get_constant(node, index) is not None for index in range(3)]
    if constant != [False, True, True]:
        return None
    weights = WeightInput(1, (0, 1), 2), WeightInput(2, (0, 1), None)
    return TargetNode(node, (0,), weights, None, -1)


def _explain_skip(node: ir.Node) -> str:
    """Return why a node with weights is not a target; "" for a node without weights."""
    if is_nbits(node):
        return explain_unreadable(node) or "its input is not known to be float32"
    if is_matmul_like(node):
        dtypes = _get_factor_dtypes(node) - {ir.DataType.FLOAT}
        if None in dtypes:
            return "its dtype is unknown"
        if dtypes:
            return f"it computes in {', '.join(sorted(map(str, dtypes)))}"
        if any(_is_empty(value) for value in get_factors(node)):
            return "its weights have no elements"
        constant = _get_constant(node, 0) is not None
        return "all of its factors are constant" if constant else "its weights are not constant"
    if is_onnx_op(node, "Gather") and _is_table(node.inputs[0]):
        return "it looks up rows of a table"
    is_foreign = node.op_type == "Einsum" or node.domain not in ("", "ai.onnx.ml")
    if is_foreign and any(_is_table(value) and _get_rank(value) > 1 for value in node.inputs):
        return f"it has weights, but the operator {node.op_type} is not supported"
    return ""


def _get_factor_dtypes(node: ir.Node) -> set[ir.DataType | None]:
    """Return the dtypes of both factors. They are the same, so that one of them may be unknown."""
    dtypes = {value.dtype for value in get_factors(node)}
    return dtypes - {None} or dtypes


def _get_constant(node: ir.Node, index: int) -> ir.Value | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return value if value is not None and is_constant(value) else None


def _get_constant_shape(node: ir.Node, index: int) -> tuple[int, ...]:
    value = _get_constant(node, index)
    tensor = None if value is None else value.const_value
    return () if tensor is None else tuple(tensor.shape.numpy())


def _is_table(value: ir.Value | None) -> bool:
    return value is not None and is_constant(value) and value.dtype == ir.DataType.FLOAT


def _is_empty(value: ir.Value | None) -> bool:
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.size == 0


def _get_rank(value: ir.Value | None) -> int:
    return 0 if value is None or value.shape is None else len(value.shape)


def _iterate_inner_layers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the MatMul-like nodes in the graphs of a node's attributes."""
    for graph in get_inner_graphs(node):
        for inner in iter_nodes(graph):
            if is_matmul_like(inner):
                yield inner
