# SPDX-License-Identifier: Apache-2.0
"""Calls of compiled models: rows, arguments, pickling and input ranges."""

import copy
import inspect
import pickle
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
from small_models import DOMAIN

import anybit

MODEL = """
<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 2]>
g (float[1, 3] x) => (float[1, 2] y)
<float[3, 2] w = {1.0, -2.0, 3.0, 0.5, -1.5, 2.0}, float step = {0.5}, float none = {0.0},
 float four = {4.0}>
{
    xq = qonnx.custom_op.general.Quant <signed: int = 1, narrow: int = 0> (x, step, none, four)
    wq = qonnx.custom_op.general.Quant <signed: int = 1, narrow: int = 0> (w, step, none, four)
    y = MatMul (xq, wq)
}
"""


@pytest.fixture(scope="module")
def model():
    return onnx.parser.parse_model(MODEL)


def test_compiled_takes_any_rows_for_file_with_one(model):
    assert DOMAIN in MODEL
    compiled = anybit.compile(model)
    x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    expected = anybit.load(model).run(x)["y"]
    np.testing.assert_array_equal(compiled.run(x)["y"], expected)
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], expected)
    np.testing.assert_array_equal(compiled.run(x.astype(np.float64))["y"], expected)
    np.testing.assert_array_equal(compiled.run(x[:1].tolist())["y"], expected[:1])
    np.testing.assert_array_equal(compiled.run(np.asfortranarray(x))["y"], expected)
    none = x[:0]
    for item in (none, {"x": none}, none.astype(np.float64), none[:, ::-1]):
        assert compiled.run(item)["y"].shape == (0, 2)
    for item in (np.zeros((0, 4)), np.zeros((2, 0)), []):
        with pytest.raises(anybit.DataError, match="'x' must have shape"):
            compiled.run(item)


def test_compiled_reports_wrong_arrays(model):
    compiled = anybit.compile(model)
    with pytest.raises(anybit.DataError, match=r"input 'x' must have shape \[\?, 3\]"):
        compiled.run(np.zeros((1, 4), np.float32))
    with pytest.raises(anybit.DataError, match="must be float32"):
        compiled.run(np.array([["a", "b", "c"]]))
    with pytest.raises(anybit.ModelError, match="NaN"):
        compiled.run(np.full((2, 3), np.nan, np.float32))


def test_compiled_has_call_forms_of_model(model):
    """Although small networks are called past Python."""
    own, others = (
        list(inspect.signature(item.run).parameters.values())
        for item in (anybit.compile(model), anybit.load(model))
    )
    assert [(item.name, item.kind, item.default) for item in own] == [
        (item.name, item.kind, item.default) for item in others
    ]
    seen = []
    compiled = anybit.compile(model)
    compiled.run(inputs=np.zeros((4, 3), np.float32), progress=lambda *done: seen.append(done))
    assert seen == []  # all rows at once


def test_compiled_refuses_pickling(model):
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"save\(\), and read that with load"):
            copied(anybit.compile(model))


OTHER_NUMPY = """
import sys, types
import numpy as np
import onnx
import anybit
model = onnx.parser.parse_model(sys.stdin.read())
x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
wanted = anybit.load(model).run(x)["y"]
import numpy.fft, onnxruntime  # which ask for these functions, too
sys.modules["numpy._core._multiarray_umath"] = types.ModuleType("another")
compiled = anybit.compile(model)
for rows in (slice(None), slice(None, None, 2), slice(0)):
    np.testing.assert_array_equal(compiled.run(x[rows])["y"], wanted[rows], strict=True)
"""


def test_compiled_converts_array_likes():
    """Return the same results if the C functions of NumPy are unknown."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER_NUMPY], input=MODEL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_compiled_saturates_infinities_as_graph(model):
    x = np.array([[np.inf, -np.inf, 3e38], [-0.0, 1e-45, -3e38]], np.float32)
    expected = anybit.load(model).run(x)["y"]
    np.testing.assert_array_equal(anybit.compile(model).run(x)["y"], expected)


UNQUANTIZED = re.sub(r"    xq = .*\n", "", MODEL).replace("MatMul (xq, wq)", "MatMul (x, wq)")


def test_compile_input_range_replaces_quantizer():
    model = onnx.parser.parse_model(UNQUANTIZED)
    plain = anybit.compile(model)
    assert plain.report.coverage == "0 of 1 layer, 0 % of MACs"
    assert plain.report.layers[0].reason.startswith("its input 'x' is not quantized: say what")
    names = anybit.compile(model, input_ranges={"x": "int8/64"})
    assert names.report.coverage == "1 of 1 layer, 100 % of MACs"
    x = (np.random.default_rng(0).integers(-128, 128, (50, 3)) / 64).astype(np.float32)
    np.testing.assert_array_equal(names.run(x)["y"], anybit.load(model).run(x)["y"])
    # Others are taken for the nearest.
    near = x + np.float32(0.004)
    np.testing.assert_array_equal(names.run(near)["y"], names.run(x)["y"])
    with pytest.raises(anybit.OptionError, match=r"input_ranges\['z'\]: the model has no such"):
        anybit.compile(model, input_ranges={"z": "int8"})
