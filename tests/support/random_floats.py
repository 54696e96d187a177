# SPDX-License-Identifier: Apache-2.0
"""Random float networks of all operators that multiply, and of much that stands between them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from small_models import model

STEPS = 5


class FloatGraph:
    """A network that grows: `x` is the latest tensor, `shape` its sizes without the batch."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.x = "x"
        self.input = [(3, 8, 8), (6, 8), (12,)][self.random.integers(3)]
        self.shape: tuple[int, ...] = self.input
        for _ in range(STEPS):
            self._pick(_STEPS[len(self.shape)])
        if len(self.shape) > 1:
            self._pick(_TO_ROWS[len(self.shape)])
        dense(self)
        self.nodes[-1].output[0] = "y"

    @property
    def proto(self) -> onnx.ModelProto:
        """The network, for any number of rows."""
        opsets = {"": 17, "com.microsoft": 1}
        shapes = {"x": ["n", *self.input]}
        proto = model(self.nodes, self.constants, inputs=shapes, opsets=opsets)
        proto.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", *self.shape])
        )
        return proto

    def rows(self, count: int, seed: int) -> np.ndarray:
        """Return random inputs of the graph."""
        drawn = np.random.default_rng(seed).standard_normal((count, *self.input))
        return drawn.astype(np.float32)

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def weight(self, *shape: int, terms: int) -> str:
        """Return channels of different sizes, so that a sum of `terms` products is about 1."""
        drawn = self.random.standard_normal(shape) / np.sqrt(terms)
        return self.constant((drawn * np.exp(self.random.normal(0, 0.3))).astype(np.float32))

    def bias(self, size: int) -> str:
        return self.constant((self.random.standard_normal(size) / 4).astype(np.float32))

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Sequence[int] | None = None,
        *,
        domain: str = "",
        output: int = 0,
        outputs: int = 1,
        **attributes: Any,
    ) -> str:
        """Add a node, whose result is the latest tensor."""
        at = len(self.nodes)
        names = [f"t{at}" if index == 0 else f"t{at}_{index}" for index in range(outputs)]
        self.nodes.append(
            helper.make_node(kind, inputs, names, f"{kind}_{at}", domain=domain, **attributes)
        )
        self.x = names[output]
        if shape is not None:
            self.shape = tuple(shape)
        return self.x

    def choice(self, *options: Any) -> Any:
        return options[self.random.integers(len(options))]

    def _pick(self, steps: Sequence[Any]) -> None:
        steps[self.random.integers(len(steps))](self)


def pointwise(graph: FloatGraph) -> None:
    kind = graph.choice("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Elu", "Softplus")
    graph.add(kind, [graph.x])


def foreign(graph: FloatGraph) -> None:
    graph.add(graph.choice("Gelu", "QuickGelu"), [graph.x], domain="com.microsoft")


def clip(graph: FloatGraph) -> None:
    graph.add("Clip", [graph.x, graph.constant(np.float32(-1)), graph.constant(np.float32(2))])


def affine(graph: FloatGraph) -> None:
    factor = graph.constant(np.exp(graph.random.normal(0, 1, graph.shape[-1])).astype(np.float32))
    graph.add("Add", [graph.add("Mul", [graph.x, factor]), graph.bias(graph.shape[-1])])


