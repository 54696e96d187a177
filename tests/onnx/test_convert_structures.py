# SPDX-License-Identifier: Apache-2.0
"""Quantizers in branches, loops and local functions, and beside operators of others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from form_sessions import LEVELS, sessions
from forms import FORMS, Form
from onnx import TensorProto, helper, numpy_helper
from small_models import DOMAIN, model, node

import anybit
from anybit import formats
from anybit.onnx.conversion import convert

X = np.float32([[0.3, -0.8, 1.2, 5]])
PARAMETERS = {"s": 0.25, "z": 0, "b": 4}


def value(name: str, kind: int = TensorProto.FLOAT, shape: Any = (1, 4)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def scalar(name: str, number: float) -> onnx.TensorProto:
    return numpy_helper.from_array(np.float32(number), name)


def branches() -> onnx.ModelProto:
    """Round differently in each branch; one scale comes from outside."""
    then = [node("Quant", "x s z b", "then", name="then_node")]
    otherwise = [node("Quant", "x own z b", "else", name="else_node", rounding_mode="FLOOR")]
    nodes = [
        node("ReduceSum", "x", "sum", domain="", keepdims=0),
        node("Greater", "sum z", "condition", domain=""),
        helper.make_node(
            "If",
            ["condition"],
            ["y"],
            then_branch=helper.make_graph(then, "then_branch", [], [value("then")]),
            else_branch=helper.make_graph(
                otherwise, "else_branch", [], [value("else")], [scalar("own", 0.1)]
            ),
        ),
    ]
    return model(nodes, PARAMETERS)


def loop() -> onnx.ModelProto:
    """Three times: quantize the state, multiply it by quantized weights."""
    nodes = [
        node("Quant", "state s z b", "state_q", name="state_node"),
        node("Quant", "w s z b", "w_q", name="weight_node"),
        node("MatMul", "state_q w_q", "next", domain=""),
        node("Identity", "go", "go_on", domain=""),
    ]
    flag, count = TensorProto.BOOL, TensorProto.INT64
    body = helper.make_graph(
        nodes,
        "body",
        [value("i", count, []), value("go", flag, []), value("state")],
        [value("go_on", flag, []), value("next")],
    )
    constants = {"n": np.array(3), "true": np.array(True), "w": np.float32(0.9 * np.eye(4))}
    outer = [helper.make_node("Loop", ["n", "true", "x"], ["y"], body=body)]
    return model(outer, {**PARAMETERS, **constants})


def functions() -> onnx.ModelProto:
    """Two calls of a function that quantizes an activation and a weight."""
    nodes = [
        *(
            helper.make_node("Constant", [], [f"own_{name}"], value=scalar("", number))
            for name, number in PARAMETERS.items()
        ),
        node("Quant", "a own_s own_z own_b", "a_q", name="activation"),
        node("Quant", "w own_s own_z own_b", "w_q", name="weight"),
        node("MatMul", "a_q w_q", "result", domain=""),
    ]
    opsets = {"": 13, DOMAIN: 1}
    imports = [helper.make_opsetid(*opset) for opset in opsets.items()]
    calls = [
        node("Block", "x w1", "h", domain="local", name="1"),
        node("Block", "h w2", domain="local", name="2"),
    ]
    weights = {"w1": np.float32(np.eye(4)), "w2": np.full((4, 4), 0.3, np.float32)}
    proto = model(calls, weights, opsets={DOMAIN: 1, "local": 1})
    proto.functions.append(
        helper.make_function("local", "Block", ["a", "w"], ["result"], nodes, imports)
    )
    return proto


def foreign() -> onnx.ModelProto:
    """Put a runtime operator between two quantizers; its output is declared."""
    nodes = [
        node("Quant", "x s z b", "q", name="before"),
        node("Gelu", "q", "g", domain="com.microsoft"),
        node("Quant", "g s z b", name="after"),
    ]
    proto = model(nodes, PARAMETERS, opsets={DOMAIN: 1, "com.microsoft": 1})
    proto.graph.value_info.append(value("g"))
    return proto


def behind_relu() -> onnx.ModelProto:
    """ONNX Runtime's optimizer drops a Relu right before QuantizeLinear, for some types wrongly."""
    nodes = [
        node("Relu", "x", "r1", domain="", name=""),
        node("Quant", "r1 s z b", "q1", name="int4"),
        node("Sub", "q1 one", "t1", domain="", name=""),
        node("Relu", "t1", "r2", domain="", name=""),
        node("Identity", "r2", "i2", domain="", name=""),
        node("FloatQuant", "i2 s e m bias most", "q2", name="float8"),
        node("Sub", "q2 one", "t2", domain="", name=""),
        node("Relu", "t2", "r3", domain="", name=""),
        node("Quant", "r3 s z two", name="int2"),
    ]
    e, m, bias, most = formats.float8_e4m3fn
    constants = {"one": 1, "two": 2, "e": e, "m": m, "bias": bias, "most": most}
    return model(nodes, PARAMETERS | constants)


MODELS = (branches, loop, functions, foreign, behind_relu)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", MODELS)
def test_convert_numbers(make: Callable[[], onnx.ModelProto], form: Form) -> None:
    proto = make()
    network = anybit.load(proto)
    converted = convert(proto, to=form)
    assert converted.exact
    file = anybit.onnx.serialize(converted.model)[0]
    for level in LEVELS:
        for _, session in sessions(form, file, level):
            for x in (X, -X):
                (y,) = session.run(None, {"x": x})
                np.testing.assert_array_equal(y, network.run(x)["y"])


@pytest.mark.parametrize("form", [Form.STANDARD, Form.QDQ, Form.QCDQ])
@pytest.mark.parametrize("make", MODELS)
def test_convert_no_quantizer_is_left(make: Callable[[], onnx.ModelProto], form: Form) -> None:
    model_ = convert(make(), to=form).model
    domains = {item.domain for item in model_.graph.all_nodes()}
    assert domains <= {"", "com.microsoft"}
    assert not model_.functions
    assert set(model_.graph.opset_imports) == domains | {""}


def test_convert_every_quantizer_inside_is_reported() -> None:
    expected = {
        branches: {"then_node", "else_node"},
        loop: {"state_node", "weight_node"},
        foreign: {"before", "after", "the_Gelu"},
    }
    for make, names in expected.items():
        assert {step.node for step in convert(make(), to="qdq").steps} == names
    assert len(convert(functions(), to="qdq").steps) == 4
