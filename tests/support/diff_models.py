# SPDX-License-Identifier: Apache-2.0
"""Models for the tests of `anybit.diff`."""

from typing import Any

import numpy as np
import onnx
from small_models import model, node

X = np.array([[0.25, -0.75, 1.2, 99]], np.float32)


def layers(mode: str = "ROUND", *, prefix: str = "", **replaced: Any) -> onnx.ModelProto:
    """x @ Quant(w) + b -> Quant -> y, with every name prefixed."""
    constants = {
        "w": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4),
        "b": [0.125, 0, 0, 0],
        "one": 1,
        "half": 0.5,
        "zero": 0,
        "bits": 4,
        **replaced,
    }
    nodes = [
        node("Quant", "w half zero bits", "wq", name="quantize_w"),
        node("MatMul", "x wq", "sum", domain="", name="multiply"),
        node("Add", "sum b", "added", domain="", name="add"),
        node("Quant", "added half zero bits", "y", name="quantize_y", rounding_mode=mode),
    ]
    for made in nodes:
        made.input[:] = [prefix + name for name in made.input]
        made.output[:] = [prefix + name for name in made.output]
    named = {prefix + name: value for name, value in constants.items()}
    return model(nodes, named, inputs={f"{prefix}x": [1, 4]}, outputs=[f"{prefix}y"])
