# SPDX-License-Identifier: Apache-2.0
"""Schemas of the operators, and shape inference with them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from backends import OPERATORS
from onnx import TensorProto, helper
from small_models import DOMAIN, model, node

from anybit.onnx import register
from anybit.onnx.operators.registry import CANONICAL_DOMAINS, find_versions
from anybit.ops import Operator

NAMES = [
    pytest.param(operator, name, id=f"{name}-{operator.version}")
    for operator in OPERATORS.values()
    for name in (operator.onnx_name, *operator.onnx_aliases)
]
every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda item: item.name)


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


def schema(operator: Operator, name: str, version: int | None = None) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(name, version or operator.version, operator.onnx_domain)


def one_node(
    operator: Operator,
    shape: Any = ("rows", 4),
    element: int | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """Build a model whose inputs are those of an operator; the output has no type."""
    names = [declared.name for declared in operator.inputs]
    kinds = [declared.domain.dtypes[:1] for declared in operator.inputs]
    elements = [*(TensorProto.INT8 if "int8" in kind else 1 for kind in kinds)]
    elements[0] = element or elements[0]
    graph = helper.make_graph(
        [
            helper.make_node(
                operator.onnx_name, names, ["y"], domain=operator.onnx_domain, **attributes
            )
        ],
        "graph",
        [
            helper.make_tensor_value_info(name, kind, shape if place == 0 else [1])
            for place, (name, kind) in enumerate(zip(names, elements, strict=True))
        ],
        [onnx.ValueInfoProto(name="y")],
    )
    imports = {"": 17, operator.onnx_domain: operator.version}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*opset) for opset in imports.items()],
        ir_version=8,
    )


def tensor(name: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def inferred(proto: onnx.ModelProto, **options: Any) -> onnx.TypeProto.Tensor:
    """Return the type of the first output."""
    options = {"check_type": True, "strict_mode": True, "data_prop": True, **options}
    result = onnx.shape_inference.infer_shapes(proto, **options)
    return result.graph.output[0].type.tensor_type


def dims(actual: onnx.TypeProto.Tensor) -> list[int | str] | None:
    if not actual.HasField("shape"):
        return None
    return [
        dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "")
        for dim in actual.shape.dim
    ]


# What a schema says


@pytest.mark.parametrize(("operator", "name"), NAMES)
def test_schemas_declaration(operator: Operator, name: str) -> None:
    actual = schema(operator, name)
    assert actual.since_version == operator.version
    assert (actual.min_input, actual.max_input) == (operator.required_inputs, len(operator.inputs))
    assert [value.name for value in actual.inputs] == [value.name for value in operator.inputs]
    defaults = {
        key: helper.get_attribute_value(item.default_value)
        for key, item in actual.attributes.items()
    }
    assert defaults == {
        attribute.onnx_name: attribute.default.encode()
        if isinstance(attribute.default, str)
        else attribute.default
        for attribute in operator.attributes
    }
    assert not any(attribute.required for attribute in actual.attributes.values())
    assert len({value.type_str for value in actual.inputs}) == len(actual.inputs)


@pytest.mark.parametrize(("operator", "name"), NAMES)
def test_schemas_documentation(operator: Operator, name: str) -> None:
    actual = schema(operator, name)
    summary = (operator.function.__doc__ or "").partition("\n")[0]
    assert summary in actual.doc
    assert operator.onnx_name in actual.doc
    assert "Args:" not in actual.doc
    assert ">>>" not in actual.doc
    assert f"Legacy name of {operator.onnx_name}" in actual.doc or name == operator.onnx_name
    for value in (*actual.inputs, *actual.outputs, *actual.attributes.values()):
        assert value.description


def test_schemas_types() -> None:
    actual = {
        value.name: value.types for value in schema(OPERATORS["int_quant"], "IntQuant").inputs
    }
    assert actual["x"] == {f"tensor({kind})" for kind in ("float", "double", "float16", "bfloat16")}
    assert {"tensor(int64)", "tensor(float)", "tensor(uint8)"} < actual["zeropt"]
    actual = {
        value.name: value.types
        for value in schema(OPERATORS["dynamic_quantize"], "DynamicQuantize").inputs
    }
    assert actual["scales"] == {"tensor(float)"}
    assert actual["zps"] == {"tensor(int8)", "tensor(uint8)", "tensor(int32)"}


@every_operator
@pytest.mark.parametrize("imported", [1, 2, 3])
def test_schemas_each_imported_version_has_its_schema(operator: Operator, imported: int) -> None:
    versions = find_versions(operator.onnx_domain, operator.onnx_name)
    intended = max(version.version for version in versions if version.version <= imported)
    assert schema(operator, operator.onnx_name, imported).since_version == intended


def test_schemas_canonical_domains_only() -> None:
    """Register names in one domain only: two would break `import onnx.reference`."""
    domains = {item.domain for item in onnx.defs.get_all_schemas_with_history()}
    assert {operator.onnx_domain for operator in OPERATORS.values()} < domains
    assert not domains & CANONICAL_DOMAINS.keys()


# What shape inference finds


@every_operator
@pytest.mark.parametrize(
    "shape", [[2, 3], [], [0], ["rows", 3], [None, 3], ["rows", "columns", 7, 1], None], ids=str
)
def test_schemas_result_has_the_shape_of_x(operator: Operator, shape: Any) -> None:
    """Unknown sizes stay unknown, and so does an unknown rank."""
    actual = inferred(one_node(operator, shape))
    # onnx gives sizes without a name one of its own.
    assert dims(actual) == (shape and ["unk__0" if size is None else size for size in shape])
    result_dtype = operator.result_dtype
    dtype = "float32" if result_dtype is None else result_dtype(operator.complete({}))
    assert actual.elem_type == helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@pytest.mark.parametrize("element", [1, 10, 11, 16], ids=helper.tensor_dtype_to_string)
def test_schemas_result_has_the_type_of_x(element: int) -> None:
    for operator in OPERATORS.values():
        if operator.result_dtype is None:
            assert inferred(one_node(operator, element=element)).elem_type == element


@pytest.mark.parametrize(("dst", "expected"), [("s8", TensorProto.INT8), ("u8", TensorProto.UINT8)])
@pytest.mark.parametrize("shape", [["rows", 3], None], ids=str)
def test_schemas_result_has_the_type_of_an_attribute(dst: str, expected: int, shape: Any) -> None:
    actual = inferred(one_node(OPERATORS["dynamic_quantize"], shape, dst=dst))
    assert (actual.elem_type, dims(actual)) == (expected, shape)


def test_schemas_chain_is_typed_to_its_end() -> None:
    """Without schemas no shape after the first node is known."""
    weight = np.ones((4, 5), np.float32)
    constants = {"scale": 1, "zeropt": np.array(0), "bits": np.array(4, np.uint8), "w": weight}
    nodes = [
        node("IntQuant", "x scale zeropt bits", "a"),
        node("MatMul", "a w", "b", domain=""),
        node("BipolarQuant", "b scale", "c"),
        node("Relu", "c", "y", domain=""),
    ]
    proto = model(nodes, constants, inputs={"x": ["rows", 4]})
    assert dims(inferred(proto)) == ["rows", 5]


def test_schemas_contradictions_are_found() -> None:
    proto = one_node(OPERATORS["int_quant"])
    proto.graph.output[0].CopyFrom(tensor("y", ["rows", 5]))
    with pytest.raises(onnx.shape_inference.InferenceError, match=r"4.*5|5.*4"):
        inferred(proto)


@pytest.mark.parametrize("dst", ["s4", "", b"\xff", 7, ["s8"]], ids=str)
def test_schemas_bad_attributes_leave_the_type_open(dst: Any) -> None:
    """Inference never raises: an exception would pass through even where errors are tolerated."""
    proto = one_node(OPERATORS["dynamic_quantize"], dst=dst)
    assert inferred(proto, check_type=False, strict_mode=False).elem_type == 0


@every_operator
def test_schemas_missing_inputs_and_types(operator: Operator) -> None:
    for kept in range(len(operator.inputs)):
        proto = one_node(operator)
        del proto.graph.node[0].input[kept:], proto.graph.input[kept:]
        inferred(proto, check_type=False, strict_mode=False)
    proto = one_node(operator)
    proto.graph.input[0].type.Clear()
    actual = inferred(proto, check_type=False, strict_mode=False)
    assert dims(actual) is None
    proto = one_node(operator)
    proto.graph.input[0].type.CopyFrom(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [3]))
    )
    inferred(proto, check_type=False, strict_mode=False)


def test_schemas_attribute_of_a_function() -> None:
    """Leave the type in the body of a function to its caller."""
    body = helper.make_node("DynamicQuantize", ["src", "scales"], ["y"], domain="anybit")
    body.attribute.append(
        onnx.AttributeProto(name="dst", type=onnx.AttributeProto.STRING, ref_attr_name="kind")
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("anybit", 1)]
    function = helper.make_function(
        "local", "Quantized", ["src", "scales"], ["y"], [body], imports, ["kind"]
    )
    proto = one_node(OPERATORS["dynamic_quantize"])
    call = helper.make_node("Quantized", ["src", "scales"], ["y"], domain="local", kind="u8")
    proto.graph.node[0].CopyFrom(call)
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    assert inferred(proto).elem_type == TensorProto.UINT8


@pytest.mark.parametrize("operator", find_versions(DOMAIN, "Trunc"), ids=lambda item: item.name)
def test_schemas_checker_knows_both_versions(operator: Operator) -> None:
    proto = one_node(operator)
    proto.graph.output[0].CopyFrom(tensor("y", ["rows", 4]))
    onnx.checker.check_model(proto, full_check=True, check_custom_domain=True)
    proto.opset_import[1].version = 3 - operator.version
    with pytest.raises(onnx.checker.ValidationError, match="input size"):
        onnx.checker.check_model(proto, full_check=True, check_custom_domain=True)
