# SPDX-License-Identifier: Apache-2.0
"""Unused inputs, constant outputs, and findings that many nodes share."""

import numpy as np
import onnx
import pytest
from faulty_models import codes
from onnx import helper
from small_models import DOMAIN, model, node

from anybit.onnx.checks.checking import check

TWO = {"x": [1, 4], "z": [1, 4]}
ONE = {"one": np.ones((1, 4), np.float32)}


def branch(name: str, source: str) -> onnx.GraphProto:
    nodes = [helper.make_node("Identity", [source], [name], name=name)]
    result = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    return helper.make_graph(nodes, name, [], [result])


def conditional(then: str, other: str) -> onnx.NodeProto:
    branches = {"then_branch": branch("t", then), "else_branch": branch("e", other)}
    return helper.make_node("If", ["yes"], ["y"], name="if", **branches)


@pytest.mark.parametrize(
    ("proto", "code", "words"),
    [
        (model([node("Relu", "x", domain="")], inputs=TWO), "unread-input", "'z'"),
        (model([node("Relu", "x", domain=""), node("Neg", "z", "dead", domain="")], inputs=TWO),
         "unread-input", "'z' is not used by any output"),
        (model([node("Relu", "x", domain=""), node("Neg", "one", "c", domain="")], ONE,
               outputs=["y", "c"]), "constant-output", "'c' does not depend on any input"),
        (model([node("Relu", "x", domain=""), node("Shape", "x", "s", domain="")],
               outputs=["y"]), None, ""),
        (model([conditional("x", "z")], {"yes": np.array(True)}, inputs=TWO), None, ""),
        (model([conditional("x", "x")], {"yes": np.array(True)}, inputs=TWO), "unread-input", "z"),
        (model([node("Relu", "one", domain="")], ONE, inputs={}), None, ""),
        (model([node("Relu", "one", domain="")], ONE), "constant-output", "'y'"),
    ],
)  # fmt: skip
def test_check_connections(proto: onnx.ModelProto, code: str | None, words: str) -> None:
    findings = [
        finding for finding in check(proto) if finding.code in ("unread-input", "constant-output")
    ]
    assert bool(findings) == (code is not None), findings
    if code:
        assert any(finding.code == code and words in finding.problem for finding in findings)


def test_check_fixed_shape_is_the_same_for_every_input() -> None:
    nodes = [
        node("Shape", "x", "s", domain=""),
        node("Cast", "s", "c", domain="", to=onnx.TensorProto.FLOAT),
        node("Relu", "x", domain=""),
    ]
    proto = model(nodes, outputs=["y", "c"])
    assert [finding.code for finding in check(proto)] == ["constant-output"]
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    assert check(proto) == ()


def test_check_findings_of_one_kind_are_one() -> None:
    nodes = [
        node("Quant", f"x{index or ''} s{index} zero four", f"x{index + 1}", name=f"q{index}",
             rounding_mode="floor")
        for index in range(3)
    ]  # fmt: skip
    constants = {"s0": 0, "s1": -1, "s2": -2.5, "zero": 0, "four": 4}
    findings = check(model(nodes, constants, outputs=["x3"]), "finn")
    kinds = [(finding.code, finding.problem.partition(" (also")[0]) for finding in findings]
    assert len(set(kinds)) == len(kinds)
    by_code = {finding.code: finding for finding in findings if "mirrors" not in finding.problem}
    mirrored = next(finding for finding in findings if "mirrors" in finding.problem)
    assert (
        mirrored.problem
        == "scale must be > 0, got -1, which mirrors the codes (also in 1 more node)"
    )
    assert (mirrored.node, mirrored.nodes) == ("q1", ("q1", "q2"))
    assert by_code["rounding-mode-spelling"].nodes == ("q0", "q1", "q2")
    assert by_code["rounding-mode"].nodes == ("q0", "q1", "q2")
    assert by_code["scale-not-positive"].nodes == ("q0",)


def float_product(max_val: float, exponent: int, mantissa: int, bias: int) -> onnx.ModelProto:
    nodes = [
        node("FloatQuant", "x s e m b v", "a", name="qa"),
        node("FloatQuant", "w s e m b v", "c", name="qw"),
        node("MatMul", "a c", domain="", name="sum"),
    ]
    constants = {"s": 1, "e": exponent, "m": mantissa, "b": bias, "v": max_val}
    constants["w"] = np.full((64, 2), max_val, np.float32)
    return model(nodes, constants, inputs={"x": [1, 64]}, opsets={DOMAIN: 2})


@pytest.mark.parametrize("form", [(448, 4, 3, 7), (57344, 5, 2, 15)])
def test_check_sums_of_float8_are_not_counted_in_bits(form: tuple[float, int, int, int]) -> None:
    findings = [finding for finding in check(float_product(*form)) if finding.node == "sum"]
    assert [finding.code for finding in findings] == ["float-sums"]
    assert "exact in float32" in findings[0].problem
    assert "bits" not in findings[0].remedy.replace("every bit", "")


def test_check_sums_of_float4_that_float32_holds() -> None:
    assert "float-sums" not in codes(check(float_product(6, 2, 1, 1)))
