# SPDX-License-Identifier: Apache-2.0
"""Reasons for nodes without a native form, and opsets of the others."""

import re
from typing import Any

import numpy as np
import onnx
import pytest
from qdq_models import (
    WEIGHT,
    Written,
    checked,
    columns,
    dtypes,
    float_model,
    int_model,
    runs,
    weight_model,
)
from small_models import kinds, model, node

import anybit
from anybit import formats
from anybit.errors import ModelError
from anybit.formats import FloatFormat
from anybit.onnx import read
from anybit.onnx.forms import Form
from anybit.onnx.passes import Normalize, ToQdq


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"zeropt": 2}, "zero-point 2 is added before rounding"),
        ({"zeropt": 0.5}, "zero-point 0.5 is added before"),
        ({"rounding_mode": "FLOOR"}, "another way of rounding"),
        ({"bits": 17}, r"no native type holds -65536 \.\. 65535$"),
        ({"bits": 40}, "no single integer range"),
        ({"bits": [[2], [4]], "shape": [2, 2]}, "no single integer range"),
        ({"scale": 0}, "not finite and positive"),
        ({"scale": -1}, "not finite and positive"),
        ({"scale": np.inf}, "not finite and positive"),
        ({"scale": np.nan}, "not finite and positive"),
        ({"scale": [[1, 2], [3, 4]], "shape": [2, 2]}, "more than one axis"),
        ({"scale": [[1, 2, 3]], "shape": [4, 4]}, "3 scales do not broadcast"),
        ({"scale": np.zeros((0, 1)), "shape": [4, 4]}, "are empty"),
    ],
)
def test_to_qdq_reasons(changes: dict[str, Any], reason: str) -> None:
    changes = {
        name: np.float32(value) if isinstance(value, list) and name != "shape" else value
        for name, value in changes.items()
    }
    written = Written(int_model(**changes))
    assert kinds(written.model) == ["IntQuant"]
    assert list(written.reasons) == ["y"]
    assert not written.steps
    assert re.search(reason, written.reasons["y"])


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (float_model(1, FloatFormat(4, 3)), "no native type has the values of float8_e4m3"),
        (float_model(1, formats.float8_e5m2, rounding_mode="UP"), "another way of rounding"),
        (float_model(1, formats.float8_e5m2, signed=0), "no single integer range"),
        (
            model([node("Trunc", "x a z b c b")], {"a": 1, "z": 0, "b": 8, "c": 4}, opsets={}),
            "another way of rounding",
        ),
        (
            model([node("Trunc", "x a z b b")], {"a": 1, "z": 0, "b": 8}, opsets={}),
            "no single integer range",
        ),
        (
            model([node("Abs", "x", "s", domain=""), node("Quant", "x s z b")], {"z": 0, "b": 4}),
            "its scale is computed",
        ),
    ],
)
def test_to_qdq_reasons_of_other_operators(proto: onnx.ModelProto, reason: str) -> None:
    assert reason in Written(proto).reasons["y"]


def test_to_qdq_float64_stays() -> None:
    proto = int_model()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    assert "x is double" in Written(proto).reasons["y"]


def test_to_qdq_float8_needs_a_style_and_an_opset_with_them() -> None:
    proto = float_model(1, formats.float8_e4m3fn)
    assert "no 8-bit type has" in Written(proto, "qcdq").reasons["y"]
    assert "needs opset 19" in Written(proto, opset_limit=18).reasons["y"]


@pytest.mark.parametrize(
    ("proto", "style", "limit", "needed"),
    [
        (int_model(bits=8), "qdq", 25, 10),
        (int_model(bits=7), "qdq", 25, 12),
        (int_model([1, 2], bits=8), "qdq", 25, 13),
        (int_model(bits=4), "qdq", 25, 21),
        (int_model(bits=4), "qdq", 20, 12),
        (int_model(bits=4), "qcdq", 25, 12),
        (int_model(bits=2), "qdq", 25, 25),
        (int_model(bits=2), "qdq", 24, 12),
        (int_model(bits=12), "qdq", 25, 21),
        (int_model(bits=12), "qdq", 20, 1),
        (int_model(bits=8, zeropt=1), "qdq", 25, 1),
        (float_model(1, formats.float8_e5m2), "qdq", 25, 19),
        (model([node("BipolarQuant", "x s")], {"s": 1}), "qcdq", 25, 12),
        (weight_model("Quant", {"s": 0.1, "z": 0, "b": 24}, WEIGHT), "qdq", 25, 10),
    ],
)
def test_to_qdq_needed_opset(proto: onnx.ModelProto, style: str, limit: int, needed: int) -> None:
    result = read(proto)
    Normalize()(result)
    assert ToQdq(style=Form(style), opset_limit=limit).find_needed_opset(result) == needed


def test_to_qdq_types_of_later_opsets_are_not_used() -> None:
    """Keep the opset, as a caller that does not raise it."""
    result = read(int_model(bits=4))
    Normalize()(result)
    ToQdq(style=Form.QDQ)(result)
    assert set(dtypes(result)) == {"int8"}
    assert result.graph.opset_imports[""] == 13


@pytest.mark.parametrize("bits", [2, 4, 8, 12])
def test_to_qdq_approximate_zero_points(bits: int) -> None:
    proto = int_model([0.5, 0.3], [1, 2], bits, signed=0)
    assert Written(proto).reasons
    written = Written(proto, allow_approximate=True)
    (step,) = written.steps
    assert not step.exact
    assert "zero-point 1 is added after rounding" in step.reason
    x = columns(np.float32([0.5, 0.3]))
    expected = anybit.int_quant(x, np.float32([0.5, 0.3]), np.float32([1, 2]), bits, signed=False)
    for result in runs(checked(written.proto), x=x):
        steps = np.abs(result - expected) / np.float32([0.5, 0.3])
        assert steps.max() <= 1.001
        assert np.mean(steps > 0) < 0.3


@pytest.mark.parametrize("zeropt", [0.5, -1, 16, np.nan, np.inf, 1e30])
def test_to_qdq_refuses_zero_points_without_approximation(zeropt: float) -> None:
    written = Written(int_model(zeropt=zeropt, bits=16, signed=0), allow_approximate=True)
    assert written.reasons if zeropt != 16 else written.steps


@pytest.mark.parametrize("bits", [0, -1, 2.5, np.nan, np.inf])
def test_to_qdq_bad_widths(bits: float) -> None:
    with pytest.raises(ModelError, match=r"node 'the_Quant'.*bitwidth must be"):
        Written(int_model(bits=bits))


def test_to_qdq_plans_are_kept_for_the_model_that_they_are_of_only() -> None:
    native = ToQdq(style=Form.QDQ)
    first, second = (read(int_model(bits=bits)) for bits in (8, 7))
    for element in (first, second):
        Normalize()(element)
    native.find_needed_opset(first)
    assert [step.action for step in native(second).steps] == [
        "QuantizeLinear and DequantizeLinear int8"
    ]
    assert not native(second).steps
    assert len(native(first).steps) == 1
