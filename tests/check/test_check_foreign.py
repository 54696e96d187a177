# SPDX-License-Identifier: Apache-2.0
"""Operators of other domains, and operators on codes, that a target does not have."""

from typing import Any

import numpy as np
import onnx
import pytest
from nbits_models import NBits, nbits_model
from onnx import helper
from qdq_models import pair
from small_models import DOMAIN, model, node, quantized_input

from anybit.onnx.checks.checking import check
from anybit.onnx.checks.finding import Finding

ORT = "com.microsoft"
TARGETS = ("standard", "qdq", "finn", "hls4ml")
CODES = {"standard": "foreign-operator", "qdq": "foreign-operator", "finn": "operator",
         "hls4ml": "layer"}  # fmt: skip


def foreign(kind: str, *, domain: str = ORT, inputs: str = "x", **options: Any) -> onnx.ModelProto:
    return model(
        [node(kind, inputs, domain=domain, **options)], opsets={domain: 1} if domain else {}
    )


def added(proto: onnx.ModelProto, target: str) -> list[Finding]:
    """Return a target's findings about operators, except those of a missing shape."""
    before = check(proto)
    return [
        finding
        for finding in check(proto, target)
        if finding not in before
        if finding.code == CODES[target]
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "proto",
    [
        foreign("Gelu"),
        foreign("QuickGelu"),
        foreign("FusedMatMul", inputs="x x"),
        foreign("MatMulBnb4", inputs="x x x", K=4, N=4, block_size=16, quant_type=1),
        foreign("Relu", domain="mine"),
        NBits().model(),
    ],
    ids=["Gelu", "QuickGelu", "FusedMatMul", "MatMulBnb4", "mine.Relu", "MatMulNBits"],
)
def test_check_targets_report_operators_of_other_domains(
    target: str, proto: onnx.ModelProto
) -> None:
    (finding,) = added(proto, target)
    operator = proto.graph.node[0].op_type
    assert finding.severity == "error"
    assert finding.operator == operator
    assert f"{proto.graph.node[0].domain}::{operator}" in finding.problem
    assert finding.remedy


@pytest.mark.parametrize("target", TARGETS)
def test_check_targets_report_operators_of_other_domains_in_branches(target: str) -> None:
    branch = helper.make_graph(
        [node("Gelu", "x", "inner", domain=ORT)],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)],
    )
    cond = node("If", "c", domain="", then_branch=branch, else_branch=branch)
    proto = model([cond], {"c": np.asarray(True)}, opsets={ORT: 1})
    proto.graph.node[0].attribute[1].g.node[0].output[0] = "other"
    proto.graph.node[0].attribute[1].g.node[0].name = "else_gelu"
    proto.graph.node[0].attribute[1].g.output[0].name = "other"
    proto.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    del proto.graph.initializer[:]
    (finding,) = added(proto, target)
    if target == "hls4ml":  # which has no layer for If at all
        assert finding.operator == "If"
    else:
        assert finding.nodes == ("the_Gelu", "else_gelu")


def test_check_findings_of_different_foreign_operators_stay_apart() -> None:
    kinds = ["Gelu", "QuickGelu", "Odd1", "Odd2", "Gelu"]
    names = ["x", *(f"t{index}" for index in range(4)), "y"]
    nodes = [
        node(kind, names[index], names[index + 1], domain=ORT, name=f"n{index}")
        for index, kind in enumerate(kinds)
    ]
    findings = added(model(nodes, opsets={ORT: 1}), "standard")
    assert [finding.nodes for finding in findings] == [("n0", "n4"), ("n1",), ("n2",), ("n3",)]


@pytest.mark.parametrize("domain", ["qonnx.custom_op.general", "finn.custom_op.fpgadataflow"])
def test_check_finn_has_operators_of_its_own(domain: str) -> None:
    proto = model(
        [node("Im2Col", "x t", domain=domain)],
        {"t": np.zeros((4, 1), np.float32)},
        opsets={domain: 1},
    )
    assert not added(proto, "finn")
    assert added(proto, "standard")


@pytest.mark.parametrize("target", TARGETS)
def test_check_own_and_standard_operators_are_not_foreign(target: str) -> None:
    labels = foreign("Binarizer", domain="ai.onnx.ml", threshold=0.5)
    own = quantized_input()
    assert own.graph.node[0].domain == DOMAIN
    assert not added(own, target)
    assert not any(finding.code == "foreign-operator" for finding in check(labels, target))


INTEGERS = [
    ("", "DynamicQuantizeLinear", "x"),
    ("", "MatMulInteger", "x x"),
    ("", "ConvInteger", "x x"),
    ("", "QLinearConv", "x x x x x x x x"),
    ("", "QLinearMatMul", "x x x x x x x x"),
    ("", "QuantizeLinear", "x x"),
    ("", "DequantizeLinear", "x x"),
    (ORT, "QGemm", "x x x x x x"),
    (ORT, "QAttention", "x x x x x"),
    (ORT, "QLinearAdd", "x x x x x x x"),
    (ORT, "QuantizeLinear", "x x"),
]


@pytest.mark.parametrize("target", ["finn", "hls4ml"])
@pytest.mark.parametrize(("domain", "kind", "inputs"), INTEGERS)
def test_check_finn_and_hls4ml_have_no_integer_operators(
    target: str, domain: str, kind: str, inputs: str
) -> None:
    findings = added(foreign(kind, domain=domain, inputs=inputs), target)
    assert {finding.operator for finding in findings} == {kind}
    (finding,) = (finding for finding in findings if kind in finding.problem)
    assert "anybit" in finding.remedy


@pytest.mark.parametrize("target", ["finn", "hls4ml"])
def test_check_pairs_are_reported_with_convert_as_the_remedy(target: str) -> None:
    findings = added(pair(), target)
    assert [finding.operator for finding in findings] == ["QuantizeLinear", "DequantizeLinear"]
    assert {finding.remedy for finding in findings} == {"run anybit convert --to qonnx"}


@pytest.mark.parametrize("target", ["standard", "qdq"])
def test_check_pairs_of_onnx_are_not_foreign(target: str) -> None:
    assert not added(pair(), target)


def test_check_remedies_name_form_and_options() -> None:
    """Two nodes of one operator are two findings if only one is converted exactly."""
    weight = NBits(40, 40)
    proto = weight.model()
    proto.graph.node.append(weight.model(accuracy_level=4).graph.node[0])
    proto.graph.node[0].output[0] = proto.graph.node[1].input[0] = "t"
    proto.graph.node[1].name = "rounded"
    for target, form in (("standard", "standard"), ("qdq", "qdq"), ("finn", "qonnx")):
        assert [(finding.node, finding.remedy) for finding in added(proto, target)] == [
            ("product", f"run anybit convert --to {form}"),
            ("rounded", f"run anybit convert --to {form} --allow-approximate"),
        ]


def test_check_remedies_of_kept_nodes_requantize() -> None:
    weight = NBits()
    tensors = {**weight.tensors, "g": np.zeros(40, np.int32)}
    reordered = nbits_model(tensors, weight.sizes)
    wrong = nbits_model(weight.tensors, {**weight.sizes, "bits": "4"})
    for proto in (reordered, wrong, foreign("QGemm", inputs="x x x x x x")):
        (finding,) = added(proto, "finn")
        assert finding.remedy == "quantize the float model another way: anybit quantize"
