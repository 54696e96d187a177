# SPDX-License-Identifier: Apache-2.0
"""Conversions as calls: what is refused, what is reported, what changes and what must not.

Which numbers come out: test_forms, test_forms_models, test_random_graphs.
"""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from forms import FORMS, NATIVE, Form
from onnx import TensorProto, helper
from small_models import kinds, model, node, quantized_input, quantized_weight

import anybit
from anybit.errors import ModelError, OptionError
from anybit.onnx.report import ConversionStep

X = np.float32([[0.3, -0.8, 1.2, 99]])


def test_convert_unknown_form() -> None:
    message = (
        "to must be one of qonnx, compact, standard, portable, qdq, qcdq, matmulnbits, got 'int8'"
    )
    with pytest.raises(OptionError, match=message):
        anybit.convert(quantized_input(), to="int8")


@pytest.mark.parametrize("form", FORMS)
def test_convert_unreadable_models(form: Form, tmp_path: Path) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(quantized_input().SerializeToString()[:-20])
    with pytest.raises(ModelError, match=r"cut\.onnx.* not an ONNX model, or is cut short"):
        anybit.convert(path, to=form)
    with pytest.raises(ModelError, match=r"absent\.onnx: no such file"):
        anybit.convert(tmp_path / "absent.onnx", to=form)


