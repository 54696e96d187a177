# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for small quantized networks.

In an exact network every float is a small integer times a power of two, so that sums come out the
same in any order: no optimizer may change a number. The others have arbitrary scales.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from cases import MODES
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from ort_backend import BY_NAME, node

from anybit import formats

# Sums of float32 numbers that have a common step are exact up to here.
MOST_STEPS = 2.0**24
DRAW_FORMAT = st.sampled_from(
    [
        formats.float8_e4m3fn,
        formats.float8_e5m2,
        formats.float4_e2m1fn,
        formats.float6_e3m2fn,
        formats.FloatFormat(4, 3, 8),
    ]
)


@dataclass(frozen=True, repr=False, eq=False)
class RandomGraph:
    """A model with the input x, and a value for it."""

    proto: onnx.ModelProto
    x: np.ndarray
    exact: bool

    def __repr__(self) -> str:
        return f"{onnx.printer.to_text(self.proto)}\nx = {self.x!r}"


@dataclass(frozen=True)
class Tensor:
    """A value of the graph: multiples of `step`, at most `largest` in magnitude."""

    name: str
    shape: tuple[int, ...]
    step: float
    largest: float


@dataclass
class Builder:
    """A graph that grows at its end, which is `last`."""

    draw: Any
    exact: bool
    last: Tensor
    native: bool = False
    """Whether quantizers are such as QuantizeLinear has a type for."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)

    def name(self, prefix: str) -> str:
        return f"{prefix}_{len(self.nodes)}_{len(self.tensors)}"

    def constant(self, value: Any, prefix: str) -> str:
        name = self.name(prefix)
        array = np.asarray(value, np.float32)
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def integers(self, values: Sequence[int]) -> str:
        name = self.name("integers")
        self.tensors.append(numpy_helper.from_array(np.int64(values), name))
        return name

    def append(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        result = self.name(kind)
        self.nodes.append(helper.make_node(kind, inputs, [result], f"{result}_node", **attributes))
        return result

    def grow(self, kind: str, inputs: Sequence[str], tensor: Tensor, **attributes: Any) -> None:
        """Add a node that reads `last`; the name of its result is chosen later."""
        result = self.append(kind, [self.last.name, *inputs], **attributes)
        self.last = Tensor(result, tensor.shape, tensor.step, tensor.largest)

    def quantized(self, x: Tensor, axis: int) -> Tensor:
        """Any quantizer of ours, with one scale or one per channel."""
        name = self.draw(
            st.sampled_from(["int_quant"] * 4 + ["float_quant", "trunc", "bipolar_quant"])
        )
        scale = self._scale(x.shape, axis)
        parameters, attributes, step, largest = self._drawn(name, scale)
        inputs = [x.name, *(self.constant(value, "parameter") for value in parameters)]
        made = node(BY_NAME[name], inputs, [self.name(name)], **attributes)
        made.name = made.output[0] + "_node"
        self.nodes.append(made)
        return Tensor(made.output[0], x.shape, step, largest)

    def _scale(self, shape: tuple[int, ...], axis: int) -> np.ndarray:
        count = shape[axis] if not self.native and self.draw(st.booleans()) else 1
        powers = st.integers(-4, 0).map(lambda exponent: 2.0**exponent)
        drawn = powers if self.exact else st.floats(2.0**-6, 1, width=32)
        scale = np.float32(self.draw(st.lists(drawn, min_size=count, max_size=count)))
        if count == 1:
            return scale.reshape(())
        return scale.reshape([-1 if place == axis else 1 for place in range(len(shape))])

    def _drawn(
        self, name: str, scale: np.ndarray
    ) -> tuple[list[Any], dict[str, Any], float, float]:
        """Parameters, attributes, and what the result's numbers are."""
        width = self.draw(st.sampled_from([2, 4, 4, 8, 8]) if self.native else st.integers(1, 8))
        flags = {"signed": self.draw(st.booleans()), "narrow": self.draw(st.booleans())}
        mode = "ROUND" if self.native else self.draw(st.just("ROUND") | st.sampled_from(MODES))
        step, unit = float(scale.min()), float(scale.max())
        match name:
            case "int_quant":
                zeropt = 0.0 if self.native else self.draw(st.sampled_from([0.0] * 3 + [1.0, 3.0]))
                attributes = {**flags, "rounding_mode": mode}
                return [scale, zeropt, width], attributes, step, unit * (2**width + zeropt)
            case "float_quant":
                form = self.draw(DRAW_FORMAT)
                attributes = {"rounding_mode": mode}
                finest = 2.0 ** (1 - form.exponent_bias - form.mantissa_bitwidth)
                return [scale, *form], attributes, step * finest, unit * form.largest
            case "trunc":
                attributes = {**flags, "rounding_mode": mode}
                parameters = [scale, 0.0, 8, 2 * scale, width]
                return parameters, attributes, 2 * step, 2 * unit * 2**width
            case _:
                return [scale], {}, step, unit

    def fits(self, step: float, largest: float) -> bool:
        return not self.exact or largest / step <= MOST_STEPS

    def product(self, x: Tensor, weight: Tensor, terms: int) -> tuple[float, float] | None:
        """Step and largest number of a sum of products; None if it is not exact."""
        step, largest = x.step * weight.step, terms * x.largest * weight.largest
        return (step, largest) if self.fits(step, largest) else None


