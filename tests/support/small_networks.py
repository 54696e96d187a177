# SPDX-License-Identifier: Apache-2.0
"""Float networks for microcontrollers: several inputs and outputs, cells with states, decoders."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

GRU_GATES = """
  gx = Gemm(x, wx, bx)
  gh = Gemm(h, wh, bh)
  rx, zx, nx = Split<axis = 1>(gx, thirds)
  rh, zh, nh = Split<axis = 1>(gh, thirds)
  rs = Add(rx, rh)
  r = Sigmoid(rs)
  zs = Add(zx, zh)
  z = Sigmoid(zs)
  rn = Mul(r, nh)
  ns = Add(nx, rn)
  n = Tanh(ns)
  d = Sub(h, n)
  zd = Mul(z, d)
  state = Add(n, zd)
  y = Gemm(state, wo, bo)
"""
LSTM_GATES = """
  gx = Gemm(x, wx, bx)
  gh = Gemm(h, wh, bh)
  gates = Add(gx, gh)
  ig, fg, gg, og = Split<axis = 1>(gates, quarters)
  i = Sigmoid(ig)
  f = Sigmoid(fg)
  g = Tanh(gg)
  o = Sigmoid(og)
  fc = Mul(f, c)
  inew = Mul(i, g)
  cell = Add(fc, inew)
  t = Tanh(cell)
  state = Mul(o, t)
  y = Gemm(state, wo, bo)
"""
# As in the first paper on GRUs, which concatenates the input with both states.
CONCATENATED_GRU = """
  xh = Concat<axis = 1>(x, h)
  rs = Gemm(xh, wr, br)
  r = Sigmoid(rs)
  zs = Gemm(xh, wz, bz)
  z = Sigmoid(zs)
  rh = Mul(r, h)
  xrh = Concat<axis = 1>(x, rh)
  ns = Gemm(xrh, wn, bn)
  n = Tanh(ns)
  one = Constant<value_float = 1.0>()
  keep = Sub(one, z)
  kn = Mul(keep, n)
  zh = Mul(z, h)
  state = Add(kn, zh)
"""
DEPTHWISE_1D = """
  a = Conv<strides = [2], pads = [2, 2]>(x, w1, b1)
  ra = Relu(a)
  d = Conv<group = 6, dilations = [2], pads = [2, 2]>(ra, w2, b2)
  rd = Relu(d)
  p = Conv(rd, w3, b3)
  m = MaxPool<kernel_shape = [2], strides = [2]>(p)
  mean = ReduceMean<axes = [2], keepdims = 0>(m)
  y = Gemm(mean, wo, bo)
"""


@dataclass(frozen=True)
class FloatNetwork:
    """A float network in ONNX's text form; its first axis counts samples.

    Attributes:
        inputs: Sizes of inputs.
        outputs: Sizes of outputs.
        nodes: The nodes.
        weights: Sizes of weights.
        integers: Constants of int64.
    """

    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    nodes: str
    weights: Mapping[str, tuple[int, ...]]
    integers: Mapping[str, list[int]]

    def make(self) -> onnx.ModelProto:
        """Return the model with random weights."""
        ports = [
            ", ".join(f"float[N, {', '.join(map(str, sizes))}] {name}" for name, sizes in side)
            for side in (self.inputs.items(), self.outputs.items())
        ]
        text = (
            '<ir_version: 8, opset_import: ["": 17]>\n'
            f"net ({ports[0]}) => ({ports[1]}) {{{self.nodes}}}"
        )
        proto, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
        for name, sizes in self.weights.items():
            fan_in = np.prod(sizes[1:]) if len(sizes) > 2 else sizes[0]
            values = rng.normal(0, 1.5 / np.sqrt(fan_in), sizes).astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(values, name))
        for name, numbers in self.integers.items():
            array = np.array(numbers, np.int64)
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        return proto

    def draw(self, count: int, seed: int) -> dict[str, np.ndarray]:
        """Return random samples."""
        rng = np.random.default_rng(seed)
        return {
            name: rng.uniform(-1, 1, (count, *sizes)).astype(np.float32)
            for name, sizes in self.inputs.items()
        }


def _cell(states: tuple[str, ...], nodes: str, gates: int) -> FloatNetwork:
    inputs = {"x": (4,), **dict.fromkeys(states, (6,))}
    outputs = {"y": (3,), "state": (6,), **({"cell": (6,)} if "c" in states else {})}
    weights = {"wx": (4, gates * 6), "bx": (gates * 6,), "wh": (6, gates * 6), "bh": (gates * 6,)}
    weights |= {"wo": (6, 3), "bo": (3,)}
    return FloatNetwork(
        inputs, outputs, nodes, weights, {{3: "thirds", 4: "quarters"}[gates]: [6] * gates}
    )


def _unroll(cell: FloatNetwork, nodes: str, steps: int) -> FloatNetwork:
    """Return a network of the steps of a cell; its states are zero before the first one."""
    states = {"h": "state", "c": "cell"}
    results = set(re.findall(r"\w+(?=[\w, ]* = \w+[<(])", nodes))
    lines = ["  zero = Constant<value = float[1, 6] {0, 0, 0, 0, 0, 0}>()\n"]
    for step in range(steps):
        renamed = {name: f"{name}{step}" for name in (*results, "x")}
        renamed |= {s: f"{new}{step - 1}" if step else "zero" for s, new in states.items()}
        lines += [
            f"  at{step} = Constant<value = int64 {{{step}}}>()\n",
            f"  x{step} = Gather<axis = 1>(sequence, at{step})",
            "".join(renamed.get(word, word) for word in re.split(r"(\w+)", nodes)),
        ]
    lines.append(f"  y = Identity(y{steps - 1})\n")
    inputs, outputs = {"sequence": (steps, 4)}, {"y": cell.outputs["y"]}
    return FloatNetwork(inputs, outputs, "".join(lines), cell.weights, cell.integers)


_GRU, _LSTM = _cell(("h",), GRU_GATES, 3), _cell(("h", "c"), LSTM_GATES, 4)
NETWORKS = {
    "gru": _GRU,
    "lstm": _LSTM,
    "unrolled gru": _unroll(_GRU, GRU_GATES, 3),
    "unrolled lstm": _unroll(_LSTM, LSTM_GATES, 2),
    "concatenated gru": FloatNetwork(
        {"x": (4,), "h": (6,)},
        {"state": (6,)},
        CONCATENATED_GRU,
        {f"w{gate}": (10, 6) for gate in "rzn"} | {f"b{gate}": (6,) for gate in "rzn"},
        {},
    ),
    "two inputs and outputs": FloatNetwork(
        {"image": (1, 6, 6), "extra": (5,)},
        {"y": (4,), "p": (2,)},
        """
  a = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(image, w1, b1)
  ra = Relu(a)
  f = Flatten(ra)
  all = Concat<axis = 1>(f, extra)
  g = Gemm(all, w2, b2)
  rg = LeakyRelu<alpha = 0.1>(g)
  y = Gemm(rg, w3, b3)
  s = Gemm(rg, w4, b4)
  p = Sigmoid(s)