@pytest.mark.parametrize("form", [form for form in FORMS if form is not Form.QONNX])
def test_convert_refused_parameters_name_file_and_node(form: Form, tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    onnx.save(quantized_input(bitwidth=2.5), path)
    message = r"bad\.onnx: node 'the_Quant'.*bitwidth must be an integer >= 1, got 2\.5"
    with pytest.raises(ModelError, match=message):
        anybit.convert(path, to=form)


@pytest.mark.parametrize("source", ["path", "bytes", "proto", "model"])
@pytest.mark.parametrize("form", FORMS)
def test_convert_source_stays_as_it_is(source: str, form: Form, tmp_path: Path) -> None:
    proto, _ = quantized_weight()
    before = proto.SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(before)
    arguments = {"path": path, "bytes": before, "proto": proto, "model": ir.from_proto(proto)}[
        source
    ]
    converted = anybit.convert(arguments, to=form)
    assert converted.form is form
    assert path.read_bytes() == before
    assert proto.SerializeToString() == before
    if isinstance(arguments, ir.Model):
        assert ir.to_proto(arguments) == ir.to_proto(ir.from_proto(proto))


@pytest.mark.parametrize("form", FORMS)
def test_converting_again_changes_nothing(form: Form) -> None:
    once = anybit.convert(quantized_weight()[0], to=form)
    twice = anybit.convert(once.model, to=form)
    assert kinds(twice.model) == kinds(once.model)
    assert ir.to_proto(twice.model) == ir.to_proto(once.model)


def test_convert_steps() -> None:
    proto = model(
        [
            node("Quant", "x s z b", "a", name="plain"),
            node("Quant", "a s z b", "c", name="up", rounding_mode="UP"),
            node("Quant", "w s z b", "v", name=""),
            node("MatMul", "c v", "y", domain=""),
        ],
        {"s": 0.5, "z": 0, "b": 4, "w": np.eye(4, dtype=np.float32)},
    )
    steps = anybit.convert(proto, to="qdq").steps
    assert set(steps) == {
        ConversionStep("plain", "IntQuant", "QuantizeLinear and DequantizeLinear int4"),
        ConversionStep("v", "IntQuant", "DequantizeLinear int4"),
        ConversionStep(
            *("up", "IntQuant", "standard operators", "QuantizeLinear has another way of rounding")
        ),
    }
    actions = {step.node: step.action for step in anybit.convert(proto, to="portable").steps}
    assert actions == {"plain": "local function", "up": "local function", "v": "constant"}
    actions = {step.node: step.action for step in anybit.convert(proto, to="standard").steps}
    assert actions == {"plain": "standard operators", "up": "standard operators", "v": "constant"}
    steps = anybit.convert(proto, to="qonnx").steps
    assert {step.node: step.action for step in steps} == dict.fromkeys(
        ("plain", "up", "v"), "IntQuant"
    )
    assert "Quant of qonnx.custom_op.general" in steps[0].reason
    assert anybit.convert(anybit.convert(proto, to="qonnx").model, to="qonnx").steps == ()


@pytest.mark.parametrize("style", NATIVE)
def test_convert_zero_points_are_exact_unless_that_is_waived(style: Form) -> None:
    proto = quantized_input(zeropt=3)
    exact = anybit.convert(proto, to=style)
    (step,) = exact.steps
    assert exact.exact
    assert step.action == "standard operators"
    assert "zero-point 3 is added before rounding" in step.reason
    near = anybit.convert(proto, to=style, allow_approximate=True)
    (step,) = near.steps
    assert not near.exact
    assert not step.exact
    assert step.action.startswith("QuantizeLinear ")
    assert step.reason.startswith("differs by one step at ties")


def qlinear_matmul() -> onnx.ModelProto:
    """Return a model in integers whose scales are not powers of two."""
    tensors = {
        "xs": np.float32(0.1),
        "xz": np.uint8(0),
        "w": np.arange(12, dtype=np.int8).reshape(4, 3),
        "ws": np.float32(0.3),
        "wz": np.int8(0),
        "ys": np.float32(0.7),
        "yz": np.uint8(0),
    }
    nodes = [
        node("QuantizeLinear", "x xs xz", "q", domain=""),
        node("QLinearMatMul", "q xs xz w ws wz ys yz", "r", domain="", name="product"),
        node("DequantizeLinear", "r ys yz", domain=""),
    ]
    return model(nodes, {name: np.asarray(value) for name, value in tensors.items()}, opsets={})


def test_convert_rewrites_qlinear_matmul_without_a_difference() -> None:
    converted = anybit.convert(qlinear_matmul(), to="qonnx")
    assert converted.exact
    assert [step.action for step in converted.steps if step.node == "product"] == ["MatMul"]
    assert "QLinearMatMul" not in kinds(converted.model)


MODES = [node("Quant", "x s z b", "a", name="1"), node("Quant", "a s z b", rounding_mode="UP")]


@pytest.mark.parametrize(
    ("proto", "form", "opset", "ir_version"),
    [
        (quantized_input(), "qonnx", 13, 8),
        (quantized_input(), "standard", 13, 8),
        (quantized_input(), "portable", 15, 8),
        (model(MODES, {"s": 0.5, "z": 0, "b": 4}), "portable", 19, 8),
        (quantized_input(bitwidth=8), "qdq", 13, 8),
        (quantized_input(bitwidth=4), "qdq", 21, 10),
        (quantized_input(bitwidth=3), "qdq", 13, 8),
        (quantized_input(bitwidth=2), "qdq", 25, 13),
        (quantized_input(bitwidth=2), "qcdq", 13, 8),
        (quantized_input(bitwidth=16), "qdq", 21, 8),
        (quantized_input(rounding_mode="UP"), "qdq", 13, 8),
    ],
)
def test_convert_headers_rise_as_far_as_needed(
    proto: onnx.ModelProto, form: str, opset: int, ir_version: int
) -> None:
    converted = ir.to_proto(anybit.convert(proto, to=form).model)
    versions = {opset.domain: opset.version for opset in converted.opset_import}
    assert (versions[""], converted.ir_version) == (opset, ir_version)


@pytest.mark.parametrize("form", FORMS)
def test_convert_newer_opsets_stay(form: Form) -> None:
    proto = quantized_input(bitwidth=8)
    proto.opset_import[0].version = 22
    assert anybit.convert(proto, to=form).model.graph.opset_imports[""] == 22


@pytest.mark.parametrize(
    ("bitwidth", "limit", "action"),
    [(2, 25, "int2"), (2, 24, "int8"), (4, 21, "int4"), (4, 20, "int8"), (16, 21, "int16")],
)
def test_convert_opset_limits(bitwidth: int, limit: int, action: str) -> None:
    converted = anybit.convert(quantized_input(bitwidth=bitwidth), to="qdq", opset_limit=limit)
    assert converted.steps[0].action == f"QuantizeLinear and DequantizeLinear {action}"
    assert converted.model.graph.opset_imports[""] <= limit


def test_convert_sixteen_bits_below_their_opset() -> None:
    converted = anybit.convert(quantized_input(bitwidth=16), to="qdq", opset_limit=20)
    (step,) = converted.steps
    assert (step.action, step.reason) == (
        "standard operators",
        "the type that holds its range needs opset 21",
    )


def dense_layers(bitwidth: int) -> onnx.ModelProto:
    """Three products with weights of 1.08 MB."""
    generator = np.random.default_rng(0)
    nodes, constants, last = [], {"s": 0.25, "z": 0, "b": bitwidth}, "x"
    for index in range(3):
        constants[f"w{index}"] = generator.standard_normal((300, 300), dtype=np.float32)
        nodes += [
            node("Quant", f"w{index} s z b", f"q{index}", name=f"weight_{index}"),
            node("MatMul", f"{last} q{index}", f"h{index}", domain="", name=f"layer_{index}"),
        ]
        last = f"h{index}"
    nodes[-1].output[0] = "y"
    return model(nodes, constants, inputs={"x": ["n", 300]})


@pytest.mark.parametrize(("bitwidth", "share"), [(2, 0.08), (4, 0.16), (8, 0.28)])
def test_convert_weights_take_the_room_of_their_bits(
    bitwidth: int, share: float, tmp_path: Path
) -> None:
    proto = dense_layers(bitwidth)
    path = tmp_path / "small.onnx"
    anybit.convert(proto, to="qdq").save(path)
    assert path.stat().st_size <= share * len(proto.SerializeToString())


def test_convert_saved_model_loads_in_runtime(tmp_path: Path) -> None:
    path = tmp_path / "saved.onnx"
    anybit.convert(quantized_input(), to="standard").save(path)
    np.testing.assert_array_equal(anybit.load(path).run(X)["y"], anybit.int_quant(X, 0.5, 0, 4))


def test_convert_unknown_types_are_refused_with_a_remedy() -> None:
    nodes = [node("Other", "x", "t", domain="foreign"), node("Quant", "t s z b")]
    proto = model(nodes, {"s": 0.5, "z": 0, "b": 4}, opsets={"foreign": 1})
    for form in [form for form in FORMS if form is not Form.QONNX]:
        with pytest.raises(ModelError, match="type of 't' is not known; declare it in the model"):
            anybit.convert(proto, to=form)
    proto.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [1, 4]))
    for form in [form for form in FORMS if form is not Form.QONNX]:
        assert "Other" in kinds(anybit.convert(proto, to=form).model)