@st.composite
def graphs(draw: st.DrawFn, exact: bool = True, fusible: bool = False) -> RandomGraph:
    """Draw a graph of a few layers, with an input of any batch size.

    If they are to be `fusible`, all are what optimizers join with quantizers.
    """
    batch, channels, size = draw(st.integers(1, 2)), draw(st.integers(1, 3)), 4
    images = draw(st.sampled_from([True, True, False]))
    shape = (batch, channels, size, size) if images else (batch, draw(widths))
    x = Tensor("x", shape, 2.0**-4, 8.0)
    builder = Builder(draw, exact, x, native=fusible)
    for _ in range(draw(st.integers(1, 4))):
        draw(st.sampled_from(FUSIBLE if fusible else LAYERS[len(builder.last.shape)]))(builder)
    declared = [draw(st.sampled_from(["n", batch])), *shape[1:]]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*builder.nodes, helper.make_node("Identity", [builder.last.name], ["y"])],
        "graph",
        [value("x", TensorProto.FLOAT, declared)],
        [value("y", TensorProto.FLOAT, [None] * len(builder.last.shape))],
        builder.tensors,
    )
    imports = [helper.make_opsetid("", draw(st.sampled_from([13, 17, 20])))]
    imports.append(helper.make_opsetid("qonnx.custom_op.general", 2))
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    seed = draw(st.integers(0, 2**16))
    steps = np.random.default_rng(seed).integers(-128, 129, shape)
    return RandomGraph(proto, np.float32(steps / 16), exact)


widths = st.integers(1, 8)


def quantize(builder: Builder) -> None:
    builder.last = builder.quantized(builder.last, 1)


def relu(builder: Builder) -> None:
    builder.grow("Relu", [], builder.last)


def clip(builder: Builder) -> None:
    """ReLU6 and its like; the limits are multiples of the step, so that nothing is rounded."""
    last = builder.last
    low = builder.draw(st.sampled_from([0.0, -last.step, -last.largest]))
    high = builder.draw(st.sampled_from([last.step * 6, last.largest]))
    limits = [builder.constant(limit, "limit") for limit in (low, high)]
    builder.grow("Clip", limits, last)


def two_quantizers(builder: Builder) -> None:
    """Append two quantizers in sequence, with nodes between them that do nothing."""
    for _ in range(2):
        quantize(builder)
        nothing(builder)


def rectified_quantizer(builder: Builder) -> None:
    """Add a Relu or a Clip, nodes that do nothing, a quantizer."""
    builder.draw(st.sampled_from([relu, clip]))(builder)
    nothing(builder)
    quantize(builder)


def nothing(builder: Builder) -> None:
    """Up to two nodes or pairs of nodes that change no value, and that an optimizer removes."""
    for _ in range(builder.draw(st.integers(0, 2))):
        _hand_on(builder, builder.draw(st.sampled_from(NOTHING)))


NOTHING = ("Identity", "Dropout", "Mul", "Add", "Cast", "Slice", "Transpose", "Expand", "Unsqueeze")


def _hand_on(builder: Builder, kind: str) -> None:
    last = builder.last
    match kind:
        case "Mul" | "Add":
            builder.grow(kind, [builder.constant(float(kind == "Mul"), "neutral")], last)
        case "Cast":
            builder.grow(kind, [], last, to=TensorProto.FLOAT)
        case "Slice":
            ends = [builder.integers(numbers) for numbers in ([0], [2**31 - 1], [1])]
            builder.grow(kind, ends, last)
        case "Transpose":
            order = [0, *range(2, len(last.shape)), 1]
            builder.grow(kind, [], last, perm=order)
            builder.grow(kind, [], last, perm=[order.index(axis) for axis in range(len(order))])
        case "Expand":
            builder.grow(kind, [builder.integers([1])], last)
        case "Unsqueeze":
            axis = builder.integers([1])
            builder.grow(kind, [axis], last)
            builder.grow("Squeeze", [axis], last)
        case _:
            builder.grow(kind, [], last)


