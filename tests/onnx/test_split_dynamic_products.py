# SPDX-License-Identifier: Apache-2.0
"""Products that ONNX Runtime fuses with a computed scale become standard nodes of the same bits."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anybit

RUNTIME = "com.microsoft"
FORMS = ["qonnx", "standard", "portable"]


def make_model(
    operator: str, *, per_channel: bool, zero: bool, bias: bool, dtype: type = np.int8
) -> onnx.ModelProto:
    """Return x -> DynamicQuantizeMatMul, or DynamicQuantizeLinear and MatMulIntegerToFloat -> y."""
    random, limits = np.random.default_rng(0), np.iinfo(dtype)
    size = 5 if per_channel else ()
    constants = {
        "w": random.integers(limits.min, limits.max + 1, (24, 5)).astype(dtype),
        "ws": random.uniform(0.01, 0.1, size).astype(np.float32),
    }
    if zero:
        constants["wz"] = random.integers(limits.min, limits.max + 1, size).astype(dtype)
    if bias:
        constants["b"] = random.standard_normal(5, dtype=np.float32)
    weights = ["wz" if zero else "", "b" if bias else ""]
    nodes = []
    inputs = ["x", "w", "ws", *weights]
    if operator == "MatMulIntegerToFloat":
        nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
        inputs = ["q", "w", "s", "ws", "z", *weights]
    nodes.append(helper.make_node(operator, inputs, ["y"], "product", domain=RUNTIME))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(RUNTIME, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.sample(6)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_split_dynamic_products_keeps_every_bit(
    operator: str, per_channel: bool, zero: bool, bias: bool, form: str
) -> None:
    proto = make_model(operator, per_channel=per_channel, zero=zero, bias=bias)
    converted = anybit.convert(proto, to=form)
    assert converted.exact
    assert (converted.steps[0].node, converted.steps[0].action) == ("product", "MatMulInteger")
    assert {node.domain for node in converted.model.graph} == {""}
    random = np.random.default_rng(1)
    for scale in (1e-30, 1.0, 1e4):
        x = (random.standard_normal((7, 24)) * scale).astype(np.float32)
        expected, actual = (anybit.load(net).run(x)["y"] for net in (proto, converted.model))
        assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", ["compact", "qdq", "matmulnbits"])
def test_split_dynamic_products_stay_in_forms_of_onnx_runtime(form: str) -> None:
    proto = make_model("DynamicQuantizeMatMul", per_channel=False, zero=False, bias=False)
    operators = [node.op_type for node in anybit.convert(proto, to=form).model.graph]
    assert operators == ["DynamicQuantizeMatMul"]


def test_split_dynamic_products_of_computed_weights_stay() -> None:
    proto = make_model("DynamicQuantizeMatMul", per_channel=False, zero=False, bias=False)
    weight = helper.make_tensor_value_info("w", TensorProto.INT8, [24, 5])
    proto.graph.input.append(weight)
    del proto.graph.initializer[0]
    converted = anybit.convert(proto, to="standard")
    assert [node.op_type for node in converted.model.graph] == ["DynamicQuantizeMatMul"]
