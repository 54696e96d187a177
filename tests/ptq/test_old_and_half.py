# SPDX-License-Identifier: Apache-2.0
"""Files of old versions, with constants as nodes, and in float16, need nothing done beforehand."""

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
def test_float16(name: str) -> None:
    network, data = change_float_type(NETWORKS[name](), TensorProto.FLOAT16), data_for(name, 8)
    found = anybit.quantize(network, data)
    assert found.verdict is not None
    assert found.verdict.passed
    assert not found.skipped
    assert found.remarks[0].startswith("float16 tensors are computed in float32")
    for value in (*found.model.graph.inputs, *found.model.graph.outputs):
        assert value.dtype is not None
        assert value.dtype.name == "FLOAT16"
    (_, second) = anybit.evaluate(network, found, data=data).models
    assert second.sqnr is not None
    assert second.sqnr > 25


def test_quantize_refuses_float64_models_with_the_remedy() -> None:
    doubled = change_float_type(NETWORKS["convolutions"](), TensorProto.DOUBLE)
    said = r"first computes in float64, and no layer in float32; convert the model to float32 first"
    with pytest.raises(anybit.ModelError, match=said):
        anybit.quantize(doubled, data_for("convolutions", 8))


def test_quantize_takes_float64_inputs_of_float32_layers() -> None:
    nodes = [
        node("Cast", "x", "single", domain="", name="single", to=TensorProto.FLOAT),
        node("MatMul", "single w", domain="", name="product"),
    ]
    proto = model(nodes, {"w": random(4, 3)}, inputs={"x": ["n", 4]})
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    found = anybit.quantize(proto, random(40, 4, seed=1).astype(np.float64))
    assert [layer.name for layer in found.layers] == ["product"]
    assert not found.skipped


def test_what_else_is_computed_in_float64_stays() -> None:
    nodes = [
        node("MatMul", "x w", "p", domain="", name="first"),
        node("Cast", "p", "d", domain="", name="wide", to=TensorProto.DOUBLE),
        node("MatMul", "d v", "q", domain="", name="second"),
        node("Cast", "q", "y", domain="", name="narrow", to=TensorProto.FLOAT),
    ]
    constants = {"w": random(4, 3), "v": random(3, 2).astype(np.float64)}
    proto = model(nodes, constants, inputs={"x": ["n", 4]})
    found = anybit.quantize(proto, random(40, 4, seed=1))
    assert found.skipped == {"second": "it computes in DOUBLE"}
    assert not [each for each in found.remarks if "float64" in each]


def as_nodes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same with all constants as nodes."""
    constants = [
        helper.make_node("Constant", [], [each.name], value=each, name=f"constant_{each.name}")
        for each in proto.graph.initializer
    ]
    nodes = [*constants, *proto.graph.node]
    del proto.graph.node[:], proto.graph.initializer[:]
    proto.graph.node.extend(nodes)
    return proto


def test_constants_as_nodes() -> None:
    data = data_for("convolutions", 8)
    found = anybit.quantize(as_nodes(NETWORKS["convolutions"]()), data)
    same = anybit.quantize(NETWORKS["convolutions"](), data)
    assert found.verdict == same.verdict
    assert found.layers == same.layers


@pytest.mark.parametrize("rows", ["n", -1, 1])
def test_opset_7(rows: int | str) -> None:
    """With constants among the inputs, as files of its time have them, and sizes of -1."""
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
    for each in proto.graph.initializer:
        proto.graph.input.append(
            helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        )
    found = anybit.quantize(proto, random(12, 3, 8, 8))
    assert found.verdict is not None
    assert found.verdict.passed
    assert [each.name for each in found.layers] == ["conv", "head"]
    assert found.verdict.samples == 3