def max_pool(builder: Builder) -> None:
    _pool(builder, "MaxPool", 1)


def average_pool(builder: Builder) -> None:
    _pool(builder, "AveragePool", 4)


def _pool(builder: Builder, kind: str, parts: int) -> None:
    last = builder.last
    batch, channels, rows, columns = last.shape
    if rows < 2 or not builder.fits(last.step / parts, parts * last.largest):
        return
    result = Tensor("", (batch, channels, rows // 2, columns // 2), last.step / parts, last.largest)
    builder.grow(kind, [], result, kernel_shape=[2, 2], strides=[2, 2])


def global_average_pool(builder: Builder) -> None:
    last = builder.last
    parts = math.prod(last.shape[2:])
    if builder.fits(last.step / parts, parts * last.largest):
        result = Tensor("", (*last.shape[:2], 1, 1), last.step / parts, last.largest)
        builder.grow("GlobalAveragePool", [], result)


def flatten(builder: Builder) -> None:
    last = builder.last
    shape = (last.shape[0], math.prod(last.shape[1:]))
    builder.grow("Flatten", [], Tensor("", shape, last.step, last.largest))


def add(builder: Builder) -> None:
    """Add a quantized version of the tensor to the tensor: a residual connection."""
    last = builder.last
    other = builder.quantized(last, 1)
    step, largest = min(last.step, other.step), last.largest + other.largest
    if builder.fits(step, largest):
        builder.grow("Add", [other.name], Tensor("", last.shape, step, largest))


def convolution(builder: Builder) -> None:
    draw = builder.draw
    x = builder.quantized(builder.last, 1)
    channels = x.shape[1]
    depthwise = draw(st.booleans())
    kernel = draw(st.sampled_from([1, 3]))
    count = channels if depthwise else draw(st.integers(1, 3))
    shape = (count, 1 if depthwise else channels, kernel, kernel)
    weight = _weight(builder, shape, 0)
    numbers = builder.product(x, weight, math.prod(shape[1:]))
    builder.last = x
    if numbers is not None:
        options = {"group": channels if depthwise else 1, "pads": [kernel // 2] * 4}
        result = Tensor("", (x.shape[0], count, *x.shape[2:]), *numbers)
        builder.grow("Conv", [weight.name], result, **options)


def dense(builder: Builder) -> None:
    """x W, or x transposed(W), perhaps with a bias."""
    draw = builder.draw
    x = builder.quantized(builder.last, 1)
    count, terms = draw(widths), x.shape[1]
    transposed = draw(st.booleans())
    weight = _weight(builder, (count, terms) if transposed else (terms, count), 1 - transposed)
    numbers = builder.product(x, weight, terms)
    builder.last = x
    if numbers is None:
        return
    name = weight.name
    if transposed:
        name = builder.append("Transpose", [name], perm=[1, 0])
    builder.grow("MatMul", [name], Tensor("", (x.shape[0], count), *numbers))
    step, largest = numbers
    if draw(st.booleans()) and builder.fits(step, largest + 8 * step):
        bias = builder.constant(step * np.arange(count), "bias")
        builder.grow("Add", [bias], Tensor("", builder.last.shape, step, largest + 8 * step))


def _weight(builder: Builder, shape: tuple[int, ...], axis: int) -> Tensor:
    seed = builder.draw(st.integers(0, 2**16))
    values = np.random.default_rng(seed).integers(-32, 33, shape) / 16
    name = builder.constant(values, "weight")
    return builder.quantized(Tensor(name, shape, 2.0**-4, 2.0), axis)


FUSIBLE = (two_quantizers, rectified_quantizer, rectified_quantizer)
LAYERS = {
    4: (
        *(quantize, relu, clip, nothing, add, convolution, convolution),
        *(two_quantizers, rectified_quantizer),
        *(max_pool, average_pool, global_average_pool, flatten),
    ),
    2: (quantize, relu, add, dense, dense, nothing, two_quantizers, rectified_quantizer),
}