""",
        {"w1": (4, 1, 3, 3), "b1": (4,), "w2": (41, 8), "b2": (8,)}
        | {"w3": (8, 4), "b3": (4,), "w4": (8, 2), "b4": (2,)},
        {},
    ),
    "normalized image": FloatNetwork(
        {"x": (3, 6, 6)},
        {"y": (4,)},
        """
  mean = Constant<value = float[3, 1, 1] {0.1, 0.2, -0.1}>()
  spread = Constant<value = float[3, 1, 1] {0.5, 0.4, 0.3}>()
  c = Sub(x, mean)
  n = Div(c, spread)
  a = Conv(n, w1, b1)
  h = HardSwish(a)
  d = Conv<group = 6, pads = [1, 1, 1, 1]>(h, w2, b2)
  r = HardSwish(d)
  s = Add(h, r)
  m = GlobalAveragePool(s)
  f = Flatten(m)
  y = Gemm(f, w3, b3)
""",
        {"w1": (6, 3, 3, 3), "b1": (6,), "w2": (6, 1, 3, 3), "b2": (6,)}
        | {"w3": (6, 4), "b3": (4,)},
        {},
    ),
    "decoder": FloatNetwork(
        {"x": (2, 8, 8)},
        {"y": (2, 8, 8)},
        """
  a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1)
  ra = Relu(a)
  b = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(ra, w2, b2)
  rb = Relu(b)
  u = ConvTranspose<strides = [2, 2]>(rb, w3, b3)
  ru = Relu(u)
  scales = Constant<value = float[4] {1, 1, 2, 2}>()
  v = Resize<mode = "nearest", nearest_mode = "floor",
    coordinate_transformation_mode = "asymmetric">(rb, , scales)
  all = Concat<axis = 1>(ra, ru, v)
  y = Conv(all, w4, b4)
""",
        {"w1": (4, 2, 3, 3), "b1": (4,), "w2": (5, 4, 3, 3), "b2": (5,)}
        | {"w3": (5, 4, 2, 2), "b3": (4,), "w4": (2, 13, 1, 1), "b4": (2,)},
        {},
    ),
    "padded and sliced": FloatNetwork(
        {"x": (2, 7, 7)},
        {"y": (3, 2, 5)},
        """
  q = Pad(x, first)
  a = Conv(q, w1, b1)
  r = Relu(a)
  s = Slice(r, starts, ends, axes, steps)
  p = Pad<mode = "reflect">(s, second)
  c = Conv(p, w2, b2)
  y = Slice(c, last_starts, last_ends, last_axes)
""",
        {"w1": (4, 2, 3, 3), "b1": (4,), "w2": (3, 4, 3, 3), "b2": (3,)},
        {
            "first": [0, 0, 0, 1, 0, 0, 1, 2],
            "second": [0, 0, 2, 1, 0, 0, 0, 1],
            "starts": [1, 0],
            "ends": [100, 100],
            "axes": [2, 3],
            "steps": [2, 1],
            "last_starts": [1],
            "last_ends": [100],
            "last_axes": [2],
        },
    ),
    "one dimension": FloatNetwork(
        {"x": (3, 24)},
        {"y": (4,)},
        DEPTHWISE_1D,
        {"w1": (6, 3, 5), "b1": (6,), "w2": (6, 1, 3), "b2": (6,), "w3": (8, 6, 1), "b3": (8,)}
        | {"wo": (8, 4), "bo": (4,)},
        {},
    ),
    "stream with state": FloatNetwork(
        {"x": (3, 4), "past": (3, 2)},
        {"y": (2, 4), "next": (3, 2)},
        """
  window = Concat<axis = 2>(past, x)
  a = Conv(window, w1, b1)
  r = Relu(a)
  y = Conv(r, w2, b2)
  next = Slice(window, starts, ends, axes)
""",
        {"w1": (5, 3, 3), "b1": (5,), "w2": (2, 5, 1), "b2": (2,)},
        {"starts": [-2], "ends": [100], "axes": [2]},
    ),
}
