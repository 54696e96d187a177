# SPDX-License-Identifier: Apache-2.0
"""Obstacles for each target."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from faulty_models import (
    changed,
    codes,
    convolution,
    minifloat,
    product,
    quantizer,
    requantizer,
    weighted,
)
from onnx import helper
from places import EXAMPLE, every_model, needs_models
from small_models import model, node, quantized_input, quantized_weight

from anybit.errors import OptionError
from anybit.onnx.checks.checking import check

TARGET_FAULTS = [
    ("finn", weighted("IntQuant"), "name"),
    ("finn", weighted(rounding_mode="FLOOR"), "rounding-mode"),
    ("finn", weighted(signed=0), "range"),
    ("finn", quantized_input(zeropt=1), "zero-point"),
    ("finn", quantized_input(bitwidth=9), "too-wide"),
    ("finn", quantized_input(bitwidth=np.array([1, 2, 3, 4], np.float32)), "granularity"),
    ("finn", quantized_input(scale=np.ones((1, 4), np.float32) / 2), None),
    ("finn", minifloat(), "operator"),
    ("finn", requantizer(), "version"),
    ("finn", model([node("BipolarQuant", "x s")], {"s": 2}), "scale"),
    ("finn", model([node("Quant", "x a a b")], {"b": 4}, inputs={"x": [1, 4], "a": [1]}),
     "run-time-parameter"),
    ("finn", model([node("BipolarQuant", "x s")], {"s": 1}, inputs={"x": ["n", 4]}),
     "dynamic-size"),
    ("hls4ml", weighted("IntQuant"), "fork"),
    ("hls4ml", weighted(rounding_mode="CEIL"), "rounding-mode"),
    ("hls4ml", weighted(signed=0, narrow=1), "range"),
    ("hls4ml", quantized_input(scale=0.3), "scale"),
    ("hls4ml", quantized_input(bitwidth=np.array([1, 2, 3, 4], np.float32)), "granularity"),
    ("hls4ml", minifloat(), "operator"),
    ("hls4ml", product(), "gemm"),
    ("hls4ml", convolution("Conv", [6, 4, 3, 3]), "channels-first"),
    ("hls4ml", model([node("Erf", "x", domain="")]), "layer"),
    ("qdq", quantizer(), None),
    ("qdq", quantizer(rounding_mode="FLOOR"), "not-expressible"),
    ("qdq", quantizer(zeropt=1), "not-expressible"),
    ("qdq", quantizer(bitwidth=17), "not-expressible"),
    ("qdq", quantizer(scale=np.ones((1, 4), np.float32)), None),
    ("qdq", minifloat(), None),
    ("qdq", minifloat(480), "not-expressible"),
    ("standard", quantizer(bitwidth=17), None),
    ("standard", model(
        [node("IntQuant", "t one one one", "u"), node("XnorPopcountMatMul", "x", "t", name="m")],
        {"one": 1}, outputs=["u"]), "not-expressible"),
    ("onnxruntime", quantizer(), None),
    ("onnxruntime", changed(quantizer(), lambda m: setattr(m, "ir_version", 14)), "ir-version"),
    ("onnxruntime", model(
        [node("DynamicQuantize", "x s", domain="anybit")], {"s": np.ones(1, np.float32)},
        inputs={"x": []}, opsets={"anybit": 1}), None),
]  # fmt: skip


@pytest.mark.parametrize(("target", "proto", "code"), TARGET_FAULTS)
def test_check_targets(target: str, proto: onnx.ModelProto, code: str | None) -> None:
    added = set(check(proto, target)) - set(check(proto))
    assert code in codes(tuple(added)) if code else not added, added


def test_check_scales_and_readers_of_weights_for_finn() -> None:
    proto = weighted()
    proto.graph.node[1].input[1] = "scale"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([0.5, 0.25]), "scale"))
    proto.graph.node.append(helper.make_node("Exp", ["w"], ["e"], name="e"))
    proto.graph.output.append(helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, None))
    assert "fork" in codes(check(proto, "finn"))
    proto.graph.node.pop(2)
    proto.graph.output.pop(0)
    assert "reader" in codes(check(proto, "finn"))


def test_check_unknown_targets() -> None:
    with pytest.raises(OptionError, match=r"must be one of onnxruntime, .*, got 'tpu'"):
        check(quantizer(), "tpu")


@needs_models
@every_model
def test_check_real_models_have_no_errors(path: Path) -> None:
    findings = check(path)
    assert {finding.severity for finding in findings} == {"warning"}, findings
    for target in ("onnxruntime", "standard", "finn"):
        errors = [finding for finding in check(path, target) if finding.severity == "error"]
        assert errors == [], target


def test_check_example_has_nothing_wrong() -> None:
    assert check(EXAMPLE) == ()


def test_weights_of_a_weight_quantizer_are_not_checked_as_activations() -> None:
    proto, _ = quantized_weight()
    assert codes(check(proto, "qdq")) <= {"legacy-name"}
