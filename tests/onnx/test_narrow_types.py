# SPDX-License-Identifier: Apache-2.0
"""Models whose inputs and outputs have types that NumPy lacks."""

import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from narrow_models import DTYPES, all_values, every_type, needs_int4, to_codes, to_float
from onnx import TensorProto, helper, numpy_helper

import anybit
from anybit.errors import DataError, ModelError
from anybit.onnx.runtimes import _get_installed_version


@every_type
def test_narrow_types_model_takes_arrays_of_ml_dtypes(name: str) -> None:
    x = all_values(name)
    model = anybit.load(to_float(name))
    assert model.inputs[0].dtype == x.dtype
    for rows in (x, x[:1], np.asfortranarray(x), x[::-1]):
        y = model.run(rows)["y"]
        np.testing.assert_array_equal(y, rows.astype(np.float32) * np.float32(0.5))


@every_type
def test_narrow_types_model_returns_arrays_of_ml_dtypes(name: str) -> None:
    values = all_values(name)
    y = anybit.load(to_codes(name)).run(values.astype(np.float32) * np.float32(0.5))["y"]
    assert y.dtype == values.dtype
    assert y.shape == values.shape
    np.testing.assert_array_equal(y.astype(np.float32), values.astype(np.float32))


@every_type
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32, np.bool_])
def test_narrow_types_model_takes_ordinary_numbers_that_fit(name: str, dtype: type) -> None:
    x = np.array([[0, 1, 1]], dtype)
    y = anybit.load(to_float(name)).run(x)["y"]
    np.testing.assert_array_equal(y, np.float32([[0, 0.5, 0.5]]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("INT4", np.int64([0, 8, 0])),
        ("INT4", np.int64([0, 2**40, 0])),
        ("INT4", np.float32([0, 0.5, 0])),
        ("INT4", np.float32([0, np.nan, 0])),
        ("UINT4", np.int8([0, -1, 0])),
        ("UINT4", np.uint8([0, 0x13, 0]).view("V1")),
        ("FLOAT8E4M3FN", np.float32([0, 449, 0])),
        ("FLOAT8E4M3FN", np.float32([0, -np.inf, 0])),
        ("FLOAT8E4M3FN", np.int64([0, 17, 0])),
        ("FLOAT8E5M2", np.float64([0, 6e4, 0])),
        ("FLOAT8E5M2FNUZ", np.float32([0, np.inf, 0])),
        ("FLOAT8E4M3FNUZ", np.complex64([0, 1, 0])),
    ],
    ids=lambda item: item if isinstance(item, str) else str(item.dtype),
)
def test_narrow_types_values_out_of_range_are_errors(
    name: str, values: np.ndarray[Any, Any]
) -> None:
    dtype = np.dtype(DTYPES[name][0])
    if _get_installed_version() < DTYPES[name][2]:
        pytest.skip("not in this ONNX Runtime")
    with pytest.raises(DataError, match=rf"'x' must be {dtype}, got .* that {dtype} cannot hold"):
        anybit.load(to_float(name)).run(values[None])


def test_narrow_types_floats_are_rounded_to_float8() -> None:
    x = np.float32([[17, 1.0625, 2.0**-9]])
    y = anybit.load(to_float("FLOAT8E4M3FN")).run(x)["y"]
    np.testing.assert_array_equal(y, np.float32([[8, 0.5, 2.0**-10]]))
    y = anybit.load(to_float("FLOAT8E5M2")).run(np.float32([[np.inf, -np.inf, 0]]))["y"]
    np.testing.assert_array_equal(y, np.float32([[np.inf, -np.inf, 0]]))


@every_type
def test_narrow_types_arrays_that_numpy_has_saved_are_taken(name: str) -> None:
    x = all_values(name)
    if x.dtype.kind == "f":
        pytest.skip("NumPy writes a file that it cannot read")
    stream = io.BytesIO()
    np.savez(stream, x=x)
    stream.seek(0)
    stored = np.load(stream)["x"]
    assert stored.dtype.type is np.void, "numpy knows the type now: this test is of no use"
    model = anybit.load(to_float(name))
    np.testing.assert_array_equal(model.run(stored)["y"], model.run(x)["y"])


