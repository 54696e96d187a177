# SPDX-License-Identifier: Apache-2.0
"""Where quantizers go: before what multiplies and adds up, and nowhere else.

Masks, the inputs of Softmax, statistics and indices keep their floats: that is where models die
when every tensor is quantized.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.op_traits import OpTrait, bias_input_of, has_trait
from anybit.onnx.graph.walk import inner_graphs, nodes_in
from anybit.ptq.graph.branches import is_if, walk_reachable


@dataclass(frozen=True)
class WeightInput:
    """A constant that is multiplied.

    Attributes:
        index: The input of the node that it is.
        channel_axes: The axes whose elements have a scale each, if scales are per channel.
        input_axis: The axis whose elements are multiplied with one channel of x each; None if there
            is no such axis.
        repeats: How many of them belong to the same channel, one behind the other.
    """

    index: int
    channel_axes: tuple[int, ...]
    input_axis: int | None
    repeats: int = 1


@dataclass(frozen=True)
class TargetNode:
    """A node that multiplies and adds up; it is the same layer for all who speak of the node.

    Attributes:
        node: The node.
        activations: The inputs that the model computes.
        weights: Those that are constant.
        bias: The constant that is added; None if there is none.
        activation_axis: The axis of the activation along which its channels lie.
    """

    node: ir.Node
    activations: tuple[int, ...] = field(compare=False)
    weights: tuple[WeightInput, ...] = field(compare=False)
    bias: int | None = field(default=None, compare=False)
    activation_axis: int | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return label_of(self.node)

    @property
    def constants(self) -> list[tuple[WeightInput, Array]]:
        """The weights, with their values in floats."""
        values = [(weight, self.node.inputs[weight.index]) for weight in self.weights]
        return [(weight, array_of(value)) for weight, value in values if value is not None]

    @property
    def bias_axis(self) -> int | None:
        """The axis of the result along which its own bias lies; None without one, or if it is
        multiplied again."""
        bias = None if self.bias is None else self.node.inputs[self.bias]
        if bias is None or bias.const_value is None or not bias.const_value.shape:
            return None
        if bias.const_value.shape.numpy()[-1] != bias.const_value.size:
            return None
        if self.node.op_type != "Gemm":
            return 1
        plain = all(attribute_of(self.node, name, 1.0) == 1 for name in ("alpha", "beta"))
        return -1 if plain and bias.const_value.size > 1 else None

    @property
    def computed_inputs(self) -> list[ir.Value]:
        """All that it reads and that is not constant, states and lengths included."""
        return [value for value in self.node.inputs if value is not None and not is_constant(value)]


@dataclass(frozen=True, eq=False)
class ActivationTensor:
    """A tensor that layers multiply: it gets one quantizer.

    Attributes:
        value: The tensor.
        readers: The layers, and which of their inputs it is.
        sites: The tensors that are quantized in its place, and which inputs of which nodes are
            replaced; () if it is quantized itself, for its readers.
        smooth: Whether its channels may be scaled against the weights (SmoothQuant).
    """

    value: ir.Value
    readers: list[tuple[TargetNode, int]] = field(default_factory=list)
    sites: tuple[tuple[ir.Value, tuple[tuple[ir.Node, int], ...]], ...] = ()
    smooth: bool = True

    @property
    def uses(self) -> tuple[tuple[ir.Node, int], ...]:
        """What reads the tensor itself, and would read it quantized."""
        if not self.sites:
            return tuple((layer.node, index) for layer, index in self.readers)
        return dict(self.sites).get(self.value) or tuple(
            (node, index) for node, index in self.value.uses()
        )


@dataclass(frozen=True)
class Targets:
    """What is to be quantized, and what is not.

    Attributes:
        layers: The nodes, in order.
        skipped: What keeps its floats although it holds weights or multiplies, and why.
        integer_nodes: The nodes from the first layer to the last, if all of them are to be integer.
        remarks: Why some of these cannot be.
    """

    layers: tuple[TargetNode, ...]
    skipped: dict[str, str]
    integer_nodes: frozenset[ir.Node] = frozenset()
    remarks: tuple[str, ...] = ()


def find_targets(model: ir.Model) -> Targets:
    """Where the quantizers of a model go. Its shapes are known and its constants are folded."""
    layers, left = [], {}
    for node in walk_reachable(model.graph):
        layer = _layer(node)
        if layer is not None:
            layers.append(layer)
        elif reason := _reason(node):
            left[label_of(node)] = reason
        for each in () if is_if(node) else _inside(node):
            left[label_of(each)] = f"it stands inside {label_of(node)!r}, which runs it again"
    return Targets(tuple(layers), left)


def collect_activations(layers: Iterable[TargetNode]) -> tuple[ActivationTensor, ...]:
    """The tensors that layers read."""
    sources: dict[ir.Value, ActivationTensor] = {}
    for layer in layers:
        for index in layer.activations:
            value = layer.node.inputs[index]
            assert value is not None, "asked before"
            sources.setdefault(value, ActivationTensor(value)).readers.append((layer, index))
    return tuple(sources.values())


def _layer(node: ir.Node) -> TargetNode | None:
    if _types(node) - {ir.DataType.FLOAT}:
        return None
    if has_trait(node, OpTrait.RECURRENT):
        return _recurrent(node)
    if not has_trait(node, OpTrait.MATMUL):
        return None
    constant = [index for index in (0, 1) if _is_known(node, index)]
    if len(constant) == 2:
        return None  # whatever it is, nobody wanted it folded
    if any(_is_empty(node.inputs[index]) for index in constant):
        return None
    activations = tuple(index for index in (0, 1) if index not in constant)
    if not constant:
        return TargetNode(node, activations, ())
    bias = bias_input_of(node)
    bias = bias if bias is not None and _is_known(node, bias) else None
    return TargetNode(
        node, activations, (_weight(node, constant[0]),), bias, _get_activation_axis(node)
    )


def _weight(node: ir.Node, index: int) -> WeightInput:
    value = node.inputs[index]
    assert value is not None
    assert value.const_value is not None
    rank = len(value.const_value.shape)
    if node.op_type == "MatMul":
        if rank < 2:
            return WeightInput(index, (), None)
        channel, inputs = (rank - 1, rank - 2) if index == 1 else (rank - 2, rank - 1)
        # A stack of matrices has channels of its own in each.
        return WeightInput(index, (*range(rank - 2), channel), inputs if rank == 2 else None)
    if index != 1:
        return WeightInput(index, (), None)  # x and weight of a convolution, swapped by hand
    channel = 1 if node.op_type == "ConvTranspose" else 0
    if node.op_type == "Gemm":
        channel = 0 if attribute_of(node, "transB", 0) else 1
    groups = attribute_of(node, "group", 1)
    if groups == 1:
        return WeightInput(index, (channel,), 1 - channel)
    outer, inner = value.const_value.shape.numpy()[:2]
    if node.op_type == "ConvTranspose" and groups == outer:
        return WeightInput(index, (0, 1), None)
    if node.op_type == "Conv" and inner == 1 and groups > 0 and outer % groups == 0:
        return WeightInput(index, (channel,), channel, outer // groups)
    return WeightInput(index, (channel,), None)


def _get_activation_axis(node: ir.Node) -> int | None:
    match node.op_type:
        case "MatMul":
            return -1 if _is_known(node, 1) or _rank(node.inputs[1]) == 1 else -2
        case "Gemm":
            return None if attribute_of(node, "transA", 0) else -1
        case _:
            return 1


def _recurrent(node: ir.Node) -> TargetNode | None:
    if not all(_is_known(node, index) for index in (1, 2)) or _is_known(node, 0):
        return None
    return TargetNode(
        node, (0,), (WeightInput(1, (0, 1), 2), WeightInput(2, (0, 1), None)), None, -1
    )


def _reason(node: ir.Node) -> str:
    """Why a node that multiplies weights is not a layer; "" for others."""
    if is_matmul_like(node):
        types = _types(node) - {ir.DataType.FLOAT}
        if None in types:
            return "its type is not known"
        if types:
            return f"it computes in {', '.join(sorted(map(str, types)))}"
        if any(_is_empty(value) for value in get_factors(node)):
            return "its weights have no elements"
        return "all that it multiplies is constant" if _is_known(node, 0) else "its weights change"
    if (node.domain, node.op_type) == ("", "Gather") and _is_table(node.inputs[0]):
        return "a table, of which it only takes rows"
    foreign = node.op_type == "Einsum" or node.domain not in ("", "ai.onnx.ml")
    if foreign and any(_is_table(value) and _rank(value) > 1 for value in node.inputs):
        return "it holds weights, in a way of its own"
    return ""


def is_matmul_like(node: ir.Node) -> bool:
    """Whether it multiplies and adds up, be it a layer or not."""
    return has_trait(node, OpTrait.RECURRENT | OpTrait.MATMUL)


def get_factors(node: ir.Node) -> list[ir.Value]:
    """What it multiplies."""
    return [value for value in node.inputs[:2] if value is not None]


def _types(node: ir.Node) -> set[ir.DataType | None]:
    """What both factors are: of one type, so that either may say it."""
    types = {value.dtype for value in get_factors(node)}
    return types - {None} or types


def _is_float(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT


def _is_known(node: ir.Node, index: int) -> bool:
    value = node.inputs[index] if index < len(node.inputs) else None
    return value is not None and is_constant(value)


def _is_table(value: ir.Value | None) -> bool:
    return value is not None and is_constant(value) and _is_float(value)


def _is_empty(value: ir.Value | None) -> bool:
    constant = None if value is None else value.const_value
    return constant is not None and constant.size == 0


def _rank(value: ir.Value | None) -> int:
    return 0 if value is None or value.shape is None else len(value.shape)


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    for graph in inner_graphs(node):
        for each in nodes_in(graph):
            if is_matmul_like(each):
                yield each


def find_smoothing_axis(source: ActivationTensor) -> int | None:
    """The axis of the channels of a tensor whose readers all allow for smoothing; else None."""
    axes = set()
    if source.sites or not source.smooth:
        return None  # others read it, too
    for layer, index in source.readers:
        (weight,) = layer.weights if len(layer.weights) == 1 else (None,)
        if weight is None or weight.input_axis is None or index == weight.index:
            return None
        axes.add(layer.activation_axis)
    return axes.pop() if len(axes) == 1 else None


def count_channels(source: ActivationTensor) -> int:
    """How many channels a tensor has that can be smoothed."""
    layer, _ = source.readers[0]
    (weight, array), *_ = layer.constants
    assert weight.input_axis is not None, "asked before"
    return int(array.shape[weight.input_axis]) // weight.repeats
