# SPDX-License-Identifier: Apache-2.0
"""Small convolutional networks for images of digits whose float32 sums are exact.

All scales are powers of two. The weights are random numbers of a fixed seed.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from small_models import DOMAIN

CHANNELS, CLASSES, PIXELS = 12, 10, 16
FORMATS = {"W8A8": (8, 8), "W4A8": (4, 8), "W3A5": (3, 5), "W2A2": (2, 2), "W1A1": (1, 1)}
"""Bits of weights and activations by name; 2 bits are ternary weights."""


@dataclass
class Graph:
    """Nodes and constants of a network.

    Attributes:
        weights, activations: Bits of the quantizers.
        random: Source of weights.
    """

    weights: int
    activations: int
    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Append a node; return its output."""
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [name], name, domain=domain, **attributes)
        )
        return name

    def hold(self, value: object, dtype: type = np.float32) -> str:
        """Append a constant; return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def quantize(self, x: str, scale: object, bits: int, **attributes: object) -> str:
        """Append a quantizer: bipolar for 1 bit."""
        if bits == 1:
            return self.add("BipolarQuant", x, self.hold(scale), domain=DOMAIN)
        flags = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND", **attributes}
        parameters = (self.hold(number) for number in (scale, 0, bits))
        return self.add("IntQuant", x, *parameters, domain=DOMAIN, **flags)

    def activate(self, x: str) -> str:
        """Append a ReLU and codes between 0 and PIXELS; for 1 bit, the signs alone."""
        if self.activations == 1:
            return self.quantize(x, 1, 1)
        scale = PIXELS / 2**self.activations
        return self.quantize(self.add("Relu", x), scale, self.activations, signed=0)

    def make_weights(self, *sizes: int) -> str:
        """Append quantized weights of gain 1, with a scale per output channel."""
        largest = max(1, 2 ** (self.weights - 1) - 1)
        integers = self.random.integers(-largest, largest + 1, sizes)
        if self.weights == 1:
            integers = np.where(integers > 0, 1, -1)
        gain = integers.std() * np.sqrt(np.prod(sizes[1:]))
        channels = self.random.integers(-1, 1, (sizes[0], *[1] * (len(sizes) - 1)))
        scales = 2.0 ** (channels - np.rint(np.log2(gain)))
        return self.quantize(self.hold(integers * scales), scales, self.weights, narrow=1)

    def convolve(self, x: str, inputs: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        """Append a convolution with biases that are multiples of 2^-4."""
        weights = self.make_weights(CHANNELS, inputs, kernel, kernel)
        lowest = -40 if self.activations == 1 else -24  # signs are pooled by their maximum
        biases = self.hold(self.random.integers(lowest, lowest + 48, CHANNELS) / 16)
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
        return self.add("Conv", x, weights, biases, group=groups, pads=[kernel // 2] * 4, **shape)


def make_network(name: str) -> onnx.ModelProto:
    """Return the network of a format: input `x` of shape [rows, 8, 8], output `y` [rows, 10].

    A convolution, a depthwise one, a pointwise one with a residual sum, a pooling, a matrix.
    """
    graph = Graph(*FORMATS[name], np.random.default_rng(0))
    x = graph.quantize("x", 1, 5, signed=0)
    x = graph.add("Reshape", x, graph.hold([-1, 1, 8, 8], np.int64))
    x = graph.activate(graph.convolve(x, 1, 3))
    x = graph.activate(graph.convolve(x, 1, 3, 2, CHANNELS))
    residual = graph.activate(graph.convolve(x, CHANNELS, 1))
    x = graph.activate(graph.add("Add", x, residual))
    x = graph.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = graph.add("Flatten", x, axis=1)
    weights = graph.make_weights(CLASSES, 4 * CHANNELS)
    biases = graph.hold(graph.random.integers(-16, 16, CLASSES) / 16)
    graph.nodes.append(helper.make_node("Gemm", [x, weights, biases], ["y"], "Gemm", transB=1))
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8, 8]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", CLASSES]),
    ]
    made = helper.make_graph(graph.nodes, name, ports[:1], ports[1:], graph.constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)
