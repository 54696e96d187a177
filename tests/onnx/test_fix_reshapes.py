# SPDX-License-Identifier: Apache-2.0
"""Reshapes whose computed target has one dynamic size get a constant one."""

from typing import Any

import numpy as np
import onnx
import pytest
from small_models import kinds, model, node

from anybit.model import load
from anybit.onnx import read
from anybit.onnx.passes import DropIdentities, FixReshapes, FoldConstants, InferShapes, Simplify


def standard(kind: str, inputs: str, outputs: str, **options: Any) -> onnx.NodeProto:
    return node(kind, inputs, outputs, domain="", name=f"{kind} {outputs}", **options)


def reshaped(parts: str, **options: Any) -> onnx.ModelProto:
    """x of shape [batch, 3, 4], reshaped to what is joined."""
    nodes = [
        standard("Shape", "x", "batch", start=0, end=1),
        standard("Shape", "x", "rows", start=1, end=2),
        standard("Mul", "batch rows", "both"),
        standard("Concat", parts, "target", axis=0),
        standard("Reshape", "x target", "y", **options),
    ]
    constants = {
        "four": np.array([4], np.int64),
        "twelve": np.array([12], np.int64),
        "zero": np.array([0], np.int64),
        "minus": np.array([-1], np.int64),
    }
    used = {name: array for name, array in constants.items() if name in parts.split()}
    return model(nodes, used, inputs={"x": ["batch", 3, 4]}, opsets={"": 18})


@pytest.mark.parametrize(
    ("parts", "target"),
    [
        ("batch twelve", [-1, 12]),
        ("batch rows four", [-1, 3, 4]),
        ("both four", [-1, 4]),
        ("four both", [4, -1]),
        ("batch minus", [0, -1]),
        ("batch rows minus", [0, 3, -1]),
    ],
)
@pytest.mark.parametrize("allowzero", [0, 1])
def test_fix_reshapes_one_free_size(parts: str, target: list[int], allowzero: int) -> None:
    proto = reshaped(parts, allowzero=allowzero)
    result = read(proto).clone()
    simplify = Simplify(FoldConstants(), FixReshapes())
    assert simplify(result).modified
    assert kinds(result) == ["Reshape"]
    assert result.graph[0].inputs[1].const_value.numpy().tolist() == target
    assert not simplify(result).modified
    for batch in (1, 5):
        x = np.arange(batch * 12, dtype=np.float32).reshape(batch, 3, 4)
        np.testing.assert_array_equal(load(result).run(x)["y"], load(proto).run(x)["y"])


@pytest.mark.parametrize("parts", ["zero both", "both minus", "batch both four"])
def test_fix_reshapes_others_stay(parts: str) -> None:
    """Ambiguous targets stay: 0 rows determine no size, and two dynamic sizes leave a choice."""
    result = read(reshaped(parts)).clone()
    InferShapes()(result)
    assert not FixReshapes()(result).modified
    DropIdentities()(result)
    assert kinds(result)[-1] == "Reshape"
    assert result.graph[-1].inputs[1].name == "target"


def test_fix_reshapes_zero_is_the_size_that_it_stands_for() -> None:
    proto = reshaped("batch zero four")
    assert fixed(proto) == [-1, 3, 4]
    assert fixed(reshaped("batch zero four", allowzero=1)) is None


def test_fix_reshapes_sizes_of_one_name_stay_where_they_are() -> None:
    """Keep each of two dynamic sizes, except those of other tensors or positions."""
    nodes = [
        standard("Shape", "x", "s"),
        standard("Cast", "s", "c", to=onnx.TensorProto.INT32),
        standard("Slice", "c zero two", "t"),
        standard("Cast", "t", "two_sizes", to=onnx.TensorProto.INT64),
        standard("Concat", "two_sizes heads", "target", axis=0),
        standard("Reshape", "x target", "y"),
    ]
    constants = {
        name: np.array(values, np.int64)
        for name, values in {"zero": [0], "two": [2], "heads": [3, 4]}.items()
    }
    proto = model(nodes, constants, inputs={"x": ["batch", "steps", 12]}, opsets={"": 18})
    assert fixed(proto) == [0, 0, 3, 4]
    for sizes in [(2, 5, 12), (3, 1, 12)]:
        x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
        result = read(proto).clone()
        Simplify(FoldConstants(), FixReshapes())(result)
        np.testing.assert_array_equal(load(result).run(x)["y"], load(proto).run(x)["y"])
    for shape in (["steps", "batch", 12], ["batch", None, 12]):
        nodes[-1] = standard("Reshape", "z target", "y")
        inputs = {"x": ["batch", "steps", 12], "z": shape}
        assert fixed(model(nodes, constants, inputs=inputs, opsets={"": 18})) is None


def fixed(proto: onnx.ModelProto) -> list[int] | None:
    """Return the constant target of the last node."""
    result = read(proto).clone()
    Simplify(FoldConstants(), FixReshapes())(result)
    target = result.graph[-1].inputs[1].const_value
    return None if target is None else target.numpy().tolist()
