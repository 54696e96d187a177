# SPDX-License-Identifier: Apache-2.0
"""Declared inputs, arrays bound to them, rows, random inputs, engines."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from shell import Shell
from small_models import model, node

import anybit
from anybit import text
from anybit.data.random_inputs import generate_random_inputs, override_shapes
from anybit.errors import DataError, OptionError
from anybit.inputs import TensorInfo, count_runs, match_arrays
from anybit.model import Model, load
from anybit.onnx.graph.constants import Array

FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((), "[]"),
        ((1, "height", None, ""), "[1, height, ?, ?]"),
        (None, "[...]"),
    ],
)
def test_shape_errors_have_one_format(
    shape: tuple[int | str | None, ...] | None, words: str
) -> None:
    assert text.format_shape(shape) == words
    assert str(TensorInfo("x", FLOAT, shape)) == f"x: float32{words}"


class Doubling:
    """An engine of two rows at a time."""

    inputs = (TensorInfo("x", FLOAT, (2, 3)),)
    outputs = (TensorInfo("y", FLOAT, (2, 3)),)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        assert feeds["x"].shape == (2, 3)
        return {"y": 2 * feeds["x"]}


def test_model_runs_any_engine() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    network = Model(Doubling())
    np.testing.assert_array_equal(network.run(x.tolist())["y"], 2 * x)
    np.testing.assert_array_equal(network.run(x[:2])["y"], 2 * x[:2])
    with pytest.raises(DataError, match="a multiple of 2 rows"):
        network.run(x[:3])


def test_row_count_errors_name_both_inputs() -> None:
    # The message lists two inputs instead of a set.
    inputs = [TensorInfo("a", FLOAT, (2, 3)), TensorInfo("b", FLOAT, (1,))]
    feeds = {"a": np.ones((4, 3), np.float32), "b": np.ones(1, np.float32)}
    with pytest.raises(DataError, match=r"'a' has enough for 2 runs of the model, 'b' for 1$"):
        count_runs(inputs, feeds)


def test_override_shapes_replaces_free_sizes() -> None:
    inputs = [TensorInfo("x", FLOAT, ("n", 3, None)), TensorInfo("z", FLOAT, None)]
    overridden = override_shapes(inputs, {"x": (2, 3, 5), "z": (7,)})
    assert [array.shape for array in generate_random_inputs(overridden).values()] == [
        (2, 3, 5),
        (7,),
    ]
    with pytest.raises(OptionError, match=r"declared with shape \[n, 3, \?\], which \[2, 4, 5\]"):
        override_shapes(inputs, {"x": (2, 4, 5)})
    with pytest.raises(OptionError, match="w is not an input; inputs: x, z"):
        override_shapes(inputs, {"w": (2,)})
    with pytest.raises(DataError, match="'z' has no declared shape"):
        generate_random_inputs(inputs)


def test_session_is_the_one_of_the_engine() -> None:
    network = load(model([node("Relu", "x", domain="")]))
    assert [output.name for output in network.session.get_outputs()] == ["y"]


def paddle() -> onnx.ModelProto:
    """Sizes of -1 wherever an exporter may write them."""
    nodes = [
        node("Relu", "x", "r", domain=""),
        node("Quant", "r half zero four", "q"),
        node("MatMul", "q w", domain=""),
    ]
    constants = {"half": 0.5, "zero": 0, "four": 4, "w": np.ones((4, 2), np.float32)}
    made = model(nodes, constants, inputs={"x": [-1, 4]})
    make = onnx.helper.make_tensor_value_info
    made.graph.value_info.append(make("r", onnx.TensorProto.FLOAT, [-1, 4]))
    made.graph.output[0].CopyFrom(make("y", onnx.TensorProto.FLOAT, [-1, 2]))
    return made


def test_negative_sizes_are_free(shell: Shell) -> None:
    network = load(paddle())
    assert [str(tensor) for tensor in (*network.inputs, *network.outputs)] == [
        "x: float32[?, 4]",
        "y: float32[?, 2]",
    ]
    for rows in (1, 5):
        assert network.run(np.ones((rows, 4), np.float32))["y"].tolist() == [[4, 4]] * rows
    onnx.save(paddle(), "paddle.onnx")
    for command in (
        ("run", "paddle.onnx"),
        ("inspect", "paddle.onnx", "--layers"),
        ("check", "paddle.onnx"),
        ("clean", "paddle.onnx", "-o", "cleaned.onnx"),
        ("convert", "paddle.onnx", "--to", "qdq", "-o", "qdq.onnx"),
        ("diff", "paddle.onnx", "cleaned.onnx"),
        ("diff", "paddle.onnx", "qdq.onnx"),
    ):
        code, out, err = shell(*command)
        assert (code, err) == (0, ""), (command, out)
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
    for name in ("cleaned.onnx", "qdq.onnx"):
        np.testing.assert_array_equal(load(name).run(x)["y"], network.run(x)["y"])


def test_unnamed_sizes_may_differ(shell: Shell) -> None:
    proto = paddle()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "?"
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "?"
    assert str(load(proto).inputs[0]) == "x: float32[?, ?]"
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(load(proto).run(x)["y"], load(paddle()).run(x)["y"])


def test_negative_sizes_are_free_with_our_operators() -> None:
    # A model in memory is taken as it is.
    assert load(ir.from_proto(paddle())).inputs == (TensorInfo("x", FLOAT, (None, 4)),)


def test_sizes_of_one_name_must_be_equal() -> None:
    nodes = [node("MatMul", "a b", domain="")]
    proto = model(nodes, inputs={"a": ["m", "k"], "b": ["k", "n"]})
    feeds = {"a": np.ones((2, 3), np.float32), "b": np.ones((4, 5), np.float32)}
    for action in (load(proto).run, lambda inputs: anybit.diff(proto, None, inputs)):
        with pytest.raises(DataError, match="input 'b' has k = 4, another input 3"):
            action(feeds)


@pytest.mark.parametrize(
    ("names", "stored", "only", "expected"),
    [
        (["a", "b"], ["b", "c"], True, {"b": "b"}),
        (["a", "b"], ["x"], True, {}),
        (["a"], ["x", "c"], True, {"a": "x"}),
        (["a"], ["c"], True, {}),
        (["a"], [""], True, {"a": ""}),
        (["a"], ["arr_0"], True, {"a": "arr_0"}),
        (["a"], ["arr_0"], False, {}),
        (["a"], ["c", "d"], True, {}),
        (["a"], ["x", "a"], False, {"a": "a"}),
        ([], [], True, {}),
    ],
)
def test_match_arrays_selects_by_name(
    names: list[str], stored: list[str], only: bool, expected: dict[str, str]
) -> None:
    arrays = {name: np.full(2, at) for at, name in enumerate(stored)}
    matches = match_arrays(names, arrays, "x", only=only)
    assert {name: stored[array[0]] for name, array in matches.items()} == expected
