# SPDX-License-Identifier: Apache-2.0
"""Models of old opsets, with Constant nodes, in float16 or with float64 layers."""

import numpy as np
import onnx
import pytest
from float_models import NETWORKS, data_for
from float_types import change_float_type
from onnx import TensorProto, helper
from pass_checks import random
from small_models import model, node

import anybit


@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_handles_float16_models(name: str) -> None:
    network, data = change_float_type(NETWORKS[name](), TensorProto.FLOAT16), data_for(name, 8)
    result = anybit.quantize(network, data)
    assert result.verdict is not None
    assert result.verdict.passed
    assert not result.skipped
    assert result.remarks[0].startswith("float16 tensors are computed in float32")
    for value in (*result.model.graph.inputs, *result.model.graph.outputs):
        assert value.dtype is not None
        assert value.dtype.name == "FLOAT16"
    (_, second) = anybit.evaluate(network, result, data=data).models
    assert second.sqnr is not None
    assert second.sqnr > 25


def test_quantize_refuses_float64_models_with_the_remedy() -> None:
    doubled = change_float_type(NETWORKS["convolutions"](), TensorProto.DOUBLE)
    message = (
        r"first computes in float64, and no layer in float32; convert the model to float32 first"
    )
    with pytest.raises(anybit.ModelError, match=message):
        anybit.quantize(doubled, data_for("convolutions", 8))


def test_quantize_takes_float64_inputs_of_float32_layers() -> None:
    nodes = [
        node("Cast", "x", "single", domain="", name="single", to=TensorProto.FLOAT),
        node("MatMul", "single w", domain="", name="product"),
    ]
    proto = model(nodes, {"w": random(4, 3)}, inputs={"x": ["n", 4]})
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    result = anybit.quantize(proto, random(40, 4, seed=1).astype(np.float64))
    assert [layer.name for layer in result.layers] == ["product"]
    assert not result.skipped


def test_quantize_skips_float64_layers() -> None:
    nodes = [
        node("MatMul", "x w", "p", domain="", name="first"),
        node("Cast", "p", "d", domain="", name="wide", to=TensorProto.DOUBLE),
        node("MatMul", "d v", "q", domain="", name="second"),
        node("Cast", "q", "y", domain="", name="narrow", to=TensorProto.FLOAT),
    ]
    constants = {"w": random(4, 3), "v": random(3, 2).astype(np.float64)}
    proto = model(nodes, constants, inputs={"x": ["n", 4]})
    result = anybit.quantize(proto, random(40, 4, seed=1))
    assert result.skipped == {"second": "it computes in DOUBLE"}
    assert not [remark for remark in result.remarks if "float64" in remark]


def convert_constants_to_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the initializers of a model by Constant nodes."""
    constants = [
        helper.make_node(
            "Constant", [], [constant.name], value=constant, name=f"constant_{constant.name}"
        )
        for constant in proto.graph.initializer
    ]
    nodes = [*constants, *proto.graph.node]
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(nodes)
    return proto


def test_quantize_handles_constant_nodes() -> None:
    data = data_for("convolutions", 8)
    result = anybit.quantize(convert_constants_to_nodes(NETWORKS["convolutions"]()), data)
    same = anybit.quantize(NETWORKS["convolutions"](), data)
    assert result.verdict == same.verdict
    assert result.layers == same.layers


@pytest.mark.parametrize("rows", ["n", -1, 1])
def test_quantize_handles_opset_7(rows: int | str) -> None:
    """Quantize a model of that time: initializers are inputs, and sizes may be -1."""
    constants = {
        "w": random(6, 3, 3, 3, seed=1) / 4,
        **{name: np.abs(random(6, seed=at)) for at, name in enumerate("sbmv", 2)},
        "to": np.array([1 if rows == 1 else -1, 54]),
        "g": random(54, 5, seed=7) / 4,
        "c": random(5, seed=8),
        "slope": random(6, 1, 1, seed=9),
    }
    nodes = [
        node("Conv", "x w", "a", domain="", name="conv"),
        node("BatchNormalization", "a s b m v", "n", domain="", name="norm"),
        node("PRelu", "n slope", "p", domain="", name="act"),
        node("Dropout", "p", "d", domain="", name="drop"),
        node("MaxPool", "d", "q", domain="", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", "q to", "f", domain="", name="flat"),
        node("Gemm", "f g c", "l", domain="", name="head"),
        node("Softmax", "l", "y", domain="", name="softmax", axis=1),
    ]
    shapes = {"x": [rows, 3, 8, 8]}
    proto = model(nodes, constants, inputs=shapes, opsets={"": 7}, ir_version=3)
    for constant in proto.graph.initializer:
        proto.graph.input.append(
            helper.make_tensor_value_info(constant.name, constant.data_type, constant.dims)
        )
    result = anybit.quantize(proto, random(12, 3, 8, 8))
    assert result.verdict is not None
    assert result.verdict.passed
    assert [layer.name for layer in result.layers] == ["conv", "head"]
    assert result.verdict.samples == 3
