# SPDX-License-Identifier: Apache-2.0
"""Networks of `_layers.py` with low-bit QONNX quantizers, as training tools export them."""

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
    build_model,
    multilayer,
    window_shape,
)

QONNX = "qonnx.custom_op.general"

# Float32 sums of multiples of one step are exact up to this many steps.
EXACT_STEPS = 2.0**24


@dataclass
class Quantized:
    """Writer of per-channel weight quantizers and a quantizer after every activation.

    Attributes:
        weight_bits: Bits of weights in all layers but the first and the last. 1 is bipolar, 2 is
            ternary.
        activation_bits: Bits of activations; 1 is bipolar.
        signed: Activations are signed, narrow and of scale 1, without Relu.
        power_of_two: Every scale is a power of two and every sum is exact in float32, as after
            training for narrow accumulators.
        outer_bits: Bits of the weights of the first and the last layer.
        input_bits: Bits of the input, which is signed.
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
        quantized, power = self._weights(x, weights, self.outer_bits if self._first else None)
        y = self.graph.node(
            "Conv",
            [x.name, quantized],
            strides=[layer.stride] * 2,
            pads=[layer.pad] * 4,
            kernel_shape=[layer.kernel] * 2,
            group=x.row[0] if layer.depthwise else 1,
        )
        row = (layer.channels, *window_shape(x, layer.kernel, layer.stride, layer.pad))
        return self._activated(Value(y, row), weights, power, active)

    def dense(self, x: Value, weights: Weights, last: bool) -> Value:
        row = (len(weights.values),)
        if last:
            return self._classifier(x, weights, row)
        quantized, power = self._weights(x, weights, None)
        y = self.graph.node("Gemm", [x.name, quantized], transB=1)
        return self._activated(Value(y, row), weights, power, True)

    def max_pool(self, x: Value, layer: MaxPool) -> Value:
        y = self.graph.node(
            "MaxPool",
            [x.name],
            kernel_shape=[layer.size] * 2,
            strides=[layer.stride] * 2,
            pads=[layer.pad] * 4,
        )
        return replace(
            x, name=y, row=(x.row[0], *window_shape(x, layer.size, layer.stride, layer.pad))
        )

    def add(self, first: Value, second: Value) -> Value:
        total = replace(first, name=self.graph.node("Add", [first.name, second.name]))
        return self._rectified(total)

    def mean(self, x: Value) -> Value:
        """Append a global average, truncated to the bits of its input."""
        pixels = int(np.prod(x.row[1:]))
        extra_bits = int(np.ceil(np.log2(pixels)))
        y = self.graph.node("GlobalAveragePool", [x.name])
        y = self.graph.node("Mul", [y, self.graph.constant(pixels)])
        bits = self.activation_bits
        parameters = (x.scale, 0, bits + extra_bits, x.scale * 2**extra_bits, bits)
        inputs = [self.graph.constant(parameter) for parameter in parameters]
        y = self.graph.node("Trunc", [y, *inputs], QONNX, signed=0, rounding_mode="FLOOR")
        y = self.graph.node("Flatten", [y])
        return replace(x, name=y, row=x.row[:1], scale=x.scale * 2**extra_bits)

    def flatten(self, x: Value) -> Value:
        row = (int(np.prod(x.row)),)
        return replace(x, name=self.graph.node("Flatten", [x.name]), row=row)

    def end(self, y: Value) -> Value:
        return y

    def _classifier(self, x: Value, weights: Weights, row: tuple[int, ...]) -> Value:
        """Append the last layer, its bias rounded to the scale of the accumulator."""
        quantized, _ = self._weights(x, weights, self.outer_bits)
        flat = weights.values.reshape(len(weights.values), -1)
        step = x.scale * self._scales(flat, self.outer_bits, x.largest)
        offset = self.graph.constant(np.rint(weights.offset / step) * step)
        return Value(self.graph.node("Gemm", [x.name, quantized, offset], transB=1), row)

    def _activated(self, x: Value, weights: Weights, power: float, active: bool) -> Value:
        """Append batch normalization by the statistics of the layer, and the activation."""
        channels = x.row[0]
        parameters = (weights.gain, weights.offset, np.zeros(channels), np.full(channels, power))
        inputs = [x.name, *(self.graph.constant(parameter) for parameter in parameters)]
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
        """Append a quantizer whose largest value is `largest`, or the next power-of-two scale."""
        if bits == 1:
            name = self.graph.node("BipolarQuant", [x.name, self.graph.constant(1)], QONNX)
            return replace(x, name=name, scale=1.0, largest=1.0, power=1.0)
        codes = 2 ** (bits - signed) - 1
        scale = largest / codes
        if self.power_of_two or self.signed:
            scale = 2.0 ** np.ceil(np.log2(scale))
        inputs = [self.graph.constant(parameter) for parameter in (scale, 0, bits)]
        name = self.graph.node(
            "Quant", [x.name, *inputs], QONNX, signed=int(signed), narrow=int(signed)
        )
        power = min(x.power, (scale * codes) ** 2)
        return replace(x, name=name, scale=float(scale), largest=float(codes), power=power)

    def _weights(self, x: Value, weights: Weights, bits: int | None) -> tuple[str, float]:
        """Append quantized weights; return them and the mean square of the layer's output."""
        self._first = False
        bits = self.weight_bits if bits is None else bits
        flat = weights.values.reshape(len(weights.values), -1)
        power = weights.terms * x.power * float(np.square(flat).mean())
        name = self.graph.constant(weights.values)
        if bits == 1:
            quantized = self.graph.node("BipolarQuant", [name, self.graph.constant(1)], QONNX)
            return quantized, weights.terms * x.power
        scales = self._scales(flat, bits, x.largest)
        shape = (-1, *(1,) * (weights.values.ndim - 1))
        parameters = (scales.reshape(shape), 0, bits)
        inputs = [self.graph.constant(parameter) for parameter in parameters]
        return self.graph.node("Quant", [name, *inputs], QONNX, signed=1, narrow=1), power

    def _scales(self, flat: Array, bits: int, largest: float) -> Array:
        """Select scales per channel: few weights are clipped; a third of ternary ones is 0."""
        if bits == 1:
            return np.ones(len(flat))
        if bits == 2:
            return np.full(len(flat), 0.5 if self.power_of_two or self.signed else 0.45)
        scales = np.abs(flat).max(axis=1) / (2 ** (bits - 1) - 1)
        if not self.power_of_two:
            return scales
        scales = 2.0 ** np.ceil(np.log2(scales))
        while (
            wide := np.abs(np.rint(flat / scales[:, None])).sum(1) * largest > EXACT_STEPS
        ).any():
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


def quantized_model(name: str, batch: int | str = "n") -> onnx.ModelProto:
    """Build one of NETWORKS."""
    network, options = NETWORKS[name]
    return build_model(network, Quantized(**options), batch)  # type: ignore[arg-type]
