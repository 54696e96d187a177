# SPDX-License-Identifier: Apache-2.0
"""Tests of operators in all supported versions of ONNX Runtime.

`tests/programs/ort_matrix.py` runs them in one environment per ONNX Runtime. They work with old
NumPy and onnx, and without conftest.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import anybit
import anybit.onnxruntime

QONNX = "qonnx.custom_op.general"
DOMAINS = (QONNX, "finn.custom_op.general", "onnx.brevitas")
TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
}
X = np.linspace(-9, 9, 24).reshape(2, 3, 4)
OPERATORS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "IntQuant": (anybit.int_quant, [0.5, 1, 4]),
    "Quant": (anybit.int_quant, [[[0.5], [1.0], [0.1]], 0, 3]),
    "FloatQuant": (anybit.float_quant, [1, 4, 3, 7, 448]),
    "BipolarQuant": (anybit.bipolar_quant, [0.5]),
    "Trunc": (anybit.trunc, [0.5, 0, 8, 2, 4]),
    "TruncQuant": (anybit.trunc_v1, [0.5, 0, 8, 5]),
}


def value(name: str, kind: int, shape: Sequence[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def session(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    constants: dict[str, np.ndarray],
    value_infos: Sequence[Any] = (),
) -> onnxruntime.InferenceSession:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors, value_info=value_infos)
    imports = [helper.make_opsetid(domain, 1) for domain in (*DOMAINS, "anybit")]
    imports.append(helper.make_opsetid("", 17))
    file = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for _ in range(2):
        anybit.onnxruntime.register(options)
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def quantizer(name: str, parameters: list[Any], **attributes: Any) -> tuple[Any, dict[str, Any]]:
    constants = {f"p{i}": np.array(parameter, np.float32) for i, parameter in enumerate(parameters)}
    return helper.make_node(name, ["x", *constants], ["q"], "the_node", **attributes), constants


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_session_runs_all_operators(name: str, dtype: str) -> None:
    function, parameters = OPERATORS[name]
    x = X.astype(dtype)
    expected = function(x, *(np.array(parameter, np.float32) for parameter in parameters))
    for domain in DOMAINS:
        made, constants = quantizer(name, parameters, domain=domain)
        inputs, outputs = [value("x", TYPES[dtype], None)], [value("q", TYPES[dtype], None)]
        (actual,) = session([made], inputs, outputs, constants).run(None, {"x": x})
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == expected.dtype


@pytest.mark.parametrize(("dst", "kind"), [("s8", TensorProto.INT8), ("u8", TensorProto.UINT8)])
def test_session_takes_result_dtype_from_attribute(dst: str, kind: int) -> None:
    """Write the dtype to the file for ONNX Runtime 1.17, which does not infer it."""
    x = X.astype(np.float32)
    expected = anybit.dynamic_quantize(x, np.float32([0.1]), dtype=dst)
    made, constants = quantizer("DynamicQuantize", [[0.1]], domain="anybit", dst=dst)
    cast = helper.make_node("Cast", ["q"], ["y"], to=TensorProto.INT32)
    inputs, outputs = [value("x", TensorProto.FLOAT, ["n", 3, 4])], [value("y", 6, None)]
    typed = [value("q", kind, None)]
    for value_infos in [typed] if onnxruntime.__version__.startswith("1.17.") else [typed, []]:
        loaded = session([made, cast], inputs, outputs, constants, value_infos)
        np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("shape", [[2, 3, 4], ["n", None, 4], [None, None, None], None])
def test_session_propagates_shapes_to_next_node(shape: Any) -> None:
    x, weights = X.astype(np.float32), np.ones((4, 5), np.float32)
    made, constants = quantizer("IntQuant", [0.5, 0, 4], domain=QONNX)
    matmul = helper.make_node("MatMul", ["q", "w"], ["y"])
    inputs, outputs = [value("x", 1, shape)], [value("y", 1, None)]
    loaded = session([made, matmul], inputs, outputs, {**constants, "w": weights})
    expected = anybit.int_quant(x, 0.5, 0, 4) @ weights
    np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], expected)


def test_session_runs_large_tensors() -> None:
    x = np.random.default_rng(0).normal(0, 9, (300, 999)).astype(np.float32)
    made, constants = quantizer("IntQuant", [0.5, 0, 4], domain=QONNX)
    loaded = session([made], [value("x", 1, ["n", "m"])], [value("q", 1, None)], constants)
    np.testing.assert_array_equal(loaded.run(None, {"x": x})[0], anybit.int_quant(x, 0.5, 0, 4))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("width", [0, -1, 2.5, np.nan])
def test_session_reports_bad_bitwidth(width: float, constant: bool) -> None:
    made, constants = quantizer("IntQuant", [0.5, 0, width], domain=QONNX)
    inputs = [value("x", 1, None), *([] if constant else [value("p2", 1, [])])]
    feeds = {"x": X.astype(np.float32), **({} if constant else {"p2": constants.pop("p2")})}
    with pytest.raises(Exception, match=r"the_node.*bitwidth must be an integer >= 1, got"):
        session([made], inputs, [value("q", 1, None)], constants).run(None, feeds)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ({"rounding_mode": "UPWARD"}, "rounding_mode must be one of .*'UPWARD'"),
        ({"signed": "yes"}, "attribute signed must be an integer, got the string 'yes'"),
        ({"rounding_mode": [1, 2]}, "attribute rounding_mode must be a string, got a list"),
    ],
)
def test_session_reports_bad_attributes(attribute: dict[str, Any], message: str) -> None:
    made, constants = quantizer("IntQuant", [0.5, 0, 4], domain=QONNX, **attribute)
    with pytest.raises(Exception, match=f"the_node.*{message}"):
        session([made], [value("x", 1, [2])], [value("q", 1, None)], constants)


def test_session_matches_recorded_model_outputs() -> None:
    folder = os.environ.get("ANYBIT_TEST_MODELS")
    if not folder:
        pytest.skip("set ANYBIT_TEST_MODELS to the folder of the test models")
    paths = sorted(Path(folder).glob("TFC*.onnx"))
    assert paths
    for path in paths:
        data = np.load(path.with_suffix(".npz"))
        loaded = anybit.onnxruntime.session(path)
        (name,) = (port.name for port in loaded.get_inputs())
        for x, y in zip(data["x"], data["y"], strict=True):
            np.testing.assert_array_equal(loaded.run(None, {name: x[None]})[0][0], y)
