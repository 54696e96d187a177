# SPDX-License-Identifier: Apache-2.0
"""Networks of the benchmarks: their layers, with random weights from a fixed seed.

A writer turns a network into one ONNX model: with low-bit quantizers (`_quantized.py`), in float32,
or in ONNX Runtime's int8 (`_peers.py`). Shapes are from the literature. Weights follow a Laplace
distribution, like those of trained networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = np.ndarray


@dataclass(frozen=True)
class Convolution:
    """Convolution, batch normalization and activation."""

    channels: int
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    depthwise: bool = False


@dataclass(frozen=True)
class MaxPool:
    """Max pooling over square windows."""

    size: int
    stride: int
    pad: int = 0


@dataclass(frozen=True)
class Residual:
    """Residual block: the sum of body and shortcut, followed by an activation.

    The last convolution of the body has no activation. Without `shortcut` the input is added.
    """

    body: tuple[Convolution, ...]
    shortcut: Convolution | None = None


@dataclass(frozen=True)
class Mean:
    """Global average pooling, followed by a flatten."""


@dataclass(frozen=True)
class Flatten:
    """Flatten to one axis per row."""


@dataclass(frozen=True)
class Dense:
    """Linear layer, followed by batch normalization and activation unless it is the last."""

    units: int
    last: bool = False


Layer: TypeAlias = Convolution | MaxPool | Residual | Mean | Flatten | Dense


@dataclass(frozen=True)
class Network:
    """Network whose inputs lie in -1..1; `row` is the shape of one sample."""

    name: str
    row: tuple[int, ...]
    layers: tuple[Layer, ...]


def _cnv() -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for channels in (64, 128, 256):
        layers += [Convolution(channels, 3)] * 2
        layers += [MaxPool(2, 2)] if channels < 256 else []
    return (*layers, Flatten(), Dense(512), Dense(512), Dense(10, last=True))


def _mobilenet() -> tuple[Layer, ...]:
    layers: list[Layer] = [Convolution(32, 3, 2, 1)]
    channels = 32
    for stride, next_channels in (
        *((1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512)),
        *((1, 512),) * 5,
        *((2, 1024), (1, 1024)),
    ):
        layers += [Convolution(channels, 3, stride, 1, depthwise=True)]
        layers += [Convolution(next_channels)]
        channels = next_channels
    return (*layers, Mean(), Dense(1000, last=True))


def _resnet18() -> tuple[Layer, ...]:
    layers: list[Layer] = [Convolution(64, 7, 2, 3), MaxPool(3, 2, 1)]
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        first = Convolution(channels, 3, stride, 1)
        same = Convolution(channels, 3, 1, 1)
        shortcut = Convolution(channels, 1, stride) if stride > 1 else None
        layers += [Residual((first, same), shortcut), Residual((same, same))]
    return (*layers, Mean(), Dense(1000, last=True))


def multilayer(name: str, *sizes: int) -> Network:
    """Return a network of linear layers; `sizes` begins with the number of inputs."""
    *hidden, last = (Dense(units) for units in sizes[1:])
    return Network(name, sizes[:1], (*hidden, Dense(last.units, last=True)))


TFC = multilayer("TFC", 784, 64, 64, 64, 10)
KWS = multilayer("KWS", 490, 256, 256, 256, 12)
CNV = Network("CNV", (3, 32, 32), _cnv())
MOBILENET = Network("MobileNetV1", (3, 224, 224), _mobilenet())
RESNET = Network("ResNet-18", (3, 224, 224), _resnet18())


@dataclass(frozen=True)
class Value:
    """Tensor of the graph.

    Attributes:
        name: Its name.
        row: The shape of one sample.
        scale: The quantization scale.
        largest: The largest code.
        power: The mean square of the values.
    """

    name: str
    row: tuple[int, ...]
    scale: float = 1.0
    largest: float = 1.0
    power: float = 0.5


@dataclass(frozen=True)
class Weights:
    """Weights of one layer, (outputs, inputs[, height, width]), and its batch normalization."""

    values: Array
    gain: Array
    offset: Array

    @property
    def terms(self) -> int:
        """Return the length of the reduction axis."""
        return int(np.prod(self.values.shape[1:]))


class Writer(Protocol):
    """Builder of one kind of model; methods append nodes and return the output."""

    graph: "Graph"

    def begin(self, x: Value) -> Value: ...
    def convolution(
        self, x: Value, layer: Convolution, weights: Weights, active: bool
    ) -> Value: ...
    def dense(self, x: Value, weights: Weights, last: bool) -> Value: ...
    def max_pool(self, x: Value, layer: MaxPool) -> Value: ...
    def add(self, first: Value, second: Value) -> Value: ...
    def mean(self, x: Value) -> Value: ...
    def flatten(self, x: Value) -> Value: ...
    def end(self, y: Value) -> Value: ...


@dataclass
class Graph:
    """Nodes and constants, named in the order of their creation."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, inputs, [name], f"{name}_node", domain=domain, **attributes)
        )
        return name

    def model(self, x: Value, y: Value, batch: int | str) -> onnx.ModelProto:
        make = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "network",
            [make(x.name, TensorProto.FLOAT, [batch, *x.row])],
            [make(y.name, TensorProto.FLOAT, [batch, *y.row])],
            self.constants,
        )
        domains = {"": 17, "qonnx.custom_op.general": 2, "com.microsoft": 1}
        used = {"", *(node.domain for node in self.nodes)}
        imports = [helper.make_opsetid(name, domains[name]) for name in domains if name in used]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def build_model(network: Network, writer: Writer, batch: int | str = "n") -> onnx.ModelProto:
    """Build the network with a writer; weights are the same for every writer."""
    x = Value("x", network.row)
    builder = _Builder(writer, np.random.default_rng(0))
    y = writer.begin(x)
    for layer in network.layers:
        y = builder.layer(y, layer)
    y = writer.end(y)
    return writer.graph.model(x, y, batch)


