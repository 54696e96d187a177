# SPDX-License-Identifier: Apache-2.0
"""What float64 rounds to whole numbers: one bit less may be a whole step."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from passes import random
from retyping import retyped
from small_models import model, node

import anybit

# 100 times 0.29 is less than 29, and not in float32, where 1 - 2^-40 is 1.
SHARE, NEARLY = np.float64([0.29]), np.float64([1 - 2.0**-40])
STEPS = {
    "Floor": ("Mul", SHARE, 28),
    "Ceil": ("Mul", 2 - NEARLY, 101),
    "Sign": ("Sub", 99 + NEARLY, 1),
}


def network(*nodes: onnx.NodeProto, **constants: np.ndarray) -> onnx.ModelProto:
    proto = model([*nodes], {"w": np.eye(4), **constants}, inputs={"x": ["n", 4]})
    return retyped(proto, TensorProto.DOUBLE)


@pytest.mark.parametrize("step", STEPS)
def test_steps_before_layers(step: str) -> None:
    operator, number, wanted = STEPS[step]
    proto = network(
        node(operator, "x number", "m", domain="", name="some"),
        node(step, "m", "f", domain="", name="whole"),
        node("MatMul", "f w", domain="", name="layer"),
        number=number,
    )
    data = np.random.default_rng(1).integers(1, 101, (80, 4)).astype(np.float64)
    found = anybit.quantize(proto, data)
    assert [each.name for each in found.layers] == ["layer"]
    rows = np.full((1, 4), 100.0)
    for each in (proto, found.model):
        np.testing.assert_allclose(anybit.load(each).run(rows)["y"], wanted, atol=0.3)


@pytest.mark.parametrize("step", [*STEPS, "Round"])
def test_steps_behind_layers_keep_nothing_in_float64(step: str) -> None:
    """Their noise is far more than one bit."""
    proto = network(
        node("MatMul", "x w", "p", domain="", name="layer"),
        node(step, "p", domain="", name="whole"),
    )
    found = anybit.quantize(proto, random(80, 4) * 8)
    assert [each.name for each in found.layers] == ["layer"]
    (kept,) = [each for each in found.model.graph if each.op_type == step]
    assert kept.inputs[0].dtype.name == "FLOAT"
