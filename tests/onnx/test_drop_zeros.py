# SPDX-License-Identifier: Apache-2.0
"""Zeros that nodes make for inputs that are zeros anyway are left out; stored ones stay."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import kinds, model, node

from anybit.model import load
from anybit.onnx import read
from anybit.onnx.passes import DropZeros

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((2, 3, 3, 3), dtype=np.float32)
X = RNG.standard_normal((1, 3, 5, 5), dtype=np.float32)


def standard(kind: str, inputs: str, outputs: str, **options: Any) -> onnx.NodeProto:
    made = node(kind, inputs, outputs, domain="", name=f"{kind} {outputs}", **options)
    made.input[:] = ["" if name == "-" else name for name in made.input]
    return made


CONSTANTS = {
    "w": WEIGHT,
    "zero": np.array(0, np.int64),
    "minus_zero": np.array(-0.0, np.float32),
    "one": np.array(1, np.int64),
    "two": np.array([2], np.int64),
    "stored": np.zeros(2, np.float32),
}
ZEROS = helper.make_tensor("zeros", onnx.TensorProto.FLOAT, [1], [0.0])
BIASES: dict[str, tuple[list[onnx.NodeProto], bool]] = {
    "cast and expanded": (
        [standard("CastLike", "zero x", "z"), standard("Expand", "z two", "b")],
        True,
    ),
    "of a shape": ([standard("ConstantOfShape", "two", "b")], True),
    "of a shape with a value": ([standard("ConstantOfShape", "two", "b", value=ZEROS)], True),
    "a constant expanded": (
        [standard("Constant", "", "z", value=ZEROS), standard("Expand", "z two", "b")],
        True,
    ),
    "ones": ([standard("CastLike", "one x", "z"), standard("Expand", "z two", "b")], False),
    "minus zero": ([standard("Expand", "minus_zero two", "b")], False),
    "stored": ([standard("Identity", "stored", "b")], False),
    "computed": ([standard("Sub", "stored stored", "b")], False),
}


@pytest.mark.parametrize("case", BIASES)
def test_drop_zeros_bias_of_a_convolution(case: str) -> None:
    nodes, dropped = BIASES[case]
    nodes = [*nodes, standard("Conv", "x w b", "y")]
    used = {name for item in nodes for name in item.input}
    constants = {name: array for name, array in CONSTANTS.items() if name in used}
    proto = model(nodes, constants, inputs={"x": [1, 3, 5, 5]}, opsets={"": 18})
    result = read(proto).clone()
    assert DropZeros()(result).modified == dropped
    assert len(result.graph[-1].inputs) == 3 - dropped
    expected, got = load(proto).run(X)["y"], load(result).run(X)["y"]
    assert expected.tobytes() == got.tobytes()
    assert not DropZeros()(result).modified


def test_drop_zeros_bias_that_is_an_initializer_stays() -> None:
    proto = model(
        [standard("Conv", "x w stored", "y")],
        {"w": WEIGHT, "stored": np.zeros(2, np.float32)},
        inputs={"x": [1, 3, 5, 5]},
    )
    assert not DropZeros()(read(proto).clone()).modified


@pytest.mark.parametrize(
    ("kind", "gates", "states"), [("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 1)]
)
def test_drop_zeros_first_states(kind: str, gates: int, states: int) -> None:
    nodes = [
        standard("Shape", "x", "batch", start=1, end=2),
        standard("Concat", "one batch hidden", "shape", axis=0),
        standard("Expand", "nought shape", "state"),
        standard(kind, "x w r - - " + " ".join(["state"] * states), "y", hidden_size=2),
    ]
    constants = {
        "one": np.array([1], np.int64),
        "hidden": np.array([2], np.int64),
        "nought": np.array(0, np.float32),
        "w": RNG.standard_normal((1, 2 * gates, 3), dtype=np.float32),
        "r": RNG.standard_normal((1, 2 * gates, 2), dtype=np.float32),
    }
    proto = model(nodes, constants, inputs={"x": [4, "batch", 3]}, opsets={"": 18})
    result = read(proto).clone()
    assert DropZeros()(result).modified
    assert [value.name for value in result.graph[-1].inputs] == ["x", "w", "r"]
    assert kinds(result)[-1] == kind
    x = RNG.standard_normal((4, 5, 3), dtype=np.float32)
    assert load(proto).run(x)["y"].tobytes() == load(result).run(x)["y"].tobytes()
