# SPDX-License-Identifier: Apache-2.0
"""The networks that the tables of few bits time: their layers, with weights made from a seed.

A network is walked by a writer, which makes one kind of file of it: with quantizers of few bits
(`_quantized.py`), in float32, or in ONNX Runtime's int8 (`_peers.py`). The shapes are those of the
literature; the weights are random, as they lie in trained networks.
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
    """With batch normalization and an activation behind it."""

    channels: int
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    depthwise: bool = False


@dataclass(frozen=True)
class MaxPool:
    size: int
    stride: int
    pad: int = 0


@dataclass(frozen=True)
class Residual:
    """A body whose end has no activation, and a way around it: both are added, then rectified."""

    body: tuple[Convolution, ...]
    shortcut: Convolution | None = None


@dataclass(frozen=True)
class Mean:
    """Of all pixels; the result has no pixels."""


@dataclass(frozen=True)
class Flatten:
    pass


@dataclass(frozen=True)
class Dense:
    """With batch normalization and an activation behind it, unless it is the last."""

    units: int
    last: bool = False


Layer: TypeAlias = Convolution | MaxPool | Residual | Mean | Flatten | Dense


@dataclass(frozen=True)
class Network:
    """A row of the input, whose values lie in -1..1, and the layers."""

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
    for stride, following in (
        *((1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512)),
        *((1, 512),) * 5,
        *((2, 1024), (1, 1024)),
    ):
        layers += [Convolution(channels, 3, stride, 1, depthwise=True), Convolution(following)]
        channels = following
    return (*layers, Mean(), Dense(1000, last=True))


def _resnet18() -> tuple[Layer, ...]:
    layers: list[Layer] = [Convolution(64, 7, 2, 3), MaxPool(3, 2, 1)]
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        first = Convolution(channels, 3, stride, 1)
        same = Convolution(channels, 3, 1, 1)
        around = Convolution(channels, 1, stride) if stride > 1 else None
        layers += [Residual((first, same), around), Residual((same, same))]
    return (*layers, Mean(), Dense(1000, last=True))


def multilayer(name: str, *sizes: int) -> Network:
    """Fully connected layers of those sizes."""
    *hidden, last = (Dense(units) for units in sizes[1:])
    return Network(name, sizes[:1], (*hidden, Dense(last.units, last=True)))


TFC = multilayer("TFC", 784, 64, 64, 64, 10)
KWS = multilayer("KWS", 490, 256, 256, 256, 12)
CNV = Network("CNV", (3, 32, 32), _cnv())
MOBILENET = Network("MobileNetV1", (3, 224, 224), _mobilenet())
RESNET = Network("ResNet-18", (3, 224, 224), _resnet18())


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: the sizes of a row, and how it is quantized, if it is."""

    name: str
    row: tuple[int, ...]
    scale: float = 1.0
    largest: float = 1.0
    """The largest code."""
    power: float = 0.5
    """The mean square of the numbers."""


@dataclass(frozen=True)
class Weights:
    """Of one layer: target x source [x height x width], and the normalization behind it."""

    values: Array
    gain: Array
    offset: Array

    @property
    def terms(self) -> int:
        """How many products a sum has."""
        return int(np.prod(self.values.shape[1:]))


class Writer(Protocol):
    """One kind of file. All methods append nodes and give what comes out."""

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
    """Nodes and constants, which get names when they are appended."""

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


def written(network: Network, writer: Writer, batch: int | str = "n") -> onnx.ModelProto:
    """The network as that writer writes it; the same weights for every writer."""
    x = Value("x", network.row)
    walk = _Walk(writer, np.random.default_rng(0))
    y = writer.begin(x)
    for layer in network.layers:
        y = walk.layer(y, layer)
    y = writer.end(y)
    return writer.graph.model(x, y, batch)


class _Walk:
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
        around = x if layer.shortcut is None else self.convolution(x, layer.shortcut, False)
        y = x
        for index, each in enumerate(layer.body):
            y = self.convolution(y, each, index + 1 < len(layer.body))
        return self.writer.add(y, around)

    def weights(self, shape: tuple[int, ...]) -> Weights:
        """Trained weights have more values near 0, and farther away, than a normal distribution."""
        values = self.random.laplace(size=shape).astype(np.float32) * np.float32(0.5)
        gain = self.random.uniform(0.5, 1.5, shape[0]).astype(np.float32)
        offset = self.random.normal(0, 0.3, shape[0]).astype(np.float32)
        return Weights(values, gain, offset)


def pooled(x: Value, size: int, stride: int, pad: int) -> tuple[int, ...]:
    """The sizes of what windows of that size give, without the channels."""
    return tuple((length + 2 * pad - size) // stride + 1 for length in x.row[1:])
