# SPDX-License-Identifier: Apache-2.0
"""The networks of `_layers.py` with quantizers of few bits, as training exports them."""

from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from _layers import (
    CNV,
    MOBILENET,
    RESNET,
    Array,
    Convolution,
    Graph,
    MaxPool,
    Network,
    Value,
    Weights,
    multilayer,
    pooled,
    written,
)

QONNX = "qonnx.custom_op.general"

# Sums of float32 with a common step are exact up to here.
MOST_STEPS = 2.0**24


@dataclass
class Quantized:
    """Quantizers of the weights, per channel, and behind every activation.

    Attributes:
        weight_bits: Of all layers but the first and the last; 1 is bipolar, and 2 is ternary.
        activation_bits: The same of activations.
        signed: Whether activations are signed, narrow and of scale 1, without a Relu.
        power_of_two: Whether every scale is a power of two, with sums that float32 holds, as
            training for narrow accumulators leaves them.
        outer_bits: Of the weights of the first and last layer.
        input_bits: Of the input, which is signed.
    """

    weight_bits: int
    activation_bits: int
    signed: bool = False
    power_of_two: bool = False
    outer_bits: int = 8
    input_bits: int = 8
    graph: Graph = field(default_factory=Graph)
    _first: bool = True

    def begin(self, x: Value) -> Value:
        return self._quantized(replace(x, power=0.3), self.input_bits, signed=True, largest=1.0)

    def convolution(self, x: Value, layer: Convolution, weights: Weights, active: bool) -> Value:
        named, power = self._weights(x, weights, self.outer_bits if self._first else None)
        y = self.graph.node(
            "Conv",
            [x.name, named],
            strides=[layer.stride] * 2,
            pads=[layer.pad] * 4,
            kernel_shape=[layer.kernel] * 2,
            group=x.row[0] if layer.depthwise else 1,
        )
        row = (layer.channels, *pooled(x, layer.kernel, layer.stride, layer.pad))
        return self._activated(Value(y, row), weights, power, active)

    def dense(self, x: Value, weights: Weights, last: bool) -> Value:
        row = (len(weights.values),)
        if last:
            return self._classified(x, weights, row)
        named, power = self._weights(x, weights, None)
        y = self.graph.node("Gemm", [x.name, named], transB=1)
        return self._activated(Value(y, row), weights, power, True)

    def max_pool(self, x: Value, layer: MaxPool) -> Value:
        y = self.graph.node(
            "MaxPool",
            [x.name],
            kernel_shape=[layer.size] * 2,
            strides=[layer.stride] * 2,
            pads=[layer.pad] * 4,
        )
        return replace(x, name=y, row=(x.row[0], *pooled(x, layer.size, layer.stride, layer.pad)))

    def add(self, first: Value, second: Value) -> Value:
        total = replace(first, name=self.graph.node("Add", [first.name, second.name]))
        return self._rectified(total)

    def mean(self, x: Value) -> Value:
        """An average that keeps as many bits as its input has."""
        pixels = int(np.prod(x.row[1:]))
        more = int(np.ceil(np.log2(pixels)))
        y = self.graph.node("GlobalAveragePool", [x.name])
        y = self.graph.node("Mul", [y, self.graph.constant(pixels)])
        bits = self.activation_bits
        parameters = (x.scale, 0, bits + more, x.scale * 2**more, bits)
        inputs = [self.graph.constant(each) for each in parameters]
        y = self.graph.node("Trunc", [y, *inputs], QONNX, signed=0, rounding_mode="FLOOR")
        y = self.graph.node("Flatten", [y])
        return replace(x, name=y, row=x.row[:1], scale=x.scale * 2**more)

    def flatten(self, x: Value) -> Value:
        row = (int(np.prod(x.row)),)
        return replace(x, name=self.graph.node("Flatten", [x.name]), row=row)

    def end(self, y: Value) -> Value:
        return y

    def _classified(self, x: Value, weights: Weights, row: tuple[int, ...]) -> Value:
        """The last layer; its bias has the scale of the accumulator, as exporters quantize it."""
        named, _ = self._weights(x, weights, self.outer_bits)
        flat = weights.values.reshape(len(weights.values), -1)
        step = x.scale * self._scales(flat, self.outer_bits, x.largest)
        offset = self.graph.constant(np.rint(weights.offset / step) * step)
        return Value(self.graph.node("Gemm", [x.name, named, offset], transB=1), row)

    def _activated(self, x: Value, weights: Weights, power: float, active: bool) -> Value:
        """Batch normalization by the statistics of the layer, and the activation."""
        channels = x.row[0]
        parameters = (weights.gain, weights.offset, np.zeros(channels), np.full(channels, power))
        inputs = [x.name, *(self.graph.constant(each) for each in parameters)]
        y = replace(x, name=self.graph.node("BatchNormalization", inputs), power=1.1)
        if self.signed:
            return self._quantized(y, self.activation_bits, signed=True, largest=1.0)
        if active:
            return self._rectified(y)
        return self._quantized(y, self.activation_bits, signed=True, largest=2.5)

    def _rectified(self, x: Value) -> Value:
        rectified = replace(x, name=self.graph.node("Relu", [x.name]), power=0.55)
        return self._quantized(rectified, self.activation_bits, signed=False, largest=2.5)

    def _quantized(self, x: Value, bits: int, *, signed: bool, largest: float) -> Value:
        """Codes up to the largest number, or the power of two above it."""
        if bits == 1:
            name = self.graph.node("BipolarQuant", [x.name, self.graph.constant(1)], QONNX)
            return replace(x, name=name, scale=1.0, largest=1.0, power=1.0)
        codes = 2 ** (bits - signed) - 1
        scale = largest / codes
        if self.power_of_two or self.signed:
            scale = 2.0 ** np.ceil(np.log2(scale))
        inputs = [self.graph.constant(each) for each in (scale, 0, bits)]
        name = self.graph.node(
            "Quant", [x.name, *inputs], QONNX, signed=int(signed), narrow=int(signed)
        )
        power = min(x.power, (scale * codes) ** 2)
        return replace(x, name=name, scale=float(scale), largest=float(codes), power=power)

    def _weights(self, x: Value, weights: Weights, bits: int | None) -> tuple[str, float]:
        """The quantized weights, and the mean square of what they give."""
        self._first = False
        bits = self.weight_bits if bits is None else bits
        flat = weights.values.reshape(len(weights.values), -1)
        power = weights.terms * x.power * float(np.square(flat).mean())
        name = self.graph.constant(weights.values)
        if bits == 1:
            named = self.graph.node("BipolarQuant", [name, self.graph.constant(1)], QONNX)
            return named, weights.terms * x.power
        scales = self._scales(flat, bits, x.largest)
        shape = (-1, *(1,) * (weights.values.ndim - 1))
        inputs = [self.graph.constant(each) for each in (scales.reshape(shape), 0, bits)]
        return self.graph.node("Quant", [name, *inputs], QONNX, signed=1, narrow=1), power

    def _scales(self, flat: Array, bits: int, largest: float) -> Array:
        """Per channel: so that hardly a weight is clipped, or a third of ternary ones is 0."""
        if bits == 1:
            return np.ones(len(flat))
        if bits == 2:
            return np.full(len(flat), 0.5 if self.power_of_two or self.signed else 0.45)
        scales = np.abs(flat).max(axis=1) / (2 ** (bits - 1) - 1)
        if not self.power_of_two:
            return scales
        scales = 2.0 ** np.ceil(np.log2(scales))
        while (wide := np.abs(np.rint(flat / scales[:, None])).sum(1) * largest > MOST_STEPS).any():
            scales = np.where(wide, scales * 2, scales)
        return scales


