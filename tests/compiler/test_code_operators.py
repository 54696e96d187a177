# SPDX-License-Identifier: Apache-2.0
"""Compiled QLinear operators against ONNX Runtime, code by code."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from code_networks import (
    REDUCED,
    RUNTIME,
    CodeNetwork,
    add_product,
    compare,
    make_feeds,
    run_plain,
)
from onnx import TensorProto, helper

import anybit
from anybit.errors import ModelError
from anybit.quant_types.layer_info import Guarantee

ON_X86 = platform.machine() in ("x86_64", "AMD64")
needs_fused_operations = pytest.mark.skipif(
    not ON_X86, reason="QLinearAdd of ONNX Runtime computes in fixed point on ARM"
)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("weights", [np.int8, np.uint8])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((6, 4, 3, 3), {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
        ((8, 2, 3, 3), {"group": 2, "dilations": [2, 2]}),
        ((4, 1, 3, 3), {"group": 4, "auto_pad": "SAME_UPPER"}),
        ((5, 4, 1, 1), {}),
    ],
)
def test_qlinear_conv_has_the_codes_of_the_runtime(
    dtype: Any, weights: Any, per_channel: bool, shape: Sequence[int], attributes: dict[str, Any]
) -> None:
    if weights is np.uint8 and dtype is np.int8:
        pytest.skip("ONNX Runtime has no kernel for these types")
    network = CodeNetwork(len(attributes) + shape[0], dtype)
    x = network.input("n", 4, 9, 9)
    y = network.conv(x, shape, weights, per_channel, bias=shape[0] != 8, **attributes)
    compiled = compare(network.model(y))
    assert [x.guarantee for x in compiled.report.layers] == [Guarantee.EXACT]
    assert compiled.report.layers[0].layer.operator == "QLinearConv"


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_conv_has_the_codes_of_all_sums(dtype: Any) -> None:
    network = CodeNetwork(1, dtype)
    x = network.input(1, 2, 256, 256)
    info = np.iinfo(dtype)
    every = np.arange(info.min, info.max + 1, dtype=dtype)
    codes = np.stack(np.meshgrid(every, every, indexing="ij"))[None]
    compare(network.model(network.conv(x, (9, 2, 1, 1))), {x: codes})


def make_pairs(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(dtype)
    every = np.arange(info.min, info.max + 1, dtype=dtype)
    first, second = np.meshgrid(every, every, indexing="ij")
    return first[None, None].copy(), second[None, None].copy()


@needs_fused_operations
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("seed", range(6))
def test_binary_function_has_the_codes_of_all_pairs(kind: str, dtype: Any, seed: int) -> None:
    network = CodeNetwork(seed, dtype)
    # Equal scales without zero-points give many ties.
    parameters = {"scale": 0.05, "zeropt": 0} if seed == 0 else {}
    names = [network.input(1, 1, 256, 256, **parameters) for _ in range(2)]
    y = network.binary(kind, *(add_product(network, name) for name in names))
    compare(network.model(y), dict(zip(names, make_pairs(dtype), strict=True)))


@needs_fused_operations
@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (1, 1, 1, 16), (1, 6, 64, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("first", [True, False])
def test_binary_function_broadcasts_operands(kind: str, shape: Sequence[int], first: bool) -> None:
    for seed in range(4):
        network = CodeNetwork(seed)
        x, gate = network.input(1, 6, 64, 16), network.input(*shape)
        pair = [add_product(network, x, 6), add_product(network, gate, shape[1])]
        y = network.binary(kind, *(pair[::-1] if first else pair))
        # Optimizations move channels last, and with them the rows that an operand is repeated for.
        compare(network.model(y), optimize=False)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("kind", "attributes"),
    [("QLinearSigmoid", {}), ("QLinearLeakyRelu", {"alpha": 0.1})],
)
def test_table_has_the_codes_of_the_runtime(
    kind: str, attributes: dict[str, Any], dtype: Any
) -> None:
    for seed in range(4):
        network = CodeNetwork(seed, dtype)
        x = network.input(1, 1, 16, 16)
        codes = np.arange(256).astype(np.uint8).view(dtype).reshape(1, 1, 16, 16)
        y = network.unary(kind, add_product(network, x), **attributes)
        compare(network.model(y), {x: codes})


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("opset", [12, 17])
def test_global_average_pool_has_the_codes_of_the_runtime(dtype: Any, opset: int) -> None:
    network = CodeNetwork(2, dtype, opset)
    x = network.input(1, 3, 7, 5)
    y = network.unary("QLinearGlobalAveragePool", add_product(network, x, 3), channels_last=0)
    compare(network.model(y))


def test_concat_requantizes_tensors_of_other_scales() -> None:
    network = CodeNetwork(5)
    names = [network.conv(network.input(1, 3, 6, 6), (n, 3, 3, 3)) for n in (2, 4, 3)]
    network.parameters[names[2]] = network.parameters[names[0]]
    network.nodes[2].input[6:8] = network.parameters[names[0]]
    result = f"QLinearConcat_{len(network.nodes)}"
    network.parameters[result] = network.parameters[names[0]]
    inputs = [*network.parameters[result], *(part for n in names for part in network.triple(n))]
    y = network.node("QLinearConcat", inputs, RUNTIME, axis=1)
    compare(network.model(network.conv(y, (4, 9, 1, 1))))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_matrix_products_have_the_codes_of_the_runtime(dtype: Any) -> None:
    network = CodeNetwork(7, dtype)
    x = network.input("n", 5, 24)
    weights = network.weights((24, 12), 1, np.int8, per_channel=True)
    y = f"QLinearMatMul_{len(network.nodes)}"
    inputs = [*network.triple(x), *weights, *network.add_parameters(y)]
    network.node("QLinearMatMul", inputs)
    compare(network.model(y, floats=True))


@pytest.mark.parametrize("codes", [True, False])
@pytest.mark.parametrize("transposed", [0, 1])
def test_qgemm_has_the_results_of_the_runtime(codes: bool, transposed: int) -> None:
    network = CodeNetwork(8)
    x = network.input("n", 24)
    shape = (7, 24) if transposed else (24, 7)
    weights = network.weights(shape, 1 - transposed, np.int8, per_channel=True)
    bias = network.constant(network.random.integers(-5000, 5000, 7).astype(np.int32))
    y = f"QGemm_{len(network.nodes)}"
    more = network.add_parameters(y) if codes else []
    network.node("QGemm", [*network.triple(x), *weights, bias, *more], RUNTIME, transB=transposed)
    model = network.model(y)
    if not codes:
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    compare(model)


def test_product_of_two_computed_factors_has_the_codes_of_the_runtime() -> None:
    network = CodeNetwork(9, np.int8)
    first, second = network.input("n", 2, 6, 8), network.input("n", 2, 8, 5)
    y = f"QLinearMatMul_{len(network.nodes)}"
    network.node(
        "QLinearMatMul",
        [*network.triple(first), *network.triple(second), *network.add_parameters(y)],
    )
    compare(network.model(y))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_data_movement_of_codes_is_part_of_the_region(dtype: Any) -> None:
    network = CodeNetwork(10, dtype)
    x = network.move("Transpose", network.input(1, 8, 8, 4), perm=[0, 3, 1, 2])
    pads = network.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    y = network.conv(x, (6, 4, 3, 3))
    y = network.move("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    y = network.move("Pad", y, pads, network.parameters[y][1])
    y = network.conv(y, (5, 6, 3, 3))
    y = network.move("Flatten", y)
    compare(network.model(y))


def test_average_pool_has_a_guarantee_that_names_its_rounding() -> None:
    network = CodeNetwork(11)
    x = network.input(1, 3, 8, 8)
    y = network.unary("QLinearAveragePool", add_product(network, x, 3), kernel_shape=[2, 2])
    layers = compare(network.model(y)).report.layers
    pool = next(layer for layer in layers if layer.layer.operator == "QLinearAveragePool")
    assert pool.guarantee is Guarantee.CERTIFIED
    assert pool.reason == "the scale of its input is not a short number"


@needs_fused_operations
def test_residual_network_is_one_region() -> None:
    network = CodeNetwork(18)
    floats = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])
    network.inputs.append(floats)
    x = network.node("QuantizeLinear", ["x", *network.add_parameters("QuantizeLinear_0")])
    x = network.conv(x, (8, 3, 3, 3), pads=[1] * 4)
    inner = network.conv(network.conv(x, (8, 8, 3, 3), pads=[1] * 4), (8, 8, 3, 3), pads=[1] * 4)
    x = network.move("MaxPool", network.binary("QLinearAdd", inner, x), kernel_shape=[2, 2])
    shortcut = network.conv(x, (12, 8, 1, 1), strides=[2, 2])
    inner = network.conv(x, (12, 8, 3, 3), strides=[2, 2], pads=[1] * 4)
    x = network.binary("QLinearAdd", network.conv(inner, (12, 12, 3, 3), pads=[1] * 4), shortcut)
    x = network.move("Flatten", network.unary("QLinearGlobalAveragePool", x))
    y = f"QGemm_{len(network.nodes)}"
    weights = network.weights((5, 12), 0, np.int8, per_channel=True)
    bias = network.constant(network.random.integers(-5000, 5000, 5).astype(np.int32))
    inputs = [*network.triple(x), *weights, bias, *network.add_parameters(y)]
    network.node("QGemm", inputs, RUNTIME, transB=1)
    model = network.model(y, floats=True)
    images = network.random.normal(size=(3, 3, 16, 16)).astype(np.float32)
    compiled = compare(model, {"x": images})
    assert set(compiled.report.guarantees) == {Guarantee.EXACT}
    assert compiled.session_model is None, "no session runs a network of one region"


def make_random_network(seed: int) -> onnx.ModelProto:
    """Return a network of random operators on codes of 8 x 8 pixels."""
    network = CodeNetwork(seed, (np.uint8, np.int8)[seed % 2])
    random, channels = network.random, int(network.random.integers(1, 6))
    x = network.input("n" if seed % 3 else 2, channels, 8, 8)
    for _ in range(int(random.integers(3, 8))):
        kind = random.choice(["conv", "add", "mul", "pool", "table", "concat", "flip"])
        if kind in ("add", "mul", "concat"):
            more = channels if kind != "concat" else int(random.integers(1, 4))
            other = network.conv(x, (more, channels, 3, 3), pads=[1] * 4)
            if kind == "concat":
                result = f"QLinearConcat_{len(network.nodes)}"
                head = network.add_parameters(result)
                inputs = [*head, *network.triple(x), *network.triple(other)]
                x, channels = (
                    network.node("QLinearConcat", inputs, RUNTIME, axis=1),
                    channels + more,
                )
            else:
                x = network.binary(f"QLinear{kind.title()}", x, other)
        elif kind == "pool":
            x = network.move("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
        elif kind == "table":
            x = network.unary("QLinearLeakyRelu", x, alpha=0.2)
        elif kind == "flip":
            x = network.move("Transpose", x, perm=[0, 1, 3, 2])
        else:
            outer = int(random.integers(1, 6))
            per_channel, groups = (
                bool(random.integers(2)),
                channels if random.integers(3) == 0 else 1,
            )
            outer = channels if groups > 1 else outer
            shape = (outer, channels // groups, 3, 3)
            x = network.conv(x, shape, np.int8, per_channel, pads=[1] * 4, group=groups)
            channels = outer
    y = network.unary("QLinearGlobalAveragePool", network.conv(x, (3, channels, 3, 3)))
    return network.model(y, floats=bool(seed % 5))


@needs_fused_operations
@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(40))
def test_random_network_has_the_codes_of_the_runtime(seed: int) -> None:
    compare(make_random_network(seed))


def multiply_integers(network: CodeNetwork, kind: str, weights: np.ndarray, **more: Any) -> str:
    """Add relu(product of codes * factor), as of a static MatMulInteger."""
    x = network.input("n", *((24,) if kind == "MatMulInteger" else (4, 8, 8)))
    inputs = [x, network.constant(weights), network.parameters[x][1]]
    sums = network.node(kind, inputs, **more)
    floats = network.node("Cast", [sums], to=TensorProto.FLOAT)
    return network.node("Mul", [floats, network.constant(np.float32(0.013))])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("kind", ["MatMulInteger", "ConvInteger"])
def test_static_integer_product_has_the_results_of_the_runtime(kind: str, dtype: Any) -> None:
    if kind == "ConvInteger" and dtype is np.int8:
        pytest.skip("ONNX Runtime has no kernel for these types")
    network = CodeNetwork(12, dtype)
    shape = (24, 9) if kind == "MatMulInteger" else (6, 4, 3, 3)
    weights = network.random.integers(REDUCED[0], REDUCED[-1] + 1, shape).astype(np.int8)
    weights = weights if dtype is np.int8 else (weights.astype(np.int32) + 128).astype(np.uint8)
    model = network.model(multiply_integers(network, kind, weights))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    if dtype is np.uint8:
        model.graph.node[0].input.append(network.constant(np.uint8(128)))
        model.graph.initializer.append(network.constants[-1])
    compare(model)


def list_reasons(model: onnx.ModelProto) -> list[str]:
    """Return the reasons of operators that stay, in a model whose results are compared."""
    compiled, feeds = anybit.compile(model), make_feeds(model, 0)
    results = compiled.run(feeds)
    arrays = list(results.values()) if isinstance(results, dict) else [results]
    for actual, expected in zip(arrays, run_plain(model, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)
    present = [node.op_type for node in compiled.model.graph]
    kept = [layer for layer in compiled.report.layers if layer.guarantee is None]
    assert all(layer.layer.integer for layer in kept)
    assert sorted(layer.layer.operator for layer in kept) == sorted(
        name for name in present if name in ("QLinearConv", "QLinearMatMul", "QGemm")
    )
    assert "Conv" not in present, "operators that stay are put back"
    return [layer.reason for layer in kept]


def test_operator_without_integer_kernel_stays_between_regions() -> None:
    network = CodeNetwork(13)
    y = network.conv(network.input(1, 4, 8, 8), (6, 4, 3, 3))
    codes = network.constant(np.full((5, 6, 3, 3), 255, np.uint8))
    more = [network.constant(network.scale()), network.constant(np.uint8(0))]
    name = f"QLinearConv_{len(network.nodes)}"
    y = network.node(
        "QLinearConv", [*network.triple(y), codes, *more, *network.add_parameters(name)]
    )
    y = network.move("MaxPool", y, kernel_shape=[2, 2])
    (reason,) = list_reasons(network.model(network.conv(y, (3, 5, 3, 3))))
    assert reason.endswith("zero-points reach 255: quantize weights symmetrically")


def test_operators_after_softmax_are_compiled() -> None:
    network = CodeNetwork(14)
    y = network.conv(network.input(1, 4, 8, 8), (6, 4, 3, 3))
    name = f"QLinearSoftmax_{len(network.nodes)}"
    inputs = [*network.triple(y), *network.add_parameters(name, 1 / 256, 0)]
    y = network.node("QLinearSoftmax", inputs, RUNTIME, axis=1, opset=13)
    compare(network.model(network.conv(y, (3, 6, 3, 3))), regions=2)


def test_file_without_regions_keeps_its_operators() -> None:
    network = CodeNetwork(26)
    x = network.input(1, 3, "height", "width")
    y = network.conv(x, (2, 3, 3, 3), pads=[1] * 4)
    result = f"QLinearConcat_{len(network.nodes)}"
    inputs = [*network.add_parameters(result), *network.triple(x), *network.triple(y)]
    y = network.unary("QLinearLeakyRelu", network.node("QLinearConcat", inputs, RUNTIME, axis=1))
    model = network.model(network.conv(y, (3, 5, 3, 3)), floats=True)
    compiled, feeds = anybit.compile(model), {x: np.arange(192, dtype=np.uint8).reshape(1, 3, 8, 8)}
    (actual,), (expected,) = compiled.run(feeds).values(), run_plain(model, feeds)
    np.testing.assert_array_equal(actual, expected)
    operators = [node.op_type for node in model.graph.node]
    assert [node.op_type for node in compiled.model.graph] == operators


def test_operators_of_unknown_sizes_stay() -> None:
    network = CodeNetwork(15)
    y = network.conv(network.input(1, 4, "height", "width"), (6, 4, 3, 3))
    y = network.move("MaxPool", y, kernel_shape=[2, 2])
    model = network.model(network.conv(y, (3, 6, 1, 1)))
    with pytest.raises(ModelError, match=r"no operator on codes .* give sizes such as --shape x0="):
        anybit.compile(model)
    compiled = anybit.compile(model, shapes={"x0": (1, 4, 9, 9)})
    assert compiled.report.share == 1


def test_sum_that_overflows_32_bits_stays() -> None:
    network = CodeNetwork(0)
    x = network.input(1, 4, 5, 5)
    operands = [*network.triple(x), *network.triple(network.conv(x, (4, 4, 1, 1)))]
    parameters = network.add_parameters("y", scale=1e-12)
    model = network.model(network.node("QLinearAdd", [*operands, *parameters], RUNTIME))
    assert list_reasons(model) == []
    assert "QLinearAdd" in {node.op_type for node in anybit.compile(model).model.graph}


@pytest.mark.parametrize(
    ("place", "parameter", "reason"),
    [
        (1, np.float32(-1), "the scale of the input -1 is not a positive number"),
        (1, np.ones(2, np.float32), "the input has 2 scales or zero-points, not one"),
        (4, np.ones(5, np.float32), "the weights have 6 output channels and 5 scales"),
        (8, np.full(6, 2**25, np.int32), "its bias reaches 33554432, beyond 2^24"),
    ],
)
def test_operator_with_unusual_parameters_is_explained(
    place: int, parameter: np.ndarray, reason: str
) -> None:
    network = CodeNetwork(16)
    y = network.conv(network.input(1, 4, 8, 8), (6, 4, 3, 3))
    network.nodes[0].input[place] = network.constant(parameter)
    with pytest.raises(ModelError, match="no operator on codes") as error:
        anybit.compile(network.model(y))
    assert reason in str(error.value)


def test_sum_with_bias_beyond_24_bits_is_not_exact() -> None:
    """float32(sum) + bias rounds twice there, and the operator once."""
    network = CodeNetwork(17)
    x = network.input(1, 2, 64, 64, zeropt=0)
    weights = np.array([[[[63]], [[63]]]] * 2, np.int8)
    codes, one = network.constant(weights), network.constant(np.float32(1e-6))
    name = "QLinearConv_0"
    parameters = network.add_parameters(name, 1e-1, 0)
    bias = network.constant(np.array([2**24 - 1, 77], np.int32))
    network.parameters[x][0] = network.constant(np.float32(1))
    inputs = [*network.triple(x), codes, one, network.constant(np.int8(0)), *parameters, bias]
    compiled = compare(network.model(network.node("QLinearConv", inputs)))
    (layer,) = compiled.report.layers
    assert layer.guarantee is not Guarantee.EXACT
    assert "exceed 2^24" in layer.reason


@needs_fused_operations
def test_saved_model_exposes_the_codes_of_operators(tmp_path: Path) -> None:
    network = CodeNetwork(19)
    x = network.conv(network.input("n", 3, 8, 8), (4, 3, 3, 3), pads=[1] * 4)
    y = network.binary("QLinearAdd", network.conv(x, (4, 4, 3, 3), pads=[1] * 4), x)
    y = network.conv(network.move("MaxPool", y, kernel_shape=[2, 2]), (5, 4, 3, 3))
    model, path = network.model(y, floats=True), tmp_path / "compiled.onnx"
    compiled, feeds = anybit.compile(model), make_feeds(model, 0)
    compiled.save(path)
    arrays = compiled.rename_codes(compiled.saved(path).run(feeds))
    inner = [node.output[0] for node in model.graph.node[:-1]]
    assert set(inner) <= compiled.codes | {inner[-1]}
    names = [name for name in inner if name in arrays]
    assert len(names) >= len(inner) - 1
    dtype = helper.np_dtype_to_tensor_dtype(network.dtype)
    model.graph.output.extend(helper.make_tensor_value_info(name, dtype, None) for name in names)
    for name, expected in zip(names, run_plain(model, feeds)[1:], strict=True):
        np.testing.assert_array_equal(arrays[name], expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("zeropt", [90, 200])
def test_weights_of_9_bits_are_compiled(groups: int, zeropt: int) -> None:
    """Weights less their zero-points: input channels with such weights are read twice."""
    network = CodeNetwork(20 + groups)
    x = network.conv(network.input("n", 3, 8, 8), (4, 3, 3, 3))
    codes = network.random.integers(70, 230, (8, 4 // groups, 3, 3)).astype(np.uint8)
    codes[:, 0, 1, 1] = (0, 250) * 4
    weights = [network.constant(codes), network.constant(network.scale(0.002, 0.01, 8))]
    weights.append(network.constant(np.full(8, zeropt, np.uint8)))
    y = f"QLinearConv_{len(network.nodes)}"
    inputs = [*network.triple(x), *weights, *network.add_parameters(y)]
    network.node("QLinearConv", inputs, group=groups)
    layer = compare(network.model(y)).report.layers[-1].layer
    assert layer.macs == 8 * (4 // groups) * 9 * 16
    assert layer.parameters == codes.size


@pytest.mark.parametrize("kind", ["QLinearMatMul", "QGemm"])
def test_matrix_of_9_bits_is_compiled(kind: str) -> None:
    network = CodeNetwork(25)
    x = network.input("n", 24)
    codes = network.constant(network.random.integers(0, 255, (24, 10)).astype(np.uint8))
    weights = [codes, network.constant(network.scale()), network.constant(np.uint8(100))]
    y = f"{kind}_{len(network.nodes)}"
    bias = [""] if kind == "QGemm" else []
    inputs = [*network.triple(x), *weights, *bias, *network.add_parameters(y)]
    network.node(kind, inputs, RUNTIME if kind == "QGemm" else "")
    layer = compare(network.model(y)).report.layers[0].layer
    assert (layer.macs, layer.parameters) == (240, 240)


def test_qgemm_with_one_bias_for_all_has_the_results_of_the_runtime() -> None:
    network = CodeNetwork(21)
    x = network.input("n", 24)
    weights = network.weights((24, 7), 1, np.int8, per_channel=True)
    bias, y = network.constant(np.int32(4321)), f"QGemm_{len(network.nodes)}"
    inputs = [*network.triple(x), *weights, bias, *network.add_parameters(y)]
    network.node("QGemm", inputs, RUNTIME)
    compare(network.model(y))


@needs_fused_operations
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
def test_missing_zero_point_has_the_type_of_the_codes(kind: str, dtype: Any) -> None:
    network = CodeNetwork(22, dtype)
    names = [add_product(network, network.input(2, 1, 8, 8)) for _ in range(2)]
    y = network.binary(kind, *names)
    del network.nodes[-1].input[7:]
    compare(network.model(y), optimize=False)


def test_resize_that_extrapolates_codes_has_those_of_the_runtime() -> None:
    network = CodeNetwork(23)
    x = network.conv(network.input(2, 3, 8, 8), (4, 3, 3, 3))
    corners = np.array([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5], np.float32)
    sizes = network.constant(np.array([2, 4, 8, 8], np.int64))
    y = network.move(
        "Resize",
        x,
        network.constant(corners),
        "",
        sizes,
        mode="nearest",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=3.0,
    )
    model = network.model(network.conv(y, (5, 4, 1, 1)))
    compiled = anybit.compile(model)
    for seed in range(3):
        feeds = make_feeds(model, seed)
        (actual,), (expected,) = compiled.run(feeds).values(), run_plain(model, feeds)
        np.testing.assert_array_equal(actual, expected)


def test_scales_with_an_infinite_quotient_have_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    network = CodeNetwork(24)
    y = network.conv(network.input(1, 3, 4, 4), (2, 3, 1, 1), per_channel=False)
    network.nodes[-1].input[4] = network.constant(np.float32(3e38))
    network.nodes[-1].input[6] = network.constant(np.float32(1e-3))
    compare(network.model(y))
    assert not recwarn.list


def test_vector_needs_two_axes() -> None:
    network = CodeNetwork(27)
    x, weights = network.input(24), network.constant(np.ones((24, 5), np.int8))
    sums = network.node("MatMulInteger", [x, weights, network.parameters[x][1]])
    model = network.model(network.node("Cast", [sums], to=TensorProto.FLOAT))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(ModelError, match=r"give it two axes, such as \[1, 24\]"):
        anybit.compile(model)


def test_bias_per_row_is_explained() -> None:
    network = CodeNetwork(28)
    x = network.input(5, 24)
    weights = network.weights((24, 7), 1, np.int8, per_channel=True)
    bias, y = network.constant(np.arange(5, dtype=np.int32)[:, None]), "QGemm_0"
    inputs = [*network.triple(x), *weights, bias, *network.add_parameters(y)]
    network.node("QGemm", inputs, RUNTIME)
    with pytest.raises(ModelError, match=r"bias is int32 of shape \[5, 1\].*of shape \[7\]"):
        anybit.compile(network.model(y))


def test_functions_without_a_product_are_explained() -> None:
    network = CodeNetwork(29)
    y = network.unary("QLinearSigmoid", network.input(1, 3, 6, 6))
    with pytest.raises(ModelError, match=r"a region has a product.*QLinearSigmoid.* is none"):
        anybit.compile(network.model(y))


def test_operators_in_branches_are_explained() -> None:
    network = CodeNetwork(30)
    name = network.conv(network.input(1, 3, 6, 6), (4, 3, 3, 3))
    branches = {}
    for key in ("then_branch", "else_branch"):
        node = onnx.NodeProto()
        node.CopyFrom(network.nodes[0])
        node.name, node.output[0] = f"conv_{key}", key
        y = helper.make_tensor_value_info(key, TensorProto.UINT8, None)
        branches[key] = helper.make_graph([node], key, [], [y])
    network.nodes = [helper.make_node("If", ["c"], ["z"], name="If_0", **branches)]
    network.inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    with pytest.raises(ModelError, match=r"is in a branch of node 'If_0' \(If\)"):
        anybit.compile(network.model("z"))
    assert name == "QLinearConv_0"