@needs_int4
def test_narrow_types_rows_run_slice_by_slice() -> None:
    proto = to_float("INT4")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    x = np.int64([[-8, 7, 1], [2, 3, 4], [5, 6, -7], [0, -1, -2]])
    np.testing.assert_array_equal(anybit.load(proto).run(x)["y"], x * 0.5)
    codes = to_codes("INT4")
    for value in (*codes.graph.input, *codes.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    y = anybit.load(codes).run(np.float32(x * 0.5))["y"]
    assert y.dtype == ml_dtypes.int4
    np.testing.assert_array_equal(y.astype(np.int64), x)


@every_type
def test_compiled_model_takes_and_returns_the_types(name: str) -> None:
    values = all_values(name)
    for proto, x in (
        (to_float(name), values),
        (to_codes(name), values.astype(np.float32) * np.float32(0.5)),
    ):
        expected = anybit.load(proto).run(x)["y"]
        compiled = anybit.compile(proto)
        actual = compiled.run(x)["y"]
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))


@needs_int4
def test_narrow_types_compiled_layer_between_int4_input_and_output(tmp_path: Path) -> None:
    tensors = [
        numpy_helper.from_array(np.float32(0.5), "s"),
        numpy_helper.from_array(np.float32(8), "t"),
        helper.make_tensor("z", TensorProto.INT4, (), [1]),
        helper.make_tensor("w", TensorProto.INT4, (3, 2), [1, -2, 3, -4, 5, 7]),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"]),
        helper.make_node("MatMul", ["d", "v"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "t", "z"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.INT4, ["n", 3])],
        [value("y", TensorProto.INT4, ["n", 2])],
        tensors,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    codes = np.stack(np.meshgrid(*[np.arange(-8, 8)] * 3), -1).reshape(-1, 3)
    w = np.int64([[1, -2], [3, -4], [5, 7]])
    exact = np.clip(np.rint((codes - 1) @ w * 0.25 / 8) + 1, -8, 7)
    compiled = anybit.compile(proto)
    for model in (anybit.load(proto), compiled):
        y = model.run(codes)["y"]
        assert y.dtype == ml_dtypes.int4
        np.testing.assert_array_equal(y.astype(np.int64), exact)
    compiled.save(tmp_path / "c.onnx")
    y = anybit.load(tmp_path / "c.onnx").run(codes)["y"]
    np.testing.assert_array_equal(y.astype(np.int64), exact)
    assert "1 of 1 layer" in str(compiled.report)


def test_types_that_the_runtime_lacks_are_refused_in_words() -> None:
    with pytest.raises(ModelError, match=r"cannot be loaded: .*float4_e2m1fn"):
        anybit.load(to_float("FLOAT4E2M1"))


def test_narrow_types_pairs_of_float4_run_as_quantizers() -> None:
    """ONNX Runtime has no kernels for them, but convert makes FloatQuant of them."""
    tensors = [
        numpy_helper.from_array(np.float32(0.5), "s"),
        helper.make_tensor("z", TensorProto.FLOAT4E2M1, (), [0]),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["n"])],
        [value("y", TensorProto.FLOAT, ["n"])],
        tensors,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    with pytest.raises(ModelError, match=r"cannot be loaded: .*float4_e2m1fn.*qonnx"):
        anybit.load(proto)
    x = np.linspace(-4, 4, 257, dtype=np.float32)
    y = anybit.load(anybit.convert(proto, to="qonnx")).run(x)["y"]
    expected = np.clip(x / 0.5, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32) * 0.5
    np.testing.assert_array_equal(y, expected)
    (quantizer,) = anybit.inspect(proto, layers=False).summary.quantizers
    assert (quantizer.type, quantizer.bits) == ("float4_e2m1fn", "4")
    assert quantizer.codes == "float4_e2m1fn to 6"
