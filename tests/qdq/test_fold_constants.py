# SPDX-License-Identifier: Apache-2.0
"""Float weights before a QuantizeLinear become the codes that ONNX defines."""

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_models import outputs

import anybit
from anybit.onnx import read
from anybit.onnx.passes import FoldConstants, Normalize

RANGES = {
    "INT2": (-2, 1),
    "UINT2": (0, 3),
    "INT4": (-8, 7),
    "UINT4": (0, 15),
    "INT8": (-128, 127),
    "UINT8": (0, 255),
    "INT16": (-32768, 32767),
    "UINT16": (0, 65535),
}
INTEGERS = {
    getattr(TensorProto, name): ends for name, ends in RANGES.items() if hasattr(TensorProto, name)
}
FLOATS = {
    TensorProto.FLOAT8E4M3FN: 448,
    TensorProto.FLOAT8E4M3FNUZ: 240,
    TensorProto.FLOAT8E5M2: 57344,
    TensorProto.FLOAT8E5M2FNUZ: 57344,
    TensorProto.FLOAT4E2M1: 6,
}
SCALE = np.float32(0.3)
SHAPES: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "tensor": ((), {}),
    "axis": ((6,), {"axis": 0}),
    "last axis": ((4,), {"axis": -1}),
    "blocks": ((3, 4), {"axis": 0, "block_size": 2}),
}


