# SPDX-License-Identifier: Apache-2.0
"""Committed files of the digits example, against its script and README."""

from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from places import EXAMPLES
from scripts import load_module

import anybit

MODEL = EXAMPLES / "digits_w4a4.onnx"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("sklearn")
    return load_module(EXAMPLES / "digits_w4a4.py")


@pytest.fixture(scope="module")
def made(script: ModuleType) -> Any:
    return script.make()


@pytest.fixture(scope="module")
def committed() -> dict[str, np.ndarray]:
    with np.load(EXAMPLES / "digits.npz") as arrays:
        return dict(arrays)


def test_digits_script_reproduces_arrays(made: Any, committed: dict[str, np.ndarray]) -> None:
    assert list(made.arrays) == list(committed)
    for name, array in made.arrays.items():
        assert array.dtype == committed[name].dtype
        np.testing.assert_array_equal(array, committed[name], err_msg=name)


def test_digits_script_reproduces_model(made: Any) -> None:
    assert made.model == onnx.load(MODEL)


def test_digits_script_reproduces_float_model(made: Any, committed: dict[str, np.ndarray]) -> None:
    """Compare nodes and accuracy: the weights depend on the BLAS."""
    stored = onnx.load(EXAMPLES / "digits_float.onnx")
    assert list(stored.graph.node) == list(made.float_model.graph.node)
    y = anybit.load(stored).run(committed["x"])["y"]
    assert np.mean(y.argmax(axis=1) == committed["label"]) == pytest.approx(0.981, abs=0.005)


def test_digits_accuracy_matches_readme(made: Any, committed: dict[str, np.ndarray]) -> None:
    """Check the exact accuracy in 4 bits; in float it depends on the BLAS."""
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"4 bits: {made.accuracy:.1%} correct" in readme
    correct = committed["y"].argmax(axis=1) == committed["label"]
    assert made.accuracy == correct.mean()
    assert made.accuracy > made.float_accuracy - 0.01
    assert made.float_accuracy == pytest.approx(0.981, abs=0.01)


def test_digits_model_equals_integer_reference(committed: dict[str, np.ndarray]) -> None:
    outputs = anybit.load(MODEL).run(committed["x"])
    np.testing.assert_array_equal(outputs["y"], committed["y"])


def test_digits_model_is_independent_of_summation_order(
    script: ModuleType, committed: dict[str, np.ndarray]
) -> None:
    """Run row by row, and with the pixels in another order."""
    model = anybit.load(MODEL)
    rows = [model.run(image[np.newaxis])["y"] for image in committed["x"][:20]]
    np.testing.assert_array_equal(np.concatenate(rows), committed["y"][:20])
    order = np.random.default_rng(0).permutation(64)
    shuffled = onnx.load(MODEL)
    weights = {tensor.name: tensor for tensor in shuffled.graph.initializer}
    weight = onnx.numpy_helper.to_array(weights["weight_1"])[order]
    weights["weight_1"].CopyFrom(onnx.numpy_helper.from_array(weight, "weight_1"))
    x = committed["x"].reshape(-1, 64)[:, order].reshape(-1, 8, 8)
    np.testing.assert_array_equal(anybit.load(shuffled).run(x)["y"], committed["y"])


def test_digits_size_and_header() -> None:
    assert sum(path.stat().st_size for path in EXAMPLES.glob("digits*")) < 200_000
    model = onnx.load(MODEL)
    onnx.checker.check_model(model)
    assert model.ir_version == 10
    assert {opset.domain: opset.version for opset in model.opset_import} == {
        "": 17,
        "qonnx.custom_op.general": 1,
    }
