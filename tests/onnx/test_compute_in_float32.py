# SPDX-License-Identifier: Apache-2.0
"""Models in float16 become models in float32 with the same inputs and outputs."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from pass_checks import random
from small_models import model, node

import anybit
from anybit.onnx import read
from anybit.onnx.passes import ComputeInFloat32

W = random(4, 3).astype(np.float16)
ROWS = random(5, 4, seed=1).astype(np.float16)


def typed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs and outputs in float16."""
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return proto


def product() -> onnx.ModelProto:
    nodes = [
        node("Cast", "x", "narrow", domain="", name="narrow", to=TensorProto.FLOAT16),
        node("MatMul", "narrow w", "p", domain="", name="product"),
        node("Shape", "p", "s", domain="", name="shape"),
        node(
            "ConstantOfShape",
            "s",
            "half",
            domain="",
            name="halves",
            value=numpy_helper.from_array(np.float16([0.5])),
        ),
        node("Add", "p half", domain="", name="sum"),
    ]
    return typed(model(nodes, {"w": W}, inputs={"x": ["n", 4]}))


def branches() -> onnx.ModelProto:
    """Use a constant and an outer value inside of If; the input is an output, too."""
    names = ("then", "else")
    graphs = {}
    for branch, factor in zip(names, (1, 2), strict=True):
        nodes = [
            node("MatMul", "x w", f"p_{branch}", domain="", name=f"product_{branch}"),
            node(
                "Mul", f"p_{branch} f_{branch}", f"y_{branch}", domain="", name=f"scaled_{branch}"
            ),
        ]
        graphs[f"{branch}_branch"] = helper.make_graph(
            nodes,
            branch,
            [],
            [helper.make_tensor_value_info(f"y_{branch}", TensorProto.FLOAT16, None)],
            [numpy_helper.from_array(np.array(factor, np.float16), f"f_{branch}")],
        )
    nodes = [
        node("ReduceMax", "x", "m", domain="", name="largest", keepdims=0),
        node("Greater", "m zero", "c", domain="", name="is_positive"),
        node("If", "c", "y", domain="", name="choice", **graphs),
    ]
    constants = {"w": W, "zero": np.zeros((), np.float16)}
    return typed(model(nodes, constants, inputs={"x": ["n", 4]}, outputs=["y", "x"]))


@pytest.mark.parametrize("network", [product, branches])
def test_compute_in_float32_values_are_nearly_the_same(network) -> None:
    proto = network()
    actual = read(proto)
    expected = anybit.load(proto).run(ROWS)
    assert ComputeInFloat32()(actual).modified
    outputs = anybit.load(actual).run(ROWS)
    assert list(outputs) == list(expected)
    for name, array in expected.items():
        assert outputs[name].dtype == np.float16
        np.testing.assert_allclose(outputs[name], array, rtol=2e-3, atol=2e-3)
    casts = [node for node in actual.graph if node.op_type == "Cast"]
    assert len([cast for cast in casts if cast.outputs[0].dtype == ir.DataType.FLOAT16]) == 1


def test_compute_in_float32_constants_that_are_results_keep_their_name_and_type() -> None:
    nodes = [node("MatMul", "x w", domain="")]
    actual = read(typed(model(nodes, {"w": W}, inputs={"x": ["n", 4]}, outputs=["y", "w"])))
    ComputeInFloat32()(actual)
    np.testing.assert_array_equal(anybit.load(actual).run(ROWS)["w"], W, strict=True)


def test_compute_in_float32_floats_stay_as_they_are() -> None:
    proto = model([node("MatMul", "x w", domain="")], {"w": random(4, 3)}, inputs={"x": ["n", 4]})
    actual = read(proto)
    assert not ComputeInFloat32()(actual).modified
    assert ir.to_proto(actual) == ir.to_proto(read(proto))
