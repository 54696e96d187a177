# SPDX-License-Identifier: Apache-2.0
"""Files of old versions, with constants as nodes, and in float16, need nothing done beforehand."""

import re

import numpy as np
import onnx
import pytest
from float_models import NETWORKS, data_for
from onnx import TensorProto, helper
from passes import random
from retyping import retyped
from small_models import model, node

import anybit

ROWS = {"x": ["n", 4]}


def doubled(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same in float64."""
    return retyped(proto, TensorProto.DOUBLE)


@pytest.mark.parametrize("name", NETWORKS)
def test_float16(name: str) -> None:
    network, data = retyped(NETWORKS[name](), TensorProto.FLOAT16), data_for(name, 8)
    found = anybit.quantize(network, data)
    assert found.verdict is not None
    assert found.verdict.passed
    assert not found.left
    assert found.remarks[0].startswith("What was float16")
    for value in (*found.model.graph.inputs, *found.model.graph.outputs):
        assert value.dtype is not None
        assert value.dtype.name == "FLOAT16"
    (_, second) = anybit.evaluate(network, found, data=data).models
    assert second.sqnr is not None
    assert second.sqnr > 25


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_float64(name: str) -> None:
    network = NETWORKS[name]()
    found = anybit.quantize(doubled(NETWORKS[name]()), data_for(name, 8))
    assert found.verdict is not None
    assert found.verdict.passed
    assert not found.left
    assert found.remarks[0].startswith("What was float64")
    for value in (*found.model.graph.inputs, *found.model.graph.outputs):
        assert value.dtype is not None
        assert value.dtype.name == "DOUBLE"
    plain = anybit.quantize(network, data_for(name, 8))
    assert [each.sqnr for each in found.layers] == [each.sqnr for each in plain.layers]


def sized_in_float64() -> onnx.ModelProto:
    """A product with as many columns as 0.29 of those of x: 28 of 100, and 29 in float32."""
    nodes = [
        node("MatMul", "x w", "p", domain="", name="product"),
        node("Shape", "x", "s", domain="", name="shape"),
        node("Cast", "s", "d", domain="", name="wide", to=TensorProto.DOUBLE),
        node("Mul", "d share", "m", domain="", name="some"),
        node("Floor", "m", "f", domain="", name="whole"),
        node("Cast", "f", "to", domain="", name="sizes", to=TensorProto.INT64),
        node("Mul", "p share", "scaled", domain="", name="scaled"),
        node("ReduceSum", "scaled axis", "sum", domain="", name="sum"),
        node("Expand", "sum to", domain="", name="wider"),
    ]
    constants = {"w": random(100, 2), "share": np.float64([1, 0.29]), "axis": np.int64([1])}
    return doubled(model(nodes, constants, inputs={"x": ["n", 100]}))


def test_sizes_are_computed_in_float64() -> None:
    proto, data = sized_in_float64(), random(40, 100, seed=1)
    found = anybit.quantize(proto, data)
    assert [each.name for each in found.layers] == ["product"]
    wanted = anybit.load(proto).run(data[:3].astype(np.float64))["y"]
    given = anybit.load(found.model).run(data[:3].astype(np.float64))["y"]
    assert given.shape == wanted.shape == (3, 28)
    assert given.dtype == np.float64
    np.testing.assert_allclose(given, wanted, atol=0.5)


def test_how_many_there_are_is_computed_in_float64() -> None:
    """3 * 0.1 / 0.1 is more than 3, and not in float32."""
    nodes = [
        node("MatMul", "x w", "p", domain="", name="product"),
        node("Range", "zero end step", "r", domain="", name="steps"),
        node("Mul", "p r", domain="", name="each"),
    ]
    ends = {"zero": 0.0, "end": 3 * 0.1, "step": 0.1}
    constants = {name: np.float64(each) for name, each in ends.items()} | {"w": random(4, 1)}
    constants = {name: np.asarray(each) for name, each in constants.items()}
    proto = doubled(model(nodes, constants, inputs={"x": ["n", 4]}))
    found = anybit.quantize(proto, random(40, 4, seed=1))
    rows = random(2, 4, seed=2).astype(np.float64)
    shapes = [anybit.load(each).run(rows)["y"].shape for each in (proto, found.model)]
    assert shapes == [(2, 4)] * 2


@pytest.mark.parametrize(
    ("kind", "to", "stays"),
    [("indices", "t", True), ("indices", "y", False), ("values", "y", False)],
)
def test_what_decides_behind_layers_leaves_them_in_float64(kind: str, to: str, stays: bool) -> None:
    """An index that only is a result decides nothing."""
    nodes = [node("MatMul", "x w", "p", domain="", name="product")]
    if kind == "indices":
        nodes.append(node("ArgMax", "p", to, domain="", name="largest", axis=1))
        nodes += [node("Gather", "table t", domain="", name="row")] if to == "t" else []
    else:
        nodes.append(node("TopK", "p one", "y i", domain="", name="largest", axis=1))
    constants = {"w": random(4, 3), "table": random(3, 2), "one": np.int64([1])}
    proto = doubled(model(nodes, constants, inputs={"x": ["n", 4]}))
    if (kind, to) == ("indices", "y"):
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    if stays:
        with pytest.raises(anybit.ModelError, match="product: it computes in DOUBLE"):
            anybit.quantize(proto, random(40, 4, seed=1))
    else:
        found = anybit.quantize(proto, random(40, 4, seed=1))
        assert [each.name for each in found.layers] == ["product"]


def test_decisions_about_inputs_are_made_in_float64() -> None:
    """A mask by the input, which is a little more than float32 knows it to be."""
    nodes = [
        node("Greater", "x limit", "c", domain="", name="is_large"),
        node("Where", "c x zero", "k", domain="", name="large"),
        node("MatMul", "k w", domain="", name="product"),
    ]
    constants = {"w": np.ones((4, 3), np.float32), "limit": np.ones(1), "zero": np.zeros(1)}
    proto = doubled(model(nodes, constants, inputs={"x": ["n", 4]}))
    found = anybit.quantize(proto, random(40, 4, seed=1) + 1)
    rows = np.full((1, 4), 1 + 1e-12)
    (given,) = anybit.load(found.model).run(rows)["y"]
    np.testing.assert_allclose(given, 4, atol=0.2)


@pytest.mark.parametrize("inside", ["Cast", "Identity"])
def test_branches_that_decide_stay_in_float64(inside: str) -> None:
    options = {"to": TensorProto.INT64} if inside == "Cast" else {}
    kind = TensorProto.INT64 if inside == "Cast" else TensorProto.DOUBLE
    graphs = {
        f"{each}_branch": helper.make_graph(
            [node(inside, "p", f"y_{each}", domain="", name=f"in_{each}", **options)],
            each,
            [],
            [helper.make_tensor_value_info(f"y_{each}", kind, None)],
        )
        for each in ("then", "else")
    }
    nodes = [
        node("MatMul", "x w", "p", domain="", name="product"),
        node("If", "c", "i", domain="", name="choice", **graphs),
        node("Cast", "i", domain="", name="last", to=TensorProto.DOUBLE),
    ]
    proto = model(nodes, {"w": random(4, 3)}, inputs={"x": ["n", 4], "c": []})
    proto = doubled(proto)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    data = [{"x": each[None], "c": np.bool_(True)} for each in random(40, 4, seed=1)]
    if inside == "Cast":
        with pytest.raises(anybit.ModelError, match="product: it computes in DOUBLE"):
            anybit.quantize(proto, data)
    else:
        assert anybit.quantize(proto, data).layers


@pytest.mark.parametrize("value", [1e39, -1e300])
def test_data_beyond_float32_are_refused(value: float) -> None:
    proto = doubled(model([node("MatMul", "x w", domain="")], {"w": random(4, 3)}, inputs=ROWS))
    data = random(40, 4).astype(np.float64)
    data[37, 3] = value
    said = rf"^sample 0: input 'x' holds {re.escape(str(value))} at \[37, 3\], beyond float32"
    with pytest.raises(anybit.DataError, match=said):
        anybit.quantize(proto, data)
    data[37, 3] = 10
    assert anybit.quantize(proto, data).layers


def test_what_only_decides_may_be_beyond_float32() -> None:
    nodes = [
        node("MatMul", "x w", "p", domain="", name="product"),
        node("Greater", "z limit", "c", domain="", name="is_large"),
        node("Where", "c p zero", domain="", name="choice"),
    ]
    constants = {"w": random(4, 3), "limit": np.ones(1), "zero": np.zeros(1)}
    proto = doubled(model(nodes, constants, inputs={**ROWS, "z": ["n", 1]}))
    z = np.full((40, 1), 1e300)
    assert anybit.quantize(proto, {"x": random(40, 4), "z": z}).layers


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
    assert found.left == {"second": "it computes in DOUBLE"}
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
