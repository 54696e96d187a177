# SPDX-License-Identifier: Apache-2.0
"""Random decoder blocks: masks, cross attention, grouped queries, rotary embeddings, caches."""

from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

BATCH, TOKENS, SOURCE, PAST = 2, 5, 4, 3


@dataclass(frozen=True)
class Style:
    """Structure of a decoder block."""

    heads: int
    groups: int
    width: int
    norm: str
    mask: str
    mlp: str
    rope: bool
    cross: bool
    cache: bool

    @property
    def channels(self):
        return self.heads * self.width


def draw_style(seed):
    rng = np.random.default_rng(seed)
    heads = int(rng.choice([1, 2, 4]))
    return Style(
        heads=heads,
        groups=int(rng.choice([count for count in (1, 2, 4) if heads % count == 0])),
        width=int(rng.choice([4, 6, 8])),
        norm=str(rng.choice(["layer", "rms"])),
        mask=str(rng.choice(["", "float", "bool"])),
        mlp=str(rng.choice(["Gelu", "Relu", "gated"])),
        rope=bool(rng.integers(2)),
        cross=bool(rng.integers(2)),
        cache=bool(rng.integers(2)),
    )


class Builder:
    """Nodes, constants and inputs of a model."""

    def __init__(self, style, seed):
        self.style, self.rng = style, np.random.default_rng(seed)
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []

    def node(self, kind, *inputs, count=1, **attributes):
        names = [f"{kind}_{len(self.nodes)}_{i}" for i in range(count)]
        inputs = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if count == 1 else names

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def input(self, name, shape, dtype=TensorProto.FLOAT):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value, shape):
        name = f"y{len(self.outputs)}"
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def normal(self, *shape, scale=1.0):
        return (self.rng.normal(size=shape) * scale).astype(np.float32)

    def linear(self, x, inputs, outputs):
        y = self.node("MatMul", x, self.normal(inputs, outputs, scale=inputs**-0.5))
        return self.node("Add", y, self.normal(outputs, scale=0.1))

    def normalize(self, x):
        channels = self.style.channels
        gain = 1 + self.normal(channels, scale=0.1)
        if self.style.norm == "layer":
            return self.node("LayerNormalization", x, gain, self.normal(channels, scale=0.1))
        square = self.node("Mul", x, x)
        mean = self.node("ReduceMean", square, np.int64([-1]))
        root = self.node("Sqrt", self.node("Add", mean, np.float32(1e-6)))
        return self.node("Mul", self.node("Div", x, root), gain)

    def split(self, x, heads):
        parts = self.node("Reshape", x, np.int64([0, 0, heads, self.style.width]))
        return self.node("Transpose", parts, perm=[0, 2, 1, 3])

    def rotate(self, x):
        """Return rotary embeddings: x cos + rotated x sin, per position of the first tokens."""
        half = self.style.width // 2
        first, second = self.node("Split", x, np.int64([half, half]), count=2, axis=-1)
        turned = self.node("Concat", self.node("Neg", second), first, axis=-1)
        cosine, sine = self.node("Mul", x, "cos"), self.node("Mul", turned, "sin")
        return self.node("Add", cosine, sine)

    def repeat(self, x):
        """Repeat the heads of keys or values for all queries of a group."""
        style = self.style
        if style.groups == style.heads:
            return x
        times = style.heads // style.groups
        wide = self.node("Unsqueeze", x, np.int64([2]))
        wide = self.node("Concat", *[wide] * times, axis=2)
        return self.node("Reshape", wide, np.int64([0, style.heads, -1, style.width]))

    def attention(self, x, memory, *, is_cross):
        style, inner = self.style, self.style.groups * self.style.width
        query = self.split(self.linear(x, style.channels, style.channels), style.heads)
        key, value = (
            self.split(self.linear(memory, style.channels, inner), style.groups) for _ in range(2)
        )
        if style.rope and not is_cross:
            query, key = self.rotate(query), self.rotate(key)
        if style.cache and not is_cross:
            shape = ["b", style.groups, "p", style.width]
            key = self.node("Concat", self.input("past_key", shape), key, axis=2)
            value = self.node("Concat", self.input("past_value", shape), value, axis=2)
            for part in (key, value):
                self.output(part, ["b", style.groups, None, style.width])
        turned = self.node("Transpose", self.repeat(key), perm=[0, 1, 3, 2])
        scores = self.node("MatMul", query, turned)
        scores = self.node("Mul", scores, np.float32(style.width**-0.5))
        if style.mask and not is_cross:
            scores = self.hide(scores)
        weights = self.node("Softmax", scores, axis=-1)
        mixed = self.node("MatMul", weights, self.repeat(value))
        mixed = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", mixed, np.int64([0, 0, style.channels]))
        return self.linear(mixed, style.channels, style.channels)

    def hide(self, scores):
        shape = ["b", 1, "t", None]
        if self.style.mask == "float":
            return self.node("Add", scores, self.input("mask", shape))
        mask = self.input("mask", shape, TensorProto.BOOL)
        return self.node("Where", mask, scores, np.float32(-1e30))

    def mlp(self, x):
        channels, inner = self.style.channels, 3 * self.style.channels
        hidden = self.linear(x, channels, inner)
        if self.style.mlp == "gated":
            gate = self.linear(x, channels, inner)
            gate = self.node("Mul", gate, self.node("Sigmoid", gate))
            return self.linear(self.node("Mul", gate, hidden), inner, channels)
        return self.linear(self.node(self.style.mlp, hidden), inner, channels)

    def build(self):
        style = self.style
        x = self.input("x", ["b", "t", style.channels])
        if style.rope:
            self.input("cos", ["t", style.width])
            self.input("sin", ["t", style.width])
        normal = self.normalize(x)
        x = self.node("Add", x, self.attention(normal, normal, is_cross=False))
        if style.cross:
            memory = self.input("memory", ["b", "s", style.channels])
            normal = self.normalize(x)
            x = self.node("Add", x, self.attention(normal, memory, is_cross=True))
        x = self.node("Add", x, self.mlp(self.normalize(x)))
        self.output(self.linear(self.normalize(x), style.channels, 11), ["b", "t", 11])
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.constants)
        imports = [helper.make_opsetid("", 20)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)