class _Builder:
    """Layers in order, each with weights from one random generator."""

    def __init__(self, writer: Writer, random: np.random.Generator) -> None:
        self.writer, self.random = writer, random

    def layer(self, x: Value, layer: Layer) -> Value:
        match layer:
            case Convolution():
                return self.convolution(x, layer, True)
            case Residual():
                return self.residual(x, layer)
            case Dense():
                weights = self.weights((layer.units, *x.row))
                return self.writer.dense(x, weights, layer.last)
            case MaxPool():
                return self.writer.max_pool(x, layer)
            case Mean():
                return self.writer.mean(x)
            case Flatten():
                return self.writer.flatten(x)

    def convolution(self, x: Value, layer: Convolution, active: bool) -> Value:
        source = 1 if layer.depthwise else x.row[0]
        weights = self.weights((layer.channels, source, layer.kernel, layer.kernel))
        return self.writer.convolution(x, layer, weights, active)

    def residual(self, x: Value, layer: Residual) -> Value:
        shortcut = x if layer.shortcut is None else self.convolution(x, layer.shortcut, False)
        y = x
        for index, convolution in enumerate(layer.body):
            y = self.convolution(y, convolution, index + 1 < len(layer.body))
        return self.writer.add(y, shortcut)

    def weights(self, shape: tuple[int, ...]) -> Weights:
        """Sample weights with the heavy tails of trained ones, and a batch normalization."""
        values = self.random.laplace(size=shape).astype(np.float32) * np.float32(0.5)
        gain = self.random.uniform(0.5, 1.5, shape[0]).astype(np.float32)
        offset = self.random.normal(0, 0.3, shape[0]).astype(np.float32)
        return Weights(values, gain, offset)


def window_shape(x: Value, size: int, stride: int, pad: int) -> tuple[int, ...]:
    """Return the spatial shape of the output of a convolution or pooling."""
    return tuple((length + 2 * pad - size) // stride + 1 for length in x.row[1:])
