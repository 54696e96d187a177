# SPDX-License-Identifier: Apache-2.0
"""Wrong numbers of inputs and outputs: check names them, the rest refuses in the same words."""

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


ACTIONS: dict[str, Callable[[Any], object]] = {
    "load": anybit.load,
    "clean": anybit.clean,
    **{
        form: lambda proto, form=form: anybit.convert(proto, to=form)
        for form in ("qonnx", "standard", "portable", "qdq", "qcdq")
    },
}


@pytest.mark.parametrize(
    ("proto", "problem"),
    [
        (small("y = Relu(x, x)"), "must have 1 input, got 2"),
        (small("y = Add(x)"), "must have 2 inputs, got 1"),
        (small("y, z = Neg(x)"), "must have 1 output, got 2"),
        (small("y = Clip(x, x, x, x)"), "must have 1 to 3 inputs, got 4"),
        (small("y = Concat<axis = 0>()"), "must have at least 1 input, got 0"),
        (two_outputs(), "must have 1 output, got 2"),
    ],
)
def test_check_reports_errors_of_runtimes(proto: onnx.ModelProto, problem: str) -> None:
    assert reported_problems(proto) == [problem]
    for action in ACTIONS.values():
        with pytest.raises(ModelError, match=problem):
            action(proto)


def reported_problems(proto: onnx.ModelProto) -> list[str]:
    return [finding.problem for finding in anybit.check(proto) if finding.code == "bad-inputs"]


def test_check_contributed_operators_may_change_with_the_runtime() -> None:
    proto = small("y = com.microsoft.Gelu(x, x)")
    assert reported_problems(proto) == ["must have 1 input, got 2"]
    assert len(anybit.clean(proto).model.graph) == 1
    with pytest.raises(ModelError, match="the model cannot be loaded"):
        anybit.load(proto)


def test_check_counts_without_omitted_inputs() -> None:
    proto = small("y = Clip(x, , high, )", "<float high = {1}>")
    assert reported_problems(proto) == []


@pytest.mark.parametrize("action", ACTIONS)
def test_check_quantizer_with_two_outputs(action: str) -> None:
    with pytest.raises(ModelError, match=r"node 'q' \(IntQuant\) must have 1 output, got 2"):
        ACTIONS[action](two_outputs())


def test_check_model_without_an_opset_is_taken_for_a_new_one() -> None:
    """Accept what ONNX Runtime accepts."""
    proto = small("y = Clip(x, low, high)", "<float low = {0}, float high = {1}>")
    del proto.opset_import[0]
    assert reported_problems(proto) == []
    assert anybit.load(proto).run([-3.0, 3.0])["y"].tolist() == [0, 1]
    proto.graph.node[0].input.extend(["x", "x"])
    with pytest.raises(ModelError, match="must have 1 to 3 inputs, got 5"):
        anybit.load(proto)