NETWORKS: dict[str, tuple[Network, dict[str, object]]] = {
    "CNV 1W1A": (CNV, {"weight_bits": 1, "activation_bits": 1, "signed": True, "outer_bits": 1}),
    "CNV 2W2A": (CNV, {"weight_bits": 2, "activation_bits": 2, "signed": True, "outer_bits": 2}),
    "MobileNetV1 W4A4": (MOBILENET, {"weight_bits": 4, "activation_bits": 4}),
    "ResNet-18 W4A4": (
        RESNET,
        {"weight_bits": 4, "activation_bits": 4, "power_of_two": True},
    ),
    "ResNet-18 W8A8": (
        RESNET,
        {"weight_bits": 8, "activation_bits": 8, "power_of_two": True},
    ),
}
for _weight, _activation in ((4, 8), (2, 2), (1, 1)):
    NETWORKS[f"GEMV W{_weight}A{_activation}"] = (
        multilayer("GEMV", 4096, 4096),
        {
            "weight_bits": _weight,
            "activation_bits": _activation,
            "power_of_two": True,
            "outer_bits": _weight,
            "input_bits": _activation,
        },
    )


def quantized(name: str, batch: int | str = "n") -> onnx.ModelProto:
    """One of NETWORKS."""
    network, options = NETWORKS[name]
    return written(network, Quantized(**options), batch)  # type: ignore[arg-type]