def make_feeds(model, seed, batch=BATCH, tokens=TOKENS, past=PAST):
    rng = np.random.default_rng(seed)
    sizes = {"b": batch, "t": tokens, "s": SOURCE, "p": past}
    feeds = {}
    names = [value.name for value in model.graph.input]
    for value in model.graph.input:
        axes = value.type.tensor_type.shape.dim
        shape = [sizes.get(axis.dim_param, axis.dim_value) for axis in axes]
        if value.name == "mask":
            first = past if "past_key" in names else 0
            shape[-1] = first + tokens
            seen = np.tri(tokens, first + tokens, first, dtype=bool)
            mask = np.broadcast_to(seen, shape)
            is_bool = value.type.tensor_type.elem_type == TensorProto.BOOL
            feeds["mask"] = mask.copy() if is_bool else np.where(mask, 0, -1e30).astype(np.float32)
            continue
        feeds[value.name] = rng.normal(size=shape).astype(np.float32)
    return feeds


def open_plain(model):
    """Return functions that run a standard model without our library: as written, and optimized."""
    levels = onnxruntime.GraphOptimizationLevel
    return tuple(
        _open_session(model, level) for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL)
    )


def _open_session(model, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers)
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True))


def assert_near(actual, expected):
    """Allow for some codes that differ where float32 sums round in another order."""
    for name, array in expected.items():
        assert actual[name].shape == array.shape
        np.testing.assert_array_equal(np.isnan(actual[name]), np.isnan(array))
        finite = np.isfinite(array)
        difference = np.abs(actual[name] - array)[finite]
        largest = np.abs(array[finite]).max(initial=1e-30)
        assert difference.max(initial=0) <= 0.05 * largest
        assert np.median(difference) <= 0.002 * largest if difference.size else True