def float_model(*nodes: str, domain: str = "") -> onnx.ModelProto:
    body = "\n".join(nodes)
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17{domain}]>
        graph (float[n, 4] x) => (float[n, 4] y) {{ {body} }}"""
    )


@pytest.mark.parametrize("form", FORMS)
def test_convert_does_not_quantize(form: Form) -> None:
    converted = anybit.convert(float_model("y = Relu(x)"), to=form)
    assert not converted.steps
    (remark,) = converted.remarks
    assert "has no quantizers, and convert adds none" in remark
    assert "quantize_model" in remark


@pytest.mark.parametrize("form", [form for form in FORMS if form is not Form.QONNX])
def test_convert_operators_of_others_are_named(form: Form) -> None:
    proto = float_model("y = theirs.Strange(x)", domain=', "theirs": 1')
    converted = anybit.convert(proto, to=form)
    (step,) = converted.steps
    assert (step.operator, step.action) == ("theirs::Strange", "kept")
    assert "operators of other domains stay: 1 theirs::Strange" in converted.remarks
    assert "its runtime must have it" in step.reason


@pytest.mark.parametrize("form", FORMS)
def test_convert_operators_of_the_ml_domain_are_not_foreign(form: Form) -> None:
    domain = ', "ai.onnx.ml": 3'
    proto = float_model("y = ai.onnx.ml.Binarizer <threshold = 0.5> (x)", domain=domain)
    converted = anybit.convert(proto, to=form)
    assert not converted.steps
    assert not any("other domains" in remark for remark in converted.remarks)
