# SPDX-License-Identifier: Apache-2.0
"""Networks of `_layers.py` in the fastest forms of ONNX Runtime: float32 and int8.

Both have batch normalization folded into the weights, and Relu for every activation, which the
runtime fuses. Int8 has unsigned activations and signed per-channel weights. It requantizes sums by
a float multiplication, so its outputs are close to those of the float graph, but not equal.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from _layers import Convolution, Graph, MaxPool, Value, Weights, window_shape

# Scale of the activations of int8 networks.
ACTIVATION_SCALE = 0.05


@dataclass
class Float32:
    """Writer of Conv, Gemm and Relu in float32."""

    graph: Graph = field(default_factory=Graph)

    def begin(self, x: Value) -> Value:
        return x

    def convolution(self, x: Value, layer: Convolution, weights: Weights, active: bool) -> Value:
        shape = (-1, 1, 1, 1)
        folded = weights.values * _gain(weights).reshape(shape)
        inputs = [x.name, self.graph.constant(folded), self.graph.constant(weights.offset)]
        y = self.graph.node("Conv", inputs, **_attributes(x, layer))
        row = (layer.channels, *window_shape(x, layer.kernel, layer.stride, layer.pad))
        return Value(self.graph.node("Relu", [y]) if active else y, row)

    def dense(self, x: Value, weights: Weights, last: bool) -> Value:
        folded = weights.values * _gain(weights)[:, None]
        inputs = [x.name, self.graph.constant(folded.T), self.graph.constant(weights.offset)]
        y = self.graph.node("Gemm", inputs)
        return Value(y if last else self.graph.node("Relu", [y]), (len(folded),))

    def max_pool(self, x: Value, layer: MaxPool) -> Value:
        return _max_pool(self.graph, x, layer)

    def add(self, first: Value, second: Value) -> Value:
        total = self.graph.node("Add", [first.name, second.name])
        return replace(first, name=self.graph.node("Relu", [total]))

    def mean(self, x: Value) -> Value:
        y = self.graph.node("Flatten", [self.graph.node("GlobalAveragePool", [x.name])])
        return Value(y, x.row[:1])

    def flatten(self, x: Value) -> Value:
        return Value(self.graph.node("Flatten", [x.name]), (int(np.prod(x.row)),))

    def end(self, y: Value) -> Value:
        return y


@dataclass
class Int8:
    """Writer of QLinearConv, QGemm and other QLinear operators."""

    graph: Graph = field(default_factory=Graph)

    def begin(self, x: Value) -> Value:
        return replace(x, name=self.graph.node("QuantizeLinear", [x.name, *self._codes()]))

    def convolution(self, x: Value, layer: Convolution, weights: Weights, active: bool) -> Value:
        inputs = [x.name, *self._codes(), *self._weights(weights), *self._codes()]
        y = self.graph.node(
            "QLinearConv", [*inputs, self._offset(weights)], **_attributes(x, layer)
        )
        return Value(y, (layer.channels, *window_shape(x, layer.kernel, layer.stride, layer.pad)))

    def dense(self, x: Value, weights: Weights, last: bool) -> Value:
        values, *parameters = self._weights(weights, transposed=True)
        inputs = [x.name, *self._codes(), values, *parameters, self._offset(weights)]
        y = self.graph.node("QGemm", [*inputs, *self._codes()], "com.microsoft")
        return Value(y, (len(weights.values),))

    def max_pool(self, x: Value, layer: MaxPool) -> Value:
        return _max_pool(self.graph, x, layer)

    def add(self, first: Value, second: Value) -> Value:
        inputs = [first.name, *self._codes(), second.name, *self._codes(), *self._codes()]
        return replace(first, name=self.graph.node("QLinearAdd", inputs, "com.microsoft"))

    def mean(self, x: Value) -> Value:
        inputs = [x.name, *self._codes(), *self._codes()]
        y = self.graph.node("QLinearGlobalAveragePool", inputs, "com.microsoft", channels_last=0)
        return Value(self.graph.node("Flatten", [y]), x.row[:1])

    def flatten(self, x: Value) -> Value:
        return Value(self.graph.node("Flatten", [x.name]), (int(np.prod(x.row)),))

    def end(self, y: Value) -> Value:
        return replace(y, name=self.graph.node("DequantizeLinear", [y.name, *self._codes()]))

    def _codes(self) -> list[str]:
        return [self.graph.constant(ACTIVATION_SCALE), self.graph.constant(0, np.uint8)]

    def _weights(self, weights: Weights, transposed: bool = False) -> list[str]:
        scales = _scales(weights)
        codes = np.rint((weights.values.T / scales).T)
        return [
            self.graph.constant(codes.T if transposed else codes, np.int8),
            self.graph.constant(scales * _gain(weights)),
            self.graph.constant(np.zeros(len(scales)), np.int8),
        ]

    def _offset(self, weights: Weights) -> str:
        step = ACTIVATION_SCALE * _scales(weights) * _gain(weights)
        return self.graph.constant(np.rint(weights.offset / step), np.int32)


def _scales(weights: Weights) -> np.ndarray:
    return np.abs(weights.values.reshape(len(weights.values), -1)).max(axis=1) / 127


def _gain(weights: Weights) -> np.ndarray:
    """Return a gain per channel that keeps the power of activations from layer to layer."""
    return weights.gain / np.sqrt(weights.terms * np.square(weights.values).mean())


def _attributes(x: Value, layer: Convolution) -> dict[str, object]:
    return {
        "strides": [layer.stride] * 2,
        "pads": [layer.pad] * 4,
        "kernel_shape": [layer.kernel] * 2,
        "group": x.row[0] if layer.depthwise else 1,
    }


def _max_pool(graph: Graph, x: Value, layer: MaxPool) -> Value:
    y = graph.node(
        "MaxPool",
        [x.name],
        kernel_shape=[layer.size] * 2,
        strides=[layer.stride] * 2,
        pads=[layer.pad] * 4,
    )
    return Value(y, (x.row[0], *window_shape(x, layer.size, layer.stride, layer.pad)))
