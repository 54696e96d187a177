# SPDX-License-Identifier: Apache-2.0
"""Small float networks, one of each kind, with random weights, and data for them."""

from collections.abc import Callable

import numpy as np
import onnx
from pass_checks import random
from small_models import model, node

OPSETS = {"": 17}


def convolutions() -> onnx.ModelProto:
    """Convolutions of all kinds, with and without normalization, a residual sum, and a Gemm."""
    constants = {
        "w1": random(8, 3, 3, 3, seed=1) / 5,
        "s": np.abs(random(8, seed=2)) + np.float32(0.5),
        "b": random(8, seed=3) / 3,
        "m": random(8, seed=4) / 3,
        "v": np.abs(random(8, seed=5)) + np.float32(0.2),
        "w2": random(8, 1, 3, 3, seed=6) / 3,
        "b2": random(8, seed=7) / 10,
        "w3": random(8, 8, 1, 1, seed=8) / 3,
        "w4": random(8, 4, 2, 2, seed=9) / 3,
        "g": random(10, 4, seed=10) / 2,
        "c": random(10, seed=11),
    }
    nodes = [
        node("Conv", "x w1", "a", domain="", name="first", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "a s b m v", "n", domain="", name="norm"),
        node("Relu", "n", "r", domain="", name="relu"),
        node("Conv", "r w2 b2", "d", domain="", name="depthwise", group=8, pads=[1, 1, 1, 1]),
        node("Conv", "d w3", "p", domain="", name="pointwise"),
        node("Add", "p r", "e", domain="", name="residual"),
        node("ConvTranspose", "e w4", "t", domain="", name="up", strides=[2, 2]),
        node("GlobalAveragePool", "t", "q", domain="", name="mean"),
        node("Flatten", "q", "f", domain="", name="flat"),
        node("Gemm", "f g c", "y", domain="", name="head", transB=1),
    ]
    return model(nodes, constants, inputs={"x": ["rows", 3, 8, 8]}, opsets=OPSETS)


def attention() -> onnx.ModelProto:
    """Make one attention head with channels of very different sizes, and a network after it."""
    constants = {
        **{f"w{letter}": random(16, 16, seed=at) / 4 for at, letter in enumerate("qkvo")},
        "w1": random(16, 32, seed=8) / 4,
        "w2": random(32, 16, seed=9) / 5,
        "gain": np.exp(random(16, seed=10)),
        "shift": random(16, seed=11) / 2,
        "root": np.float32(0.25),
    }
    nodes = [
        node("LayerNormalization", "x gain shift", "n", domain="", name="norm"),
        node("MatMul", "n wq", "q", domain="", name="query"),
        node("MatMul", "n wk", "k", domain="", name="key"),
        node("MatMul", "n wv", "v", domain="", name="value"),
        node("Transpose", "k", "kt", domain="", name="turn", perm=[0, 2, 1]),
        node("MatMul", "q kt", "scores", domain="", name="scores"),
        node("Mul", "scores root", "scaled", domain="", name="scaled"),
        node("Softmax", "scaled", "shares", domain="", name="softmax"),
        node("MatMul", "shares v", "context", domain="", name="context"),
        node("MatMul", "context wo", "o", domain="", name="output"),
        node("Add", "o x", "h", domain="", name="residual"),
        node("MatMul", "h w1", "u", domain="", name="wide"),
        node("Relu", "u", "a", domain="", name="relu"),
        node("MatMul", "a w2", "y", domain="", name="narrow"),
    ]
    return model(nodes, constants, inputs={"x": ["rows", "tokens", 16]}, opsets=OPSETS)


def recurrent() -> onnx.ModelProto:
    """Return an LSTM followed by a GRU; the first axis is time, so rows are not samples."""
    constants = {
        "w": random(1, 32, 6, seed=1) / 3,
        "r": random(1, 32, 8, seed=2) / 3,
        "b": random(1, 64, seed=3) / 10,
        "axis": np.array([1]),
        "w2": random(1, 15, 8, seed=4) / 3,
        "r2": random(1, 15, 5, seed=5) / 3,
    }
    nodes = [
        node("LSTM", "x w r b", "h", domain="", name="lstm", hidden_size=8),
        node("Squeeze", "h axis", "s", domain="", name="squeeze"),
        node("GRU", "s w2 r2", "y", domain="", name="gru", hidden_size=5),
    ]
    return model(nodes, constants, inputs={"x": ["time", 2, 6]}, opsets=OPSETS)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "convolutions": convolutions,
    "attention": attention,
    "recurrent": recurrent,
}
_SHAPES = {"convolutions": (3, 8, 8), "attention": (7, 16), "recurrent": (9, 2, 6)}


def data_for(name: str, samples: int = 24) -> list[dict[str, np.ndarray]]:
    """Return a list of samples; those of recurrent networks have several lengths."""
    drawn = []
    for seed in range(samples):
        shape = _SHAPES[name]
        if name == "recurrent":
            drawn.append({"x": random(shape[0] - seed % 3, *shape[1:], seed=seed)})
        else:
            drawn.append({"x": random(1, *shape, seed=seed)})
    return drawn