def weights(values: Any, scale: Any, zeropt: Any, dtype: int, **attributes: int) -> onnx.ModelProto:
    """x @ DequantizeLinear(QuantizeLinear(values))."""
    values = np.asarray(values)
    inputs = ["w", "s", "z"]
    tensors = [
        numpy_helper.from_array(values, "w"),
        numpy_helper.from_array(np.asarray(scale, np.float32), "s"),
        helper.make_tensor("z", dtype, np.shape(zeropt), np.ravel(zeropt)),
    ]
    shared = {name: item for name, item in attributes.items() if name != "saturate"}
    nodes = [
        helper.make_node("QuantizeLinear", inputs, ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", *inputs[1:]], ["d"], **shared),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", len(values)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", values.shape[-1]])],
        tensors,
    )
    imports = [helper.make_opsetid("", 25)]
    return helper.make_model(graph, opset_imports=imports, ir_version=13)


def codes(proto: onnx.ModelProto) -> np.ndarray[Any, Any]:
    """Return the codes before the DequantizeLinear after folding."""
    model = read(proto)
    Normalize()(model)
    FoldConstants(operators=False)(model)
    assert [node.op_type for node in model.graph] == ["DequantizeLinear", "MatMul"]
    stored = model.graph[0].inputs[0]
    assert stored is not None
    assert stored.const_value is not None
    return np.asarray(stored.const_value.numpy())


def expected(value: float, scale: float, zeropt: int, lowest: int, highest: int) -> int:
    """saturate(round half even(float32(x / scale)) + zero-point) in exact arithmetic."""
    with np.errstate(over="ignore"):
        quotient = np.float32(value) / np.float32(scale)
    if np.isinf(quotient):
        return highest if quotient > 0 else lowest
    return min(max(round(Fraction(float(quotient))) + zeropt, lowest), highest)


@pytest.mark.parametrize("dtype", INTEGERS, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("kind", SHAPES)
def test_fold_qdq_quantize_linear_of_constants_rounds_half_even_and_saturates(
    dtype: int, kind: str
) -> None:
    lowest, highest = INTEGERS[dtype]
    shape, attributes = SHAPES[kind]
    rng = np.random.default_rng(dtype)
    scale = rng.choice(np.float32([0.25, 0.5, 0.3]), shape)
    zeropt = rng.integers(max(lowest, -9), min(highest, 9) + 1, shape)
    halves = rng.integers(2 * lowest - 5, 2 * highest + 6, (6, 4)) / 2
    values = np.float32(halves * np.float32(0.5))
    values[0, 0], values[1, 1], values[2, 2] = np.inf, -np.inf, 3e38
    actual = codes(weights(values, scale, zeropt, dtype, **attributes)).astype(int)
    scales, zeropts = (
        parameter if shape else np.full((6, 4), parameter) for parameter in (scale, zeropt)
    )
    if kind == "axis":
        scales, zeropts = (np.repeat(parameter[:, None], 4, 1) for parameter in (scale, zeropt))
    elif kind == "last axis":
        scales, zeropts = (np.repeat(parameter[None], 6, 0) for parameter in (scale, zeropt))
    elif kind == "blocks":
        scales, zeropts = (np.repeat(parameter, 2, 0) for parameter in (scale, zeropt))
    for at in np.ndindex(6, 4):
        target = expected(values[at], scales[at], int(zeropts[at]), lowest, highest)
        assert actual[at] == target, (values[at], scales[at], zeropts[at])


@pytest.mark.parametrize("dtype", FLOATS, ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("saturate", [0, 1])
def test_fold_qdq_quantize_linear_of_constants_to_floats_takes_the_nearest(
    dtype: int, saturate: int
) -> None:
    largest = FLOATS[dtype]
    if dtype == TensorProto.FLOAT4E2M1 and not saturate:
        pytest.skip("ONNX has no such conversion")
    grid = np.unique(ir.DataType(dtype).numpy().type(0) + all_values(dtype))
    rng = np.random.default_rng(dtype)
    values = np.float32(
        rng.uniform(-largest, largest, (40, 1)) * 2.0 ** rng.integers(-9, 1, (40, 1))
    )
    values[0, 0], values[1, 0], values[2, 0] = np.inf, -1e9, 0
    actual = codes(weights(values, 1.0, 0, dtype, saturate=saturate)).astype(np.float32)
    for value, code in zip(values[:, 0], actual[:, 0], strict=True):
        if abs(value) > largest:
            beyond = np.inf if dtype == TensorProto.FLOAT8E5M2 else np.nan
            limit = largest if saturate else beyond
            np.testing.assert_array_equal(code, np.copysign(limit, value))
        else:
            distance = np.abs(grid - np.float64(value))
            assert code in grid[distance == distance.min()]


def all_values(dtype: int) -> np.ndarray[Any, Any]:
    """Return all finite values of a floating-point type, by their bits."""
    kind = ir.DataType(dtype)
    every = np.arange(2**kind.bitwidth, dtype=np.uint8).view(kind.numpy()).astype(np.float64)
    return every[np.isfinite(every)]


def test_fold_qdq_quantize_linear_of_nan_is_left_to_the_runtime() -> None:
    proto = weights([[np.nan], [1]], 0.5, 0, TensorProto.INT8)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([[np.nan], [1]]), "w"))
    model = read(proto)
    Normalize()(model)
    FoldConstants(operators=False)(model)
    assert model.graph[0].op_type == "QuantizeLinear"


def test_fold_qdq_folded_float_weights_run_as_in_onnx_runtime() -> None:
    values = np.float32(np.random.default_rng(3).normal(0, 9, (64, 8)))
    for code in (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT4):
        proto = weights(values, SCALE, 1, code)
        (unfolded,) = outputs(proto, {"x": np.eye(64, dtype=np.float32)})
        folded = anybit.load(proto).run(np.eye(64, dtype=np.float32))["y"]
        np.testing.assert_array_equal(folded, unfolded)


def test_fold_qdq_compile_of_weights_that_are_quantized_in_the_file() -> None:
    proto = weights(np.eye(4, dtype=np.float32), 0.25, 0, TensorProto.INT8)
    tensors = [
        numpy_helper.from_array(np.float32(0.5), "t"),
        numpy_helper.from_array(np.uint8(3), "u"),
    ]
    proto.graph.initializer.extend(tensors)
    del proto.graph.node[2:]
    proto.graph.node.extend(
        [
            helper.make_node("QuantizeLinear", ["x", "t", "u"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "t", "u"], ["xd"]),
            helper.make_node("MatMul", ["xd", "d"], ["y"]),
        ]
    )
    compiled = anybit.compile(proto)
    assert "1 of 1 layer" in str(compiled.report)
    x = np.float32([[0.24, 0.25, 0.75, 1000]])
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])
    assert [
        quantizer.constant for quantizer in anybit.inspect(proto, layers=False).summary.quantizers
    ] == [
        True,
        False,
    ]
