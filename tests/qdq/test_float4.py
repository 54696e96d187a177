# SPDX-License-Identifier: Apache-2.0
"""Weights of FLOAT4E2M1, a type without CPU kernels in ONNX Runtime."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anybit

SHAPE = (64, 8)
KINDS = ("tensor", "axis", "blocks", "two levels", "powers of two")
BLOCK = 16


def parts(kind: str) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto], dict[str, int], Any]:
    """Tensors of the scale, the nodes that compute it, the attributes, and the scale itself."""
    rng = np.random.default_rng(len(kind))
    blocks = {"axis": 0, "block_size": BLOCK}
    shape = (SHAPE[0] // BLOCK, SHAPE[1])
    if kind == "tensor":
        return [numpy_helper.from_array(np.float32(0.5), "s")], [], {}, np.float32(0.5)
    if kind == "axis":
        scale = np.float32(2.0 ** rng.integers(-3, 3, SHAPE[1]))
        return [numpy_helper.from_array(scale, "s")], [], {"axis": 1}, scale
    if kind == "blocks":
        scale = np.float32(rng.uniform(0.5, 1, shape))
        return [numpy_helper.from_array(scale, "s")], [], blocks, np.repeat(scale, BLOCK, 0)
    if kind == "two levels":
        codes = rng.uniform(1, 448, shape).astype(ml_dtypes.float8_e4m3fn)
        whole = np.float32(0.003)
        tensors = [numpy_helper.from_array(codes, "c"), numpy_helper.from_array(whole, "t")]
        node = helper.make_node("DequantizeLinear", ["c", "t"], ["s"])
        return tensors, [node], blocks, np.repeat(codes.astype(np.float32) * whole, BLOCK, 0)
    codes = np.float32(2.0 ** rng.integers(-9, 3, shape)).astype(ml_dtypes.float8_e8m0fnu)
    attributes = {**blocks, "output_dtype": TensorProto.FLOAT}
    scale = np.repeat(codes.astype(np.float32), BLOCK, 0)
    return [numpy_helper.from_array(codes, "s")], [], attributes, scale


def network(kind: str) -> tuple[onnx.ModelProto, np.ndarray[Any, Any]]:
    """Build a product of int8 activations and float4 weights; return the weights, too."""
    tensors, nodes, attributes, scale = parts(kind)
    rng = np.random.default_rng(1)
    codes = rng.permutation(np.resize(np.arange(16, dtype=np.uint8), SHAPE).ravel()).reshape(SHAPE)
    weights = codes.view(ml_dtypes.float4_e2m1fn)
    tensors += [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.float32(0.25), "xs"),
        numpy_helper.from_array(np.int8(3), "xz"),
    ]
    nodes += [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], **attributes),
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("MatMul", ["xd", "d"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["n", SHAPE[0]])],
        [value("y", TensorProto.FLOAT, ["n", SHAPE[1]])],
        tensors,
    )
    opset, ir_version = (25, 12) if kind == "powers of two" else (23, 11)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    return model, weights.astype(np.float32) * scale


@pytest.mark.parametrize("kind", KINDS)
def test_load_computes_float4_weights(kind: str) -> None:
    proto, weights = network(kind)
    x = np.float32(np.eye(SHAPE[0])) * 0.25  # one code above the zero-point each
    y = anybit.load(proto).run(x)["y"]
    np.testing.assert_array_equal(y, np.float32(0.25) * weights)


@pytest.mark.parametrize("kind", ["tensor", "axis"])
def test_compile_takes_float4_weights_with_a_scale_per_channel(kind: str) -> None:
    proto, weights = network(kind)
    compiled = anybit.compile(proto)
    assert "1 of 1 layer" in str(compiled.report)
    x = np.random.default_rng(4).normal(0, 20, (50, SHAPE[0])).astype(np.float32)
    codes = np.clip(np.rint(x / 0.25) + 3, -128, 127) - 3
    exact = (codes * 0.25) @ weights.astype(np.float64)
    np.testing.assert_array_equal(compiled.run(x)["y"], np.float32(exact))


@pytest.mark.parametrize("kind", KINDS[2:])
def test_compile_names_the_reason_for_float4_blocks(kind: str) -> None:
    compiled = anybit.compile(network(kind)[0])
    (layer,) = compiled.report.layers
    assert "one scale per channel" in layer.reason


@pytest.mark.parametrize("kind", KINDS)
def test_info_shows_float4_weights(kind: str) -> None:
    weights = [
        quantizer
        for quantizer in anybit.inspect(network(kind)[0], layers=False).summary.quantizers
        if quantizer.tensor == "w"
    ]
    assert [(weight.type, weight.bits, weight.constant) for weight in weights] == [
        ("float4_e2m1fn", "4", True)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["qonnx", "qdq", "standard", "portable"])
def test_convert_of_float4_weights_keeps_values(kind: str, to: str) -> None:
    proto, _ = network(kind)
    x = np.random.default_rng(4).normal(0, 20, (5, SHAPE[0])).astype(np.float32)
    converted = anybit.convert(proto, to=to)
    expected = anybit.load(proto).run(x)["y"]
    np.testing.assert_array_equal(anybit.load(converted).run(x)["y"], expected)
    lifted = to == "qonnx" and kind in ("tensor", "axis")
    stored = to == "qdq" or (to == "qonnx" and not lifted)
    assert any("float4_e2m1fn" in remark for remark in converted.remarks) == stored
    if lifted:
        assert "FloatQuant" in {node.op_type for node in converted.model.graph}


def test_info_of_a_float4_zero_point() -> None:
    proto, _ = network("tensor")
    proto.graph.initializer.append(helper.make_tensor("wz", TensorProto.FLOAT4E2M1, (), [0]))
    proto.graph.node[0].input.append("wz")
    weights = [
        quantizer
        for quantizer in anybit.inspect(proto, layers=False).summary.quantizers
        if quantizer.tensor == "w"
    ]
    assert [weight.zero_point is not None for weight in weights] == [True]
    assert weights[0].codes == "float4_e2m1fn to 6"
