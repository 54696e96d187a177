# SPDX-License-Identifier: Apache-2.0
"""Wrong numbers of inputs and outputs are told by check, and refused in one line by the rest."""

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from onnx import parser
from small_models import model, node

import anybit
from anybit.errors import ModelError

HEADER = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'


def small(body: str, constants: str = "") -> onnx.ModelProto:
    return parser.parse_model(f"{HEADER} g (float[2] x) => (float[2] y) {constants} {{ {body} }}")


def two_outputs() -> onnx.ModelProto:
    quantizer = node("IntQuant", "x scale zeropt bits", name="q")
    quantizer.output.append("second")
    proto = model([quantizer], {"scale": 0.5, "zeropt": 0, "bits": 4}, inputs={"x": [2]})
    proto.graph.output.add().CopyFrom(proto.graph.output[0])
    proto.graph.output[1].name = "second"
    return proto


@pytest.mark.parametrize(
    ("proto", "problem"),
    [
        (small("y = Relu(x, x)"), "has 2 inputs, must have 1"),
        (small("y = Add(x)"), "has 1 inputs, must have 2"),
        (small("y, z = Neg(x)"), "has 2 outputs, must have 1"),
        (small("y = Clip(x, x, x, x)"), "has 4 inputs, must have 1 to 3"),
        (small("y = Concat<axis = 0>()"), "has 0 inputs, must have at least 1"),
        (small("y = com.microsoft.Gelu(x, x)"), "has 2 inputs, must have 1"),
        (two_outputs(), "has 2 outputs, not 1"),
    ],
)
def test_check_tells_what_load_refuses(proto: onnx.ModelProto, problem: str) -> None:
    found = [each.problem for each in anybit.check(proto) if each.code == "bad-inputs"]
    assert found == [problem]
    with pytest.raises(ModelError):
        anybit.load(proto)


def test_what_is_left_out_is_not_counted() -> None:
    proto = small("y = Clip(x, , high, )", "<float high = {1}>")
    assert all(each.code != "bad-inputs" for each in anybit.check(proto))


ACTIONS: dict[str, Callable[[Any], object]] = {
    "load": anybit.load,
    "clean": anybit.clean,
    **{
        form: lambda proto, form=form: anybit.convert(proto, to=form)
        for form in ("qonnx", "standard", "portable", "qdq", "qcdq")
    },
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_quantizer_with_two_outputs(action: str) -> None:
    with pytest.raises(ModelError, match=r"node 'q' \(IntQuant\) must have 1 output, got 2"):
        ACTIONS[action](two_outputs())
