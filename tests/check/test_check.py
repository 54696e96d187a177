# SPDX-License-Identifier: Apache-2.0
"""`anybit check` finds each fault, all of them at once, and nothing in models without faults."""

import numpy as np
import onnx
import pytest
from faulty_models import changed, codes, minifloat, quantizer, requantizer
from onnx import helper
from small_models import DOMAIN, model, node, quantized_input

from anybit.onnx.checks.checking import check

FAULTS = {
    "scale 0": (quantizer(scale=0), "scale-not-positive", "got 0, which divides by 0"),
    "scale -1": (quantizer(scale=-1), "scale-not-positive", "got -1, which mirrors"),
    "scale NaN": (quantizer(scale=np.nan), "not-finite", "scale must be finite, got nan"),
    "scale inf": (quantizer(scale=np.inf), "not-finite", "scale must be finite, got inf"),
    "one of many scales": (
        quantizer(scale=np.array([1, 2, 0, 4], np.float32)),
        "scale-not-positive",
        "got 0",
    ),
    "zero-point NaN": (quantizer(zeropt=np.nan), "not-finite", "zeropt must be finite, got nan"),
    "bitwidth 2.5": (quantizer(bitwidth=2.5), "not-in-domain", "an integer >= 1, got 2.5"),
    "bitwidth 0": (quantizer(bitwidth=0), "not-in-domain", "an integer >= 1, got 0"),
    "bitwidth NaN": (quantizer(bitwidth=np.nan), "not-in-domain", "got nan"),
    "text": (quantizer(scale=np.array(["a"], object)), "bad-type", "scale must be a real number"),
    "shape": (quantizer(scale=np.ones(3, np.float32)), "bad-shape", "(3,) does not broadcast to x"),
    "rank": (quantizer(scale=np.ones((1, 1, 1), np.float32)), "bad-shape", "does not broadcast"),
    "rounding mode": (quantizer(rounding_mode="NEAREST"), "bad-attribute", "got 'NEAREST'"),
    "signed": (quantizer(signed=7), "bad-attribute", "signed must be 0 or 1, got 7"),
    "inputs": (model([node("IntQuant", "x x x")]), "bad-inputs", "must have 4 inputs, got 3"),
    "version": (
        model([node("Trunc", "x x x x x x")], opsets={DOMAIN: 1}),
        "version-mismatch",
        "has 6 inputs, which is version 2, but",
    ),
    "ratio": (requantizer(out_scale=np.inf), "not-finite", "out_scale must be finite"),
    "max_val": (minifloat(max_val=-1), "not-in-domain", "max_val must be a number >= 0, got -1"),
    "unknown": (model([node("Im2Col", "x")]), "unknown-operator", "Im2Col is not"),
    "names": (
        model([node("Neg", "x", "t", domain="", name="n"), node("Abs", "t", domain="", name="n")]),
        "duplicate-name",
        "two nodes are named 'n'",
    ),
    "schema": (model([node("Neg", "x", domain="", alpha=1)]), "schema", "alpha"),
    "opset": (
        changed(quantizer(), lambda m: (m.opset_import.pop(0), m.graph.node.append(
            helper.make_node("Neg", ["y"], ["z"], name="neg")))),
        "missing-import",
        "no opset is imported for the standard operators",
    ),
}  # fmt: skip

