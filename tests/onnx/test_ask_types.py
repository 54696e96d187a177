# SPDX-License-Identifier: Apache-2.0
"""Types behind operators of other domains come from the runtime, if that knows them."""

import numpy as np
import onnx_ir as ir
from passes import random
from small_models import model, node

import anybit
from anybit.onnx import read
from anybit.onnx.passes import AskTypes, InferShapes

OPSETS = {"": 17, "com.microsoft": 1, "nobody": 1}


def behind(kind: str, domain: str) -> ir.Model:
    nodes = [
        node(kind, "x", "a", domain=domain, name="foreign"),
        node("MatMul", "a w", "p", domain="", name="product"),
        node("Relu", "p", domain="", name="relu"),
    ]
    proto = model(nodes, {"w": random(4, 3)}, inputs={"x": ["n", 4]}, opsets=OPSETS)
    found = read(proto)
    InferShapes()(found)
    return found


def test_what_the_runtime_knows() -> None:
    found = behind("QuickGelu", "com.microsoft")
    assert found.graph[1].outputs[0].dtype is None
    assert AskTypes()(found).modified
    assert {each.outputs[0].dtype for each in found.graph} == {ir.DataType.FLOAT}
    assert not AskTypes()(found).modified


def test_what_nobody_knows() -> None:
    found = behind("Mystery", "nobody")
    assert not AskTypes()(found).modified
    assert found.graph[0].outputs[0].dtype is None


def test_layers_behind_foreign_operators_are_quantized() -> None:
    found = anybit.quantize(behind("QuickGelu", "com.microsoft"), random(16, 4))
    assert [each.name for each in found.layers] == ["product"]
    assert found.verdict is not None
    assert found.verdict.passed
    foreign = next(iter(found.model.graph))
    assert (foreign.op_type, foreign.domain) == ("QuickGelu", "com.microsoft")
    assert np.isfinite(anybit.load(found).run(random(2, 4))["y"]).all()
