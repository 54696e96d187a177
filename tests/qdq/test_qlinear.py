# SPDX-License-Identifier: Apache-2.0
"""QLinearConv and QLinearMatMul come apart if float32 computes the same codes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from qdq_models import Lifted, check, plain, qdq, telling, tensor
from small_models import kinds

from anybit.onnxruntime import session


def qlinear(kind: str, scales: Sequence[Any], zeropts: Sequence[Any], codes: np.ndarray, **options):
    """x -> QuantizeLinear -> QLinearConv or QLinearMatMul -> DequantizeLinear -> y."""
    types = [TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT8]
    tensors = [tensor("w", codes, TensorProto.INT8)]
    for name, scale, zeropt, type_ in zip("abc", scales, zeropts, types, strict=True):
        tensors += [tensor(f"{name}s", scale), tensor(f"{name}z", zeropt, type_)]
    inputs = "q as az w bs bz cs cz"
    if "bias" in options:
        tensors.append(tensor("bias", options.pop("bias"), TensorProto.INT32))
        inputs += " bias"
    nodes = [
        plain("QuantizeLinear", "x as az", "q"),
        plain(kind, inputs, "r"),
        plain("DequantizeLinear", "r cs cz"),
    ]
    return qdq(nodes, tensors, **options)


CONV = np.random.default_rng(7).integers(-128, 128, (3, 2, 3, 3))
COLUMN = np.random.default_rng(7).integers(-128, 128, (27, 2))


CONV_SHAPES = {"shape": (1, 2, 6, 6), "output": (1, 3, 4, 4)}

OPERATORS = {
    "Conv": qlinear("QLinearConv", (0.25, 0.5, 4), (128, 0, 128), CONV, **CONV_SHAPES),
    "Conv per channel": qlinear(
        "QLinearConv",
        (0.25, [0.5, 1, 2], 64),
        (3, [0, 0, 0], 128),
        CONV,
        bias=[100, -7, 9999],
        **CONV_SHAPES,
    ),
    "MatMul": qlinear(
        "QLinearMatMul",
        (0.25, 0.5, 128),
        (128, 5, 127),
        CONV.reshape(2, 27),
        shape=(9, 2),
        output=(9, 27),
    ),
    "MatMul per channel": qlinear(
        "QLinearMatMul", (0.25, [0.5, 2], 64), (0, [0, 1], 9), COLUMN, shape=(9, 27), output=(9, 2)
    ),
}


def input_of(proto: onnx.ModelProto) -> np.ndarray:
    shape = [axis.dim_value for axis in proto.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(8).standard_normal(shape).astype(np.float32) * 40


def operands_of(proto: onnx.ModelProto, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of x as rows x elements, one row per output position, and the codes of the
    weights as elements x channels, both in int64. Products are summed in the order of NHWC."""
    tensors = arrays_of(proto)
    codes = np.rint(x.astype(np.float64) / tensors["as"]) + tensors["az"]
    q, w = np.clip(codes, 0, 255).astype(np.int64), tensors["w"].astype(np.int64)
    if w.ndim == 2:
        return q, w
    windows = np.lib.stride_tricks.sliding_window_view(q[0], w.shape[2:], axis=(1, 2))
    rows = windows.transpose(1, 2, 3, 4, 0).reshape(-1, w[0].size)
    return rows, w.transpose(2, 3, 1, 0).reshape(w[0].size, -1)


def arrays_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {item.name: onnx.numpy_helper.to_array(item) for item in proto.graph.initializer}


def result_of(proto: onnx.ModelProto, sums: np.ndarray) -> np.ndarray:
    """Return y for integer sums of rows x channels. Scales are powers of two: float64 is exact."""
    tensors = arrays_of(proto)
    factor = np.float64(tensors["as"]) * tensors["bs"] / np.float64(tensors["cs"])
    codes = np.clip(np.rint(sums * factor) + tensors["cz"], 0, 255)
    y = (codes - tensors["cz"]) * np.float64(tensors["cs"])
    shape = [axis.dim_value for axis in proto.graph.output[0].type.tensor_type.shape.dim]
    return (y.T if len(shape) == 4 else y).reshape(shape)


