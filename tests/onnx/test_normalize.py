# SPDX-License-Identifier: Apache-2.0
"""Every spelling found in files becomes the one form."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from places import needs_models
from small_models import DOMAIN, model, node, quantized_input

from anybit.errors import ModelError
from anybit.onnx import read
from anybit.onnx.passes import Normalize
from anybit.onnxruntime import session

LEGACY = ("finn.custom_op.general", "onnx.brevitas")
TRUNC_5 = "x scale zeropt bits bits"
TRUNC_6 = "x scale zeropt bits scale bits"
CONSTANTS = {"scale": 1, "zeropt": 0, "bits": 8}


def normalized(proto: onnx.ModelProto) -> ir.Model:
    result = read(proto)
    Normalize()(result)
    before = ir.to_proto(result).SerializeToString(deterministic=True)
    assert not Normalize()(result).modified
    assert ir.to_proto(result).SerializeToString(deterministic=True) == before
    return result


def attributes(result: ir.Model) -> dict[str, Any]:
    return {name: item.value for name, item in result.graph[0].attributes.items()}


@pytest.mark.parametrize("domain", [*LEGACY, DOMAIN])
@pytest.mark.parametrize(("name", "intended"), [("Quant", "IntQuant"), ("IntQuant", "IntQuant")])
def test_normalize_names_and_domains(domain: str, name: str, intended: str) -> None:
    nodes = [node(name, "x scale zeropt bits", domain=domain)]
    result = normalized(model(nodes, CONSTANTS, opsets={domain: 1}))
    assert (result.graph[0].domain, result.graph[0].op_type) == (DOMAIN, intended)
    assert result.graph.opset_imports == {"": 13, DOMAIN: 1}


@pytest.mark.parametrize("domain", [*LEGACY, DOMAIN])
def test_normalize_missing_import(domain: str) -> None:
    nodes = [node("TruncQuant", TRUNC_6, domain=domain)]
    result = normalized(model(nodes, CONSTANTS, opsets={}))
    assert result.graph.opset_imports[DOMAIN] == 2
    assert result.graph[0].op_type == "Trunc"


def test_normalize_default_attributes() -> None:
    result = normalized(quantized_input())
    assert attributes(result) == {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"}


@pytest.mark.parametrize(("arguments", "intended"), [("floor", "FLOOR"), ("half_even", "ROUND")])
def test_normalize_rounding_mode(arguments: str, intended: str) -> None:
    assert (
        attributes(normalized(quantized_input(rounding_mode=arguments)))["rounding_mode"]
        == intended
    )


def test_normalize_alias_of_an_attribute() -> None:
    nodes = [node("FloatQuant", "x scale bits bits bits scale", has_inf=1)]
    actual = attributes(normalized(model(nodes, CONSTANTS)))
    assert actual["has_infinity"] == 1
    assert "has_inf" not in actual


@pytest.mark.parametrize("declared", [{DOMAIN: 1}, {"onnx.brevitas": 1}])
def test_normalize_trunc_with_6_inputs_in_opset_1(declared: dict[str, int]) -> None:
    nodes = [node("Trunc", TRUNC_6, domain=next(iter(declared)))]
    with pytest.raises(ModelError, match=r"the_Trunc.*6 inputs, which is version 2.*version 1"):
        normalized(model(nodes, CONSTANTS, opsets=declared))


def test_normalize_trunc_with_5_inputs_in_opset_2() -> None:
    with pytest.raises(ModelError, match=r"5 inputs, which is version 1.*version 2"):
        normalized(model([node("Trunc", TRUNC_5)], CONSTANTS, opsets={DOMAIN: 2}))


def test_normalize_two_versions_of_trunc_import_neither() -> None:
    nodes = [node("Trunc", TRUNC_5, "t"), node("Trunc", TRUNC_6.replace("x", "t"))]
    result = read(model(nodes, CONSTANTS, opsets={}))
    Normalize()(result)
    assert result.graph.opset_imports == {"": 13}
    assert not Normalize()(result).modified


@pytest.mark.parametrize("inputs", ["x scale zeropt bits", TRUNC_6 + " bits"])
def test_normalize_wrong_number_of_inputs(inputs: str) -> None:
    with pytest.raises(ModelError, match=r"the_Trunc.*must have 5 or 6 inputs, got"):
        normalized(model([node("Trunc", inputs)], CONSTANTS))


def test_normalize_missing_input() -> None:
    proto = model([node("Quant", "x scale zeropt bits")], CONSTANTS)
    proto.graph.node[0].input[1] = ""
    with pytest.raises(ModelError, match="lacks its input scale"):
        normalized(proto)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounding_mode": "SIDEWAYS"}, "rounding_mode must be one of ROUND.*'SIDEWAYS'"),
        ({"rounding_mode": "ROUND_TO_ZERO"}, "DOWN"),
        ({"rounding_mode": 1}, "rounding_mode must be a string, got 1"),
        ({"signed": 2}, "signed must be 0 or 1, got 2"),
        ({"signed": 1.0}, "signed must be an integer, got 1.0"),
        ({"narrow": "yes"}, "narrow must be 0 or 1, got 'yes'"),
    ],
)
def test_normalize_wrong_attributes(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"node 'the_Quant'.*{message}"):
        normalized(quantized_input(**wrong))


def test_normalize_initializers_leave_the_inputs() -> None:
    proto = quantized_input()
    proto.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in proto.graph.initializer
    )
    assert [value.name for value in normalized(proto).graph.inputs] == ["x"]


def test_normalize_functions_with_our_names_are_dropped() -> None:
    proto = quantized_input()
    copy = helper.make_node("Identity", ["x"], ["y"])
    names = ["x", "scale", "zeropt", "bitwidth"]
    opset = [helper.make_opsetid("", 13)]
    for domain, name in ((DOMAIN, "Quant"), ("onnx.brevitas", "IntQuant"), ("mine", "Quant")):
        proto.functions.append(helper.make_function(domain, name, names, ["y"], [copy], opset))
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert [key[:2] for key in normalized(proto).functions] == [("mine", "Quant")]


def test_normalize_nodes_in_subgraphs_and_functions() -> None:
    inner = helper.make_graph(
        [node("Quant", "x scale zeropt bits", "z", domain="onnx.brevitas")],
        "inner",
        [],
        [helper.make_value_info("z", onnx.TypeProto())],
    )
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)
    proto = model([branch], {**CONSTANTS, "yes": np.array(True)}, opsets={"onnx.brevitas": 1})
    call = node("Quant", "a b c d", "e", domain="onnx.brevitas")
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("onnx.brevitas", 1)]
    proto.functions.append(helper.make_function("mine", "F", list("abcd"), ["e"], [call], imports))
    result = read(proto)
    Normalize()(result)
    bodies = [*result.graph.all_nodes(), *result.functions["mine", "F", ""]]
    ours = [body for body in bodies if body.op_type not in ("If",)]
    assert {(our.domain, our.op_type) for our in ours} == {(DOMAIN, "IntQuant")}
    assert result.functions["mine", "F", ""].opset_imports == {"": 13, DOMAIN: 1}


@pytest.mark.parametrize("version", [3, 8, 10, 14])
def test_normalize_ir_version_is_the_lowest_possible(version: int) -> None:
    proto = quantized_input()
    proto.ir_version = version
    assert normalized(proto).ir_version == 8


def test_normalize_ir_version_of_new_types() -> None:
    proto = quantized_input()
    proto.graph.initializer.append(helper.make_tensor("packed", onnx.TensorProto.INT4, [2], [1, 2]))
    assert normalized(proto).ir_version == 10


@needs_models
@pytest.mark.parametrize("name", ["TFC_1W1A", "qkeras_jettagging", "cnv_1w1a"])
def test_normalize_real_files(name: str) -> None:
    from places import MODELS

    result = read(MODELS / f"{name}.onnx")
    Normalize()(result)
    onnx.checker.check_model(ir.to_proto(result))
    assert DOMAIN in result.graph.opset_imports
    assert len(result.graph.inputs) == 1


def dynamic_quantize(dst: str, declared: int | None) -> onnx.ModelProto:
    node = helper.make_node(
        "DynamicQuantize", ["x", "scales"], ["y"], domain="anybit", dst=dst, name="q"
    )
    made = model([node], {"scales": np.float32([0.5])}, opsets={"anybit": 1})
    if declared is None:
        made.graph.output[0].ClearField("type")
    else:
        made.graph.output[0].type.tensor_type.elem_type = declared
    return made


@pytest.mark.parametrize(("dst", "intended"), [("s8", ir.DataType.INT8), ("u8", ir.DataType.UINT8)])
@pytest.mark.parametrize("declared", [True, False])
def test_normalize_result_type_follows_the_attribute(
    dst: str, intended: ir.DataType, declared: bool
) -> None:
    arguments = ir.serde.deserialize_model(
        dynamic_quantize(dst, intended.value if declared else None)
    )
    assert Normalize()(arguments).model.graph.outputs[0].dtype == intended


def test_normalize_contradicting_result_type() -> None:
    arguments = ir.serde.deserialize_model(dynamic_quantize("s8", onnx.TensorProto.UINT8))
    with pytest.raises(ModelError, match=r"'q' \(DynamicQuantize\).*INT8.*UINT8"):
        Normalize()(arguments)


@pytest.mark.parametrize("shape", [None, [], [2, 3], ["rows", 3]])
def test_normalize_result_type_reaches_the_runtime(shape: list[int | str] | None) -> None:
    """Declare types that the runtime cannot derive for an unknown or zero rank."""
    cast = helper.make_node("Cast", ["q"], ["y"], to=onnx.TensorProto.FLOAT)
    made = dynamic_quantize("u8", None)
    made.graph.node[0].output[0] = "q"
    made.graph.node.append(cast)
    floats = onnx.TensorProto.FLOAT
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", floats, shape))
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", floats, None))
    x = np.ones(() if shape == [] else (2, 3), np.float32)
    (y,) = session(made).run(None, {"x": x})
    np.testing.assert_array_equal(y, 2 * x)