REMARKS = {
    "one signed bit": (quantizer(bitwidth=1), "one-signed-bit", "-1 and 0"),
    "wide": (quantizer(bitwidth=25, signed=0), "wide-codes", "bitwidth 25"),
    "zero-point 0.5": (quantizer(zeropt=0.5), "zero-point-fraction", "zero-point 0.5 is no"),
    "zero-point 8": (quantizer(zeropt=8), "zero-point-off-range", "the codes -8 .. 7"),
    "subnormal scale": (quantizer(scale=1e-40), "scale-subnormal", "subnormal float32"),
    "saturation": (minifloat(saturation=0), "no-saturation", "saturation=0 does not change"),
    "subnormals": (minifloat(has_subnormal=0), "no-subnormals", "has_subnormal=0"),
    "max_val 500": (minifloat(500), "limit-not-reached", "max_val 500 is above 480"),
    "max_val 450": (minifloat(450), "limit-off-grid", "max_val 450 is not a value of"),
    "ratio 3": (requantizer(out_scale=3), "scale-ratio", "3, not a power of two"),
    "zero-point of trunc": (requantizer(zeropt=2), "zero-point-fraction", "is 0.5, not an integer"),
    "zero-point of old trunc": (
        model([node("Trunc", "x s s i o")], {"s": 1, "i": 8, "o": 4}),
        "zero-point-kept",
        "zero-point 1",
    ),
    "zps": (
        changed(
            model(
                [node("DynamicQuantize", "x s z", domain="anybit", dst="u8")],
                {"s": np.ones(1, np.float32), "z": np.array([-1], np.int32)},
                opsets={"anybit": 1},
            ),
            lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", 2),
        ),
        "zero-point-off-range",
        "the codes 0 .. 255",
    ),
    "domain": (
        model([node("Quant", "x a b c", domain="onnx.brevitas")], {"a": 1, "b": 0, "c": 4}),
        "legacy-domain",
        "'onnx.brevitas' is a legacy name of 'qonnx.custom_op.general'",
    ),
    "name": (quantized_input(), "legacy-name", "Quant is a legacy name of IntQuant"),
    "attribute": (minifloat(has_inf=1), "legacy-attribute", "has_inf is an alias of has_infinity"),
    "mode": (quantizer(rounding_mode="round"), "rounding-mode-spelling", "'round' is an alias"),
    "import": (
        changed(quantizer(), lambda m: m.opset_import.pop(1)),
        "missing-import",
        "'qonnx.custom_op.general' is used but has no opset import",
    ),
    "IR": (changed(quantizer(), lambda m: setattr(m, "ir_version", 14)), "ir-version", "14"),
    "initializer": (
        changed(quantizer(), lambda m: m.graph.input.append(
            helper.make_tensor_value_info("scale", 1, []))),
        "initializer-as-input",
        "'scale' first",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("proto", "code", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_check_errors(proto: onnx.ModelProto, code: str, words: str) -> None:
    findings = check(proto)
    assert code in {finding.code for finding in findings if finding.severity == "error"}, findings
    assert any(words in finding.problem for finding in findings if finding.code == code), findings
    assert all(finding.remedy and finding.problem for finding in findings)


@pytest.mark.parametrize(
    ("largest", "remarked"), [(2**23, False), (2**24 + 2, True), (np.nan, True)]
)
def test_check_wide_codes_are_those_of_a_constant(largest: float, remarked: bool) -> None:
    constants = {"b": np.array([1, largest], np.float32) / 2, "s": 0.5, "z": 0, "w": 32}
    nodes = [node("IntQuant", "b s z w", "q"), node("Add", "x q", domain="")]
    assert ("wide-codes" in codes(check(model(nodes, constants)))) == remarked


@pytest.mark.parametrize(("proto", "code", "words"), REMARKS.values(), ids=REMARKS.keys())
def test_check_warnings(proto: onnx.ModelProto, code: str, words: str) -> None:
    findings = check(proto)
    assert code in codes(findings), findings
    assert {finding.severity for finding in findings} == {"warning"}, findings
    assert any(words in finding.problem for finding in findings if finding.code == code), findings


@pytest.mark.parametrize(
    "proto",
    [
        quantizer(),
        quantizer(bitwidth=np.array([2, 3, 4, 5], np.int64), scale=np.ones((1, 4), np.float32)),
        quantizer(zeropt=np.int64(3) * np.ones((), np.int64)),
        minifloat(),
        minifloat(np.inf),
        requantizer(),
        model([node("BipolarQuant", "x s")], {"s": 1}),
    ],
)
def test_check_nothing_wrong(proto: onnx.ModelProto) -> None:
    assert check(proto) == ()


def test_check_all_faults_at_once() -> None:
    nodes = [
        node("IntQuant", "x zero half width", "a", name="first", rounding_mode="UPWARD", signed=2),
        node("IntQuant", "a one", "b", name="second"),
        node("Trunc", "b one zero eight one", "c", name="third"),
        node("FloatQuant", "c nan one two two", name="fourth"),
    ]
    constants = {
        "zero": 0,
        "half": 0.5,
        "width": 2.5,
        "one": 1,
        "eight": 8,
        "two": 2,
        "nan": np.nan,
    }
    findings = check(model(nodes, constants, opsets={DOMAIN: 2}))
    assert [
        (finding.node, finding.code) for finding in findings if finding.severity == "error"
    ] == [
        ("first", "bad-attribute"),
        ("first", "bad-attribute"),
        ("second", "bad-inputs"),
        ("third", "version-mismatch"),
        ("first", "scale-not-positive"),
        ("first", "not-in-domain"),
        ("fourth", "not-finite"),
    ], findings


def test_check_operators_are_reported_as_the_file_spells_them() -> None:
    (finding,) = [
        finding for finding in check(quantized_input(scale=0)) if finding.severity == "error"
    ]
    assert (finding.node, finding.operator) == ("the_Quant", "Quant")


def test_check_constants_of_small_graphs_are_seen() -> None:
    nodes = [
        node("Sub", "one one", "scale", domain=""),
        node("IntQuant", "x scale zero four"),
    ]
    findings = check(model(nodes, {"one": 1, "zero": 0, "four": 4}))
    assert "scale-not-positive" in codes(findings)


def test_check_reports_each_error_once() -> None:
    """Also where the file spells the operator in an old way."""
    (findings,) = (
        finding
        for finding in check(quantized_input(rounding_mode="NEAREST"))
        if finding.severity == "error"
    )
    assert findings.problem.startswith("rounding_mode must be one of ROUND, ")
