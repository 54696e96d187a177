# SPDX-License-Identifier: Apache-2.0
"""Opsets, IR versions and imports of converted models: as high as needed, and no higher."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from forms import FORMS, NATIVE, Form
from onnx import TensorProto
from small_models import DOMAIN, model, node, quantized_input, quantized_weight

import anybit
from anybit.errors import ModelError


def opset(proto: onnx.ModelProto) -> int:
    (actual,) = [item.version for item in proto.opset_import if item.domain == ""]
    return actual


def old(proto: onnx.ModelProto, version: int) -> onnx.ModelProto:
    proto.opset_import[0].version = version
    return proto


def converted(proto: onnx.ModelProto, form: Form) -> onnx.ModelProto:
    return ir.to_proto(anybit.convert(proto, to=form).model)


@pytest.mark.parametrize("form", FORMS)
def test_convert_keeps_opset_without_quantizers(form: Form) -> None:
    plain = model([node("Neg", "x", domain="")], opsets={})
    assert opset(converted(old(plain, 9), form)) == 9


@pytest.mark.parametrize("form", [Form.QONNX, Form.STANDARD, Form.PORTABLE])
def test_convert_folded_weights_need_no_opset(form: Form) -> None:
    proto, _ = quantized_weight()
    assert opset(converted(old(proto, 9), form)) == 9


@pytest.mark.parametrize("style", NATIVE)
def test_convert_native_types_of_the_first_opset(style: Form) -> None:
    proto = converted(old(quantized_input(bitwidth=8), 9), style)
    assert opset(proto) == 10
    assert [item.op_type for item in proto.graph.node] == ["QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize("style", NATIVE)
def test_convert_expansions_need_their_own_opset(style: Form) -> None:
    nodes = [node("Quant", "x s z b", "a"), node("Quant", "a s z b", rounding_mode="UP", name="up")]
    proto = model(nodes, {"s": 0.5, "z": 0, "b": 8})
    assert opset(converted(old(proto, 9), style)) == 13
    folded = model(
        [node("Quant", "w s z b", "q", rounding_mode="UP"), node("Add", "x q", domain="")],
        {"w": np.full(4, np.nan, np.float32), "s": 0.5, "z": 0, "b": 8},
    )
    assert opset(converted(old(folded, 10), style)) == 10


def two_versions() -> onnx.ModelProto:
    nodes = [
        node("Trunc", "x s z b o", "a", name="one"),
        node("Relu", "a", "r", domain=""),
        node("Trunc", "r s z b s2 o", "c", name="two"),
        node("Trunc", "c s z b s2 o", name="three"),
    ]
    return model(nodes, {"s": 0.5, "z": 0, "b": 8, "o": 4, "s2": 2}, opsets={})


@pytest.mark.parametrize("form", FORMS)
def test_convert_two_versions_of_an_operator(form: Form) -> None:
    x = np.linspace(-70, 70, 4, dtype=np.float32)[np.newaxis]
    expected = anybit.load(two_versions()).run(x)["y"]
    for version in (11, 13):
        proto = converted(old(two_versions(), version), form)
        np.testing.assert_array_equal(anybit.load(proto).run(x)["y"], expected)


def test_convert_portable_models_import_remaining_version() -> None:
    portable = anybit.convert(two_versions(), to=Form.PORTABLE)
    assert portable.model.graph.opset_imports == {"": 15, DOMAIN: 2}
    reasons = {step.node: step.reason for step in portable.steps}
    reason = "others of its name have another number of inputs"
    assert reasons == {"one": reason, "two": "", "three": ""}


def test_convert_portable_models_have_the_ir_version_of_types_that_are_inferred() -> None:
    """Accept int4 codes without a type in the file."""
    to_codes = node("QuantizeLinear", "x s", "q", domain="", output_dtype=TensorProto.INT4)
    nodes = [to_codes, node("DequantizeLinear", "q s", "d", domain=""), node("Quant", "d s z b")]
    proto = old(model(nodes, {"s": 0.5, "z": 0, "b": 4}), 21)
    assert converted(proto, Form.PORTABLE).ir_version == 10


def hardmax(version: int, **attributes: int) -> onnx.ModelProto:
    proto = model(
        [node("Hardmax", "x", "h", domain="", **attributes), node("Quant", "h s z b")],
        {"s": 0.5, "z": 0, "b": 4},
        inputs={"x": [2, 3, 4]},
    )
    return old(proto, version)


def test_an_operator_that_the_converter_would_change_is_refused() -> None:
    """Before opset 13 Hardmax took the largest of all axes behind, too."""
    for refused in (hardmax(11), hardmax(12, axis=0)):
        with pytest.raises(ModelError, match=r"the_Hardmax.*opset 13"):
            anybit.convert(refused, to="standard")
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for kept in (hardmax(11, axis=2), hardmax(11, axis=-1), hardmax(13)):
        expected = anybit.load(kept).run(x)["y"]
        standard = converted(kept, Form.STANDARD)
        np.testing.assert_array_equal(anybit.load(standard).run(x)["y"], expected)
    assert opset(converted(hardmax(11), Form.QONNX)) == 11


def test_convert_model_without_an_opset_is_refused() -> None:
    nodes = [node("Quant", "x s z b", "q"), node("Neg", "q", domain="")]
    proto = model(nodes, {"s": 0.5, "z": 0, "b": 4})
    del proto.opset_import[:]
    proto.opset_import.add(domain=DOMAIN, version=1)
    with pytest.raises(ModelError, match="does not say which opset it has"):
        anybit.convert(proto, to="portable")
