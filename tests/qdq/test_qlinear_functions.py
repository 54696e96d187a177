# SPDX-License-Identifier: Apache-2.0
"""Operators on codes as quantizers and standard operators, against ONNX Runtime, code by code."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from code_networks import RUNTIME, CodeNetwork, make_feeds, run_plain
from onnx import TensorProto, helper
from operator_files import SHAPES, make_operator_file

import anybit
from anybit.onnx.conversion import Conversion
from anybit.onnxruntime import session

EXTREMES = [
    (dtype, x, y)
    for dtype in (np.uint8, np.int8)
    for x in (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for y in (np.iinfo(dtype).min, np.iinfo(dtype).max)
]
SIZES = [1e-30, 1.0, 1e30]
SOFTMAX = {"axis": -1, "opset": 17}
extremes = pytest.mark.parametrize(("dtype", "x_zeropt", "y_zeropt"), EXTREMES)
sizes = pytest.mark.parametrize("size", SIZES)


def list_operators(model: ir.Model) -> set[str]:
    return {node.op_type for node in model.graph}


def compare(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray] | None = None,
    kept: set[str] | None = None,
    order: bool = True,
) -> Conversion:
    """Compare the codes of a converted model, in three sessions, with those of the model.

    Args:
        model: The model.
        feeds: Its inputs; random ones by default.
        kept: Its operators on codes that stay.
        order: Whether optimizations of the model itself keep its codes.
    """
    converted = anybit.convert(model, to="qonnx")
    proto = ir.to_proto(converted.model)
    standard = ir.to_proto(anybit.convert(proto, to="standard").model)
    left = {kind for kind in list_operators(converted.model) if kind.startswith("Q")}
    assert left - {"QuantizeLinear"} == (kept or set())
    assert converted.exact
    for seed in range(1 if feeds else 2):
        own = feeds or make_feeds(model, seed)
        expected = run_plain(model, own, optimize=order)
        results = anybit.load(proto).run(own)
        named = list(results.values()) if isinstance(results, dict) else [results]
        runs = [named, session(converted.model).run(None, own)]
        runs += [run_plain(standard, own, optimize) for optimize in (False, True)]
        for arrays in runs:
            for actual, codes in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(actual, codes)
    return converted


@pytest.mark.parametrize(
    ("name", "kept"),
    [("ResNet", {"QLinearAdd"}), ("MobileNet", set()), ("ViT", {"QLinearAdd", "QLinearSoftmax"})],
)
def test_convert_operator_file_keeps_its_results(name: str, kept: set[str], tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=(2, *SHAPES[name])).astype(np.float32)
    converted = compare(make_operator_file(name, tmp_path), {"x": x}, kept)
    reasons = [step.reason for step in converted.steps if step.operator in kept]
    assert all(reasons)


def list_codes(dtype: Any) -> np.ndarray:
    return np.arange(256).astype(np.uint8).view(dtype)


def list_pairs(dtype: Any) -> list[np.ndarray]:
    pairs = np.meshgrid(list_codes(dtype), list_codes(dtype), indexing="ij")
    return [codes[None, None].copy() for codes in pairs]


@pytest.mark.sample(6)
@extremes
@sizes
@pytest.mark.parametrize(
    ("kind", "attributes"), [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.1})]
)
def test_convert_table_has_all_codes_of_the_runtime(
    kind: str, attributes: Any, dtype: Any, x_zeropt: int, y_zeropt: int, size: float
) -> None:
    network = CodeNetwork(0, dtype)
    x = network.input(1, 1, 16, 16, scale=0.1 * size, zeropt=x_zeropt)
    y_scale = 0.1 * size if kind == "QLinearLeakyRelu" else 0.005
    y = network.add_parameters("y", scale=y_scale, zeropt=y_zeropt)
    result = network.node(kind, [*network.triple(x), *y], RUNTIME, **attributes)
    compare(network.model(result), {x: list_codes(dtype).reshape(1, 1, 16, 16)})


@pytest.mark.sample(6)
@extremes
@sizes
def test_convert_mul_has_the_codes_of_all_pairs(
    dtype: Any, x_zeropt: int, y_zeropt: int, size: float
) -> None:
    network = CodeNetwork(0, dtype)
    first = network.input(1, 1, 256, 256, scale=0.1 * size, zeropt=x_zeropt)
    second = network.input(1, 1, 256, 256, scale=0.3, zeropt=y_zeropt)
    y = network.add_parameters("y", scale=2.0 * size, zeropt=y_zeropt)
    inputs = [*network.triple(first), *network.triple(second), *y]
    result = network.node("QLinearMul", inputs, RUNTIME)
    compare(network.model(result), dict(zip((first, second), list_pairs(dtype), strict=True)))


@pytest.mark.parametrize(("scale", "kept"), [(2.0**14, set()), (2.0**15, {"QLinearMul"})])
def test_convert_keeps_mul_whose_products_overflow(scale: float, kept: set[str]) -> None:
    network = CodeNetwork(0)
    tensors = [network.input(1, 1, 256, 256, scale=1.0, zeropt=zeropt) for zeropt in (0, 255)]
    y = network.add_parameters("y", scale=1 / scale, zeropt=7)
    inputs = [*(item for name in tensors for item in network.triple(name)), *y]
    result = network.node("QLinearMul", inputs, RUNTIME)
    feeds = dict(zip(tensors, list_pairs(np.uint8), strict=True))
    compare(network.model(result), feeds, kept)


@pytest.mark.sample(6)
@extremes
@sizes
def test_convert_concat_requantizes_all_codes(
    dtype: Any, x_zeropt: int, y_zeropt: int, size: float
) -> None:
    network = CodeNetwork(0, dtype)
    tensors = [
        network.input(1, 1, 16, 16, scale=scale * size, zeropt=zeropt)
        for scale, zeropt in ((0.1, x_zeropt), (0.3, x_zeropt), (0.2, y_zeropt))
    ]
    y = network.add_parameters("y", scale=0.2 * size, zeropt=y_zeropt)
    inputs = [*y, *(item for name in tensors for item in network.triple(name))]
    result = network.node("QLinearConcat", inputs, RUNTIME, axis=1)
    codes = list_codes(dtype).reshape(1, 1, 16, 16)
    compare(network.model(result), dict.fromkeys(tensors, codes))


@pytest.mark.sample(6)
@extremes
@sizes
def test_convert_global_average_pool_has_the_codes_of_the_runtime(
    dtype: Any, x_zeropt: int, y_zeropt: int, size: float
) -> None:
    network = CodeNetwork(0, dtype)
    x = network.input("n", 64, 4, 5, scale=0.1 * size, zeropt=x_zeropt)
    y = network.add_parameters("y", scale=0.1 * size, zeropt=y_zeropt)
    result = network.node("QLinearGlobalAveragePool", [*network.triple(x), *y], RUNTIME)
    compare(network.model(result))


@pytest.mark.sample(6)
@extremes
@sizes
@pytest.mark.parametrize("codes", [True, False])
def test_convert_qgemm_has_the_results_of_the_runtime(
    dtype: Any, x_zeropt: int, y_zeropt: int, size: float, codes: bool
) -> None:
    network = CodeNetwork(0, dtype)
    x = network.input("n", 200, scale=0.1 * size, zeropt=x_zeropt)
    weights = network.weights((7, 200) if codes else (200, 7), 0 if codes else 1, np.int8, True)
    bias = network.constant(network.random.integers(-900, 900, 7).astype(np.int32))
    inputs = [*network.triple(x), *weights, bias]
    if codes:
        inputs += network.add_parameters("y", scale=0.5 * size, zeropt=y_zeropt)
    model = network.model(network.node("QGemm", inputs, RUNTIME, transB=int(codes)))
    if not codes:
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    compare(model)


@extremes
def test_convert_matmul_of_two_computed_factors_has_the_codes_of_the_runtime(
    dtype: Any, x_zeropt: int, y_zeropt: int
) -> None:
    network = CodeNetwork(0, dtype)
    first = network.input(3, 6, 200, scale=0.1, zeropt=x_zeropt)
    second = network.input(3, 200, 5, scale=0.3, zeropt=y_zeropt)
    y = network.add_parameters("y", scale=20, zeropt=y_zeropt)
    inputs = [*network.triple(first), *network.triple(second), *y]
    compare(network.model(network.node("QLinearMatMul", inputs)), order=False)


@pytest.mark.sample(6)
@extremes
@pytest.mark.parametrize("factor", [0.1, 0.3, 0.7, 1 / 3])
@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
def test_convert_product_has_the_codes_of_the_runtime_at_ties(
    kind: str, factor: float, dtype: Any, x_zeropt: int, y_zeropt: int
) -> None:
    network = CodeNetwork(0, dtype)
    x = network.input(1, 16, 64, 300, scale=factor, zeropt=x_zeropt)
    shape = (8, 16, 1, 1) if kind == "Conv" else (300, 8)
    weights = network.constant(network.random.integers(-3, 4, shape).astype(np.int8))
    one = [network.constant(np.float32(1)), network.constant(np.int8(0))]
    y = network.add_parameters("y", scale=1, zeropt=y_zeropt)
    result = network.node(f"QLinear{kind}", [*network.triple(x), weights, *one, *y])
    compare(network.model(result))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("weights", [np.int8, np.uint8])
def test_convert_conv_with_groups_and_zero_points_of_weights(dtype: Any, weights: Any) -> None:
    if weights is np.uint8 and dtype is np.int8:
        pytest.skip("ONNX Runtime has no kernel for these types")
    network = CodeNetwork(1, dtype)
    x = network.input("n", 4, 9, 9)
    x = network.conv(x, (8, 2, 3, 3), weights, group=2, pads=[1] * 4)
    x = network.move("MaxPool", x, kernel_shape=[2, 2])
    compare(network.model(network.conv(x, (4, 8, 1, 1), weights, False), floats=True))


@pytest.mark.parametrize("kind", ["MatMulInteger", "ConvInteger"])
def test_convert_static_integer_product_has_the_sums_of_the_runtime(kind: str) -> None:
    network = CodeNetwork(1)
    x = network.input(2, 6, 5, 5, zeropt=200)
    shape = (4, 6, 3, 3) if kind == "ConvInteger" else (5, 4)
    weights = network.constant(network.random.integers(-64, 64, shape).astype(np.int8))
    zeropt = network.parameters[x][1]
    sums = network.node(kind, [x, weights, zeropt])
    model = network.model(network.node("Cast", [sums], to=TensorProto.FLOAT))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    converted = compare(model)
    assert not {"MatMulInteger", "ConvInteger"} & list_operators(converted.model)


def test_convert_moves_of_codes_become_moves_of_floats() -> None:
    network = CodeNetwork(2)
    x = network.conv(network.input(1, 2, 6, 6), (3, 2, 3, 3))
    x = network.binary("QLinearMul", x, x)
    pads = network.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    x = network.move("Pad", network.move("Transpose", x, perm=[0, 1, 3, 2]), pads)
    converted = compare(network.model(network.conv(x, (3, 3, 3, 3)), floats=True))
    assert {step.operator for step in converted.steps if step.action == "kept"} == {
        "DequantizeLinear"  # of the input
    }


@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearAveragePool", "QLinearSoftmax"])
def test_convert_operators_without_exact_form_stay_with_a_remedy(kind: str) -> None:
    network = CodeNetwork(3)
    x = network.conv(network.input(1, 2, 6, 6), (3, 2, 3, 3))
    if kind == "QLinearAdd":
        y = network.binary(kind, x, x)
    else:
        more = SOFTMAX if kind == "QLinearSoftmax" else {"kernel_shape": [2, 2]}
        y = network.unary(kind, x, **more)
    converted = compare(network.model(network.conv(y, (3, 3, 1, 1))), kept={kind})
    (step,) = [step for step in converted.steps if step.operator == kind]
    assert step.action == "kept"
    assert "anybit compile" in step.reason


def list_ties(rows: int, channels: int) -> np.ndarray:
    """Return codes for weights of 64, the last two of 1 and -1: sums at ties of 2^19, or nearly."""
    random = np.random.default_rng(6)
    codes = np.zeros((rows, channels), np.uint8)
    for row in codes:
        left = 4096 * (2 * int(random.integers(30, 128)) + 1)
        row[: left // 255], row[left // 255] = 255, left % 255
        random.shuffle(row[:-2])
        row[-2:] = random.integers(0, 9, 2)
    return codes


@pytest.mark.parametrize("kind", ["Conv", "MatMul", "Gemm"])
@pytest.mark.parametrize("bias", [0, -3])
def test_convert_sums_beyond_24_bits_round_once_as_in_the_runtime(kind: str, bias: int) -> None:
    network, channels = CodeNetwork(4), 5000
    weights = np.full((2, channels), 64, np.int8)
    weights[:, -2:] = 1, -1
    shape = {"Conv": (64, channels, 1, 1), "MatMul": (64, channels), "Gemm": (64, channels)}[kind]
    x = network.input(*shape, scale=1, zeropt=0)
    array = {"Conv": weights[:, :, None, None], "MatMul": weights.T, "Gemm": weights}[kind]
    one = [network.constant(np.float32(1)), network.constant(np.int8(0))]
    y = network.add_parameters("y", scale=2.0**19, zeropt=3)
    addend = [network.constant(np.full(2, bias, np.int32))] if bias and kind != "MatMul" else []
    inputs = [*network.triple(x), network.constant(array), *one]
    if kind == "Gemm":
        inputs += [*(addend or [""]), *y]
        result = network.node("QGemm", inputs, RUNTIME, transB=1)
    else:
        result = network.node(f"QLinear{kind}", [*inputs, *y, *addend])
    codes = list_ties(64, channels).reshape(shape)
    converted = compare(network.model(result), {x: codes})
    parts = [node for node in converted.model.graph if node.op_type == kind]
    assert len(parts) == 5


def test_convert_grouped_sums_beyond_24_bits_stay_or_differ() -> None:
    network = CodeNetwork(4)
    x = network.input(1, 1998, 2, 2, scale=1, zeropt=0)
    weights = network.constant(np.full((2, 999, 1, 1), 127, np.int8))
    one = [network.constant(np.float32(1)), network.constant(np.int8(0))]
    y = network.add_parameters("y", scale=2.0**18, zeropt=0)
    node = network.node("QLinearConv", [*network.triple(x), weights, *one, *y], group=2)
    (step,) = anybit.convert(network.model(node), to="qonnx").steps
    assert step.action == "kept"
    assert "a sum may reach 32352615, beyond 2^24" in step.reason
    assert "anybit compile" in step.reason
    split = anybit.convert(network.model(node), to="qonnx", allow_approximate=True)
    assert [step.operator for step in split.steps if not step.exact] == ["QLinearConv"]
    assert "Conv" in list_operators(split.model)


def test_convert_to_standard_names_the_conversion_of_operators_on_codes() -> None:
    network = CodeNetwork(6)
    x = network.unary("QLinearSigmoid", network.input(1, 2, 4, 4))
    converted = anybit.convert(network.model(network.binary("QLinearAdd", x, x)), to="standard")
    reasons = {step.operator.split("::")[-1]: step.reason for step in converted.steps}
    assert reasons["QLinearSigmoid"].endswith("anybit convert --to qonnx replaces it")
    assert "replaces it" not in reasons["QLinearAdd"]


def test_convert_operators_in_branches_stay() -> None:
    network = CodeNetwork(5)
    x = network.input(1, 1, 4, 4)
    network.unary("QLinearSigmoid", x)
    (node,) = network.nodes
    output = helper.make_tensor_value_info(node.output[0], TensorProto.UINT8, None)
    branch = helper.make_graph([node], "branch", [], [output])
    network.nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    network.inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    converted = anybit.convert(network.model("y"), to="qonnx")
    assert [step.action for step in converted.steps] == ["kept", "kept"]
