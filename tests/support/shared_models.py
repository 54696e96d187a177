# SPDX-License-Identifier: Apache-2.0
"""Float networks in which several layers multiply one constant."""

import numpy as np
import onnx
from pass_checks import random
from small_models import model, node


def blocks(times: int = 3, size: int = 24, wide: int = 40) -> onnx.ModelProto:
    """Make one block of two layers, repeated as in ALBERT, and a layer after it."""
    constants = {
        "w": random(size, wide, seed=1) / np.float32(size**0.5),
        "v": random(wide, size, seed=2) / np.float32(wide**0.5),
        "head": random(size, 5, seed=3),
        "gain": np.exp(random(size, seed=4) / 2),
        "shift": random(size, seed=5),
    }
    nodes, x = [], "x"
    for at in range(times):
        nodes += [
            node("LayerNormalization", f"{x} gain shift", f"n{at}", domain="", name=f"norm{at}"),
            node("MatMul", f"n{at} w", f"u{at}", domain="", name=f"up{at}"),
            node("Relu", f"u{at}", f"r{at}", domain="", name=f"relu{at}"),
            node("MatMul", f"r{at} v", f"d{at}", domain="", name=f"down{at}"),
            node("Add", f"d{at} {x}", f"h{at}", domain="", name=f"sum{at}"),
        ]
        x = f"h{at}"
    nodes.append(node("MatMul", f"{x} head", "y", domain="", name="head"))
    return model(nodes, constants, inputs={"x": ["rows", size]}, opsets={"": 17})


def tied(size: int = 32) -> onnx.ModelProto:
    """Return a model with one constant as a Gather table and as weights of three Gemms."""
    constants = {
        "w": random(size, size, seed=1) / 4,
        "b": random(size, seed=2),
        "c": random(size, seed=3),
    }
    nodes = [
        node("Gather", "w ids", "e", domain="", name="table"),
        node("Gemm", "e w b", "p", domain="", name="plain"),
        node("Relu", "p", "r", domain="", name="relu"),
        node("Gemm", "r w c", "t", domain="", name="again"),
        node("Tanh", "t", "a", domain="", name="tanh"),
        node("Gemm", "a w", "y", domain="", name="turned", transB=1),
    ]
    proto = model(nodes, constants, inputs={"ids": ["rows"]}, opsets={"": 17})
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return proto


def convolutions() -> onnx.ModelProto:
    """Make three convolutions with one kernel; two read one tensor with other dilations."""
    constants = {
        "k": random(6, 6, 3, 3, seed=1) / 4,
        "b": random(6, seed=2),
        "g": random(6, 4, seed=3),
    }
    nodes = [
        node("Conv", "x k b", "a", domain="", name="near", pads=[1] * 4),
        node("Conv", "x k", "d", domain="", name="far", pads=[2] * 4, dilations=[2, 2]),
        node("Add", "a d", "s", domain="", name="sum"),
        node("Relu", "s", "r", domain="", name="relu"),
        node("Conv", "r k", "e", domain="", name="behind", pads=[1] * 4),
        node("GlobalAveragePool", "e", "q", domain="", name="mean"),
        node("Flatten", "q", "f", domain="", name="flat"),
        node("MatMul", "f g", "y", domain="", name="head"),
    ]
    return model(nodes, constants, inputs={"x": ["rows", 6, 8, 8]}, opsets={"": 17})