def convolution(graph: FloatGraph) -> None:
    channels, *sizes = graph.shape
    groups = graph.choice(1, 1, channels)
    out = channels if groups > 1 else int(graph.choice(4, 6))
    kernel = graph.choice(1, 3)
    w = graph.weight(out, channels // groups, *[kernel] * 2, terms=channels // groups * kernel**2)
    inputs = [graph.x, w, *graph.choice([], [graph.bias(out)])]
    stride = graph.choice(1, 1, 2) if min(sizes) >= 4 else 1
    shape = (out, *(-(-size // stride) for size in sizes))
    pads = [kernel // 2] * 4
    graph.add("Conv", inputs, shape, group=groups, pads=pads, strides=[stride] * 2)
    if graph.choice(True, False):
        names = [graph.constant(np.exp(graph.random.normal(0, 0.5, out)).astype(np.float32))]
        names += [graph.bias(out), graph.bias(out)]
        names.append(graph.constant(np.exp(graph.random.normal(0, 0.5, out)).astype(np.float32)))
        graph.add("BatchNormalization", [graph.x, *names])


def transposed(graph: FloatGraph) -> None:
    channels, *sizes = graph.shape
    if max(sizes) > 12:
        return
    w = graph.weight(channels, 4, 2, 2, terms=channels)
    graph.add("ConvTranspose", [graph.x, w], (4, *(2 * size for size in sizes)), strides=[2, 2])


def pool(graph: FloatGraph) -> None:
    channels, *sizes = graph.shape
    if min(sizes) < 4:
        return
    kind = graph.choice("MaxPool", "AveragePool")
    shape = (channels, *(size // 2 for size in sizes))
    graph.add(kind, [graph.x], shape, kernel_shape=[2, 2], strides=[2, 2])


def excited(graph: FloatGraph) -> None:
    """Squeeze and excitation."""
    x, shape = graph.x, graph.shape
    graph.add("GlobalAveragePool", [x], (shape[0], 1, 1))
    graph.add("Conv", [graph.x, graph.weight(2, shape[0], 1, 1, terms=shape[0])])
    graph.add("Relu", [graph.x])
    graph.add("Conv", [graph.x, graph.weight(shape[0], 2, 1, 1, terms=2), graph.bias(shape[0])])
    graph.add("Sigmoid", [graph.x])
    graph.add("Mul", [x, graph.x], shape)


def residual(graph: FloatGraph) -> None:
    x, channels = graph.x, graph.shape[0]
    graph.add("Conv", [x, graph.weight(channels, channels, 3, 3, terms=9 * channels)], pads=[1] * 4)
    graph.add("Add", [graph.x, x])


def joined(graph: FloatGraph) -> None:
    x, (channels, *sizes) = graph.x, graph.shape
    graph.add("Conv", [x, graph.weight(3, channels, 1, 1, terms=channels)])
    graph.add("Concat", [graph.x, x], (channels + 3, *sizes), axis=1)


def to_tokens(graph: FloatGraph) -> None:
    channels, *sizes = graph.shape
    shape = graph.constant(np.array([0, channels, -1]))
    graph.add("Transpose", [graph.add("Reshape", [graph.x, shape])], perm=[0, 2, 1])
    graph.shape = (int(np.prod(sizes)), channels)


def flattened(graph: FloatGraph) -> None:
    graph.add("Flatten", [graph.x], (int(np.prod(graph.shape)),))


def averaged_image(graph: FloatGraph) -> None:
    channels = graph.shape[0]
    graph.add("Flatten", [graph.add("GlobalAveragePool", [graph.x])], (channels,))


def normalized(graph: FloatGraph) -> None:
    size = graph.shape[-1]
    gain = graph.constant(np.exp(graph.random.normal(0, 1, size)).astype(np.float32))
    graph.add("LayerNormalization", [graph.x, gain, graph.bias(size)], axis=-1)


def product(graph: FloatGraph) -> None:
    size, out = graph.shape[-1], int(graph.choice(6, 10))
    graph.add("MatMul", [graph.x, graph.weight(size, out, terms=size)], (*graph.shape[:-1], out))
    if graph.choice(True, False):
        graph.add("Add", [graph.bias(out), graph.x])


def dense(graph: FloatGraph) -> None:
    (size,), out = graph.shape, 7
    turned = int(graph.choice(0, 1))
    w = graph.weight(*((out, size) if turned else (size, out)), terms=size)
    factors = graph.choice({}, {}, {"alpha": 0.5, "beta": 2.0})
    graph.add("Gemm", [graph.x, w, graph.bias(out)], (out,), transB=turned, **factors)


def mixed_tokens(graph: FloatGraph) -> None:
    tokens, size = graph.shape
    graph.add("MatMul", [graph.weight(5, tokens, terms=tokens), graph.x], (5, size))


def attention(graph: FloatGraph) -> None:
    x, size = graph.x, graph.shape[-1]
    q, k, v = (graph.add("MatMul", [x, graph.weight(size, 8, terms=size)]) for _ in range(3))
    turned = graph.add("Transpose", [k], perm=[0, 2, 1])
    scores = graph.add("MatMul", [q, turned])
    root = graph.constant(np.float32(8**-0.5))
    shares = graph.add("Softmax", [graph.add("Mul", [scores, root])], axis=-1)
    graph.add("MatMul", [shares, v], (graph.shape[0], 8))


def recurrent(graph: FloatGraph) -> None:
    tokens, size = graph.shape
    kind, gates = graph.choice(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    directions = int(graph.choice(1, 2))
    graph.add("Transpose", [graph.x], perm=[1, 0, 2])
    w = graph.weight(directions, gates * 5, size, terms=size)
    r = graph.weight(directions, gates * 5, 5, terms=5)
    direction = "bidirectional" if directions == 2 else "forward"
    graph.add(kind, [graph.x, w, r], hidden_size=5, direction=direction)
    graph.add("Transpose", [graph.x], perm=[2, 0, 1, 3])
    shape = graph.constant(np.array([0, 0, 5 * directions]))
    graph.add("Reshape", [graph.x, shape], (tokens, 5 * directions))


def along_time(graph: FloatGraph) -> None:
    """Add a convolution of one axis."""
    tokens, size = graph.shape
    graph.add("Transpose", [graph.x], perm=[0, 2, 1])
    inputs = [graph.x, graph.weight(6, size, 3, terms=3 * size), graph.bias(6)]
    graph.add("Conv", inputs, pads=[1, 1])
    graph.add("Transpose", [graph.x], (tokens, 6), perm=[0, 2, 1])


def gated(graph: FloatGraph) -> None:
    if graph.shape[-1] % 2:
        return
    *others, size = graph.shape
    graph.add("Split", [graph.x], outputs=2, axis=-1)
    left, right = graph.x, f"{graph.x}_1"
    graph.add("Mul", [left, graph.add("Sigmoid", [right])], (*others, size // 2))


def fused(graph: FloatGraph) -> None:
    """Add a product of another domain, which is not quantized."""
    size = graph.shape[-1]
    w = graph.weight(size, 6, terms=size)
    graph.add("FusedMatMul", [graph.x, w], (*graph.shape[:-1], 6), domain="com.microsoft")


def first_token(graph: FloatGraph) -> None:
    graph.add("Gather", [graph.x, graph.constant(np.array(0))], graph.shape[1:], axis=1)


def mean_token(graph: FloatGraph) -> None:
    graph.add("ReduceMean", [graph.x], graph.shape[1:], axes=[1], keepdims=0)


_ANY = [pointwise, pointwise, foreign, clip, affine]
_TO_ROWS = {3: [flattened, averaged_image], 2: [first_token, mean_token, flattened]}
_STEPS = {
    3: [
        *_ANY,
        *(convolution, convolution, transposed, pool, excited, residual, joined, to_tokens),
        averaged_image,
    ],
    2: [
        *_ANY,
        *(normalized, product, product, mixed_tokens, attention, recurrent, along_time, gated),
        *(fused, mean_token),
    ],
    1: [*_ANY, normalized, product, dense, dense, gated, fused],
}
