# SPDX-License-Identifier: Apache-2.0
"""What the tests of `anybit.diff` compare."""

from typing import Any

import numpy as np
import onnx
from small_models import model, node

X = np.array([[0.25, -0.75, 1.2, 99]], np.float32)


def layers(mode: str = "ROUND", *, prefix: str = "", **constants: Any) -> onnx.ModelProto:
    """x @ Quant(w) + b -> Quant -> y, with every name prefixed."""
    given = {
        "w": np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4),
        "b": [0.125, 0, 0, 0],
        "one": 1,
        "half": 0.5,
        "zero": 0,
        "bits": 4,
        **constants,
    }
    nodes = [
        node("Quant", "w half zero bits", "wq", name="quantize_w"),
        node("MatMul", "x wq", "sum", domain="", name="multiply"),
        node("Add", "sum b", "added", domain="", name="add"),
        node("Quant", "added half zero bits", "y", name="quantize_y", rounding_mode=mode),
    ]
    for each in nodes:
        each.input[:] = [prefix + name for name in each.input]
        each.output[:] = [prefix + name for name in each.output]
    named = {prefix + name: value for name, value in given.items()}
    return model(nodes, named, inputs={f"{prefix}x": [1, 4]}, outputs=[f"{prefix}y"])