def expected(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return y, computed in exact integers."""
    rows, weights = operands_of(proto, x)
    tensors = arrays_of(proto)
    sums = (rows - np.int64(tensors["az"])) @ (weights - tensors["bz"].astype(np.int64))
    return result_of(proto, sums + tensors.get("bias", np.int64(0)))


def saturated(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return y where two adjacent products are added in a saturated int16, as vpmaddubsw does."""
    rows, weights = operands_of(proto, x)
    tensors = arrays_of(proto)
    odd = rows.shape[1] % 2
    a, b = np.pad(rows, ((0, 0), (0, odd))), np.pad(weights, ((0, odd), (0, 0)))
    products = (a[:, :, None] * b[None]).reshape(len(a), -1, 2, b.shape[1])
    raw = np.clip(products.sum(axis=2), -(2**15), 2**15 - 1).sum(axis=1)
    exact = rows @ weights
    shifted = (rows - np.int64(tensors["az"])) @ (weights - tensors["bz"].astype(np.int64))
    return result_of(proto, shifted - exact + raw + tensors.get("bias", np.int64(0)))


@pytest.mark.parametrize("proto", OPERATORS.values(), ids=OPERATORS)
def test_qlinear_operators(proto: onnx.ModelProto) -> None:
    x = input_of(proto)
    lifted = Lifted(proto)
    y = session(lifted.model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(y, expected(proto, x))
    assert lifted.exact
    assert not {"QLinearConv", "QLinearMatMul", "DequantizeLinear"} & set(kinds(lifted.model))


@pytest.mark.parametrize("proto", OPERATORS.values(), ids=OPERATORS)
def test_qlinear_cases_tell_saturated_sums_from_exact_ones(proto: onnx.ModelProto) -> None:
    x = input_of(proto)
    assert (saturated(proto, x) != expected(proto, x)).any()
    (step, *_) = Lifted(proto).steps
    assert "saturates sums of two products of QLinear" in step.reason
    assert "x86-64 CPUs without VNNI" in step.reason


def one_pair(first: int, second: int, **options: Any) -> onnx.ModelProto:
    codes = np.array([[first], [second], [0]])
    shapes = {"shape": (1, 3), "output": (1, 1)}
    return qlinear("QLinearMatMul", (1, 1, 256), (0, 0, 128), codes, **shapes, **options)


@pytest.mark.parametrize(
    ("weights", "remarked"),
    [
        ((64, 64), False),  # 255 * 128 = 32640
        ((65, 64), True),  # 255 * 129 = 32895
        ((-64, -64), False),
        ((-128, -1), True),
        ((127, -128), False),
    ],
)
def test_qlinear_saturation_is_remarked_from_255_times_129_on(
    weights: tuple[int, int], remarked: bool
) -> None:
    (step, *_) = Lifted(one_pair(*weights)).steps
    assert ("saturates" in step.reason) == remarked
    assert step.exact


def test_qlinear_saturation_concerns_uint8_with_int8_only() -> None:
    proto = one_pair(127, 127)
    for tensor_ in proto.graph.initializer:
        if tensor_.name == "az":
            tensor_.data_type = TensorProto.INT8
    proto.graph.value_info.clear()
    (step, *_) = Lifted(proto).steps
    assert step.operator == "QLinearMatMul"
    assert step.reason == ""


@pytest.mark.parametrize("scales", [(0.3, 0.5, 4), (0.25, 0.7, 40), (0.1, 0.3, 0.7), (1, 1e-9, 1)])
def test_qlinear_operators_of_any_scale_have_exact_codes(scales: tuple[float, ...]) -> None:
    proto = qlinear("QLinearConv", scales, (3, 0, 128), CONV, **CONV_SHAPES)
    x = input_of(proto)
    rows, weights = operands_of(proto, x)
    x_scale, w_scale, y_scale = np.asarray(scales, np.float32)
    sums = ((rows - 3) @ weights).astype(np.float32)
    codes = np.clip(np.rint(sums * (x_scale * w_scale / y_scale)) + 128, 0, 255)
    expected_y = ((codes - 128) * y_scale).astype(np.float32).T.reshape(1, 3, 4, 4)
    lifted = Lifted(proto)
    assert lifted.exact
    y = session(lifted.model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(y, expected_y)
    assert not {"QLinearConv", "DequantizeLinear"} & set(kinds(lifted.model))


def test_qlinear_operators_with_computed_scales_stay() -> None:
    proto = qlinear("QLinearConv", (0.25, 0.5, 4), (0, 0, 0), CONV, **CONV_SHAPES)
    del proto.graph.initializer[1]
    proto.graph.node.insert(0, plain("ReduceMax", "x", "as", keepdims=0))
    lifted = Lifted(proto)
    assert "QLinearConv" in kinds(lifted.model)
    assert any("computed at run time" in step.reason for step in lifted.steps)


def test_qlinear_other_integer_operators_stay() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dynamic"),
        plain("DequantizeLinear", "q s z"),
    ]
    lifted = check(qdq(nodes, []), telling(0.5)[:100])
    assert [step.action for step in lifted.steps] == ["kept", "kept"]
    assert {step.node for step in lifted.steps} == {"dynamic", "the_DequantizeLinear_y"}
