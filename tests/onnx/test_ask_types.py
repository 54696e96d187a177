# SPDX-License-Identifier: Apache-2.0
"""Types behind operators of other domains come from the runtime, if that knows them."""

import numpy as np
import onnx_ir as ir
from pass_checks import random
from small_models import model, node

import anybit
from anybit.onnx import read
from anybit.onnx.passes import AskTypes, InferShapes

OPSETS = {"": 17, "com.microsoft": 1, "nobody": 1}


def network_after(kind: str, domain: str) -> ir.Model:
    nodes = [
        node(kind, "x", "a", domain=domain, name="foreign"),
        node("MatMul", "a w", "p", domain="", name="product"),
        node("Relu", "p", domain="", name="relu"),
    ]
    proto = model(nodes, {"w": random(4, 3)}, inputs={"x": ["n", 4]}, opsets=OPSETS)
    actual = read(proto)
    InferShapes()(actual)
    return actual


def test_ask_types_types_operators_of_the_runtime() -> None:
    actual = network_after("QuickGelu", "com.microsoft")
    assert actual.graph[1].outputs[0].dtype is None
    assert AskTypes()(actual).modified
    assert {item.outputs[0].dtype for item in actual.graph} == {ir.DataType.FLOAT}
    assert not AskTypes()(actual).modified


def test_ask_types_leaves_unknown_operators() -> None:
    actual = network_after("Mystery", "nobody")
    assert not AskTypes()(actual).modified
    assert actual.graph[0].outputs[0].dtype is None


def test_ask_types_layers_after_foreign_operators_are_quantized() -> None:
    actual = anybit.quantize(network_after("QuickGelu", "com.microsoft"), random(16, 4))
    assert [layer.name for layer in actual.layers] == ["product"]
    assert actual.verdict is not None
    assert actual.verdict.passed
    foreign = next(iter(actual.model.graph))
    assert (foreign.op_type, foreign.domain) == ("QuickGelu", "com.microsoft")
    assert np.isfinite(anybit.load(actual).run(random(2, 4))["y"]).all()
