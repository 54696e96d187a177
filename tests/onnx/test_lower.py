# SPDX-License-Identifier: Apache-2.0
"""Expansions into standard nodes: form and errors. test_forms has the values."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from small_models import kinds, model, node, quantized_input

import anybit
from anybit.errors import ModelError
from anybit.onnx.passes import AddFunctions, Lower, Normalize
from anybit.onnx.passes.add_functions import find_function_opset


def lowered(proto: onnx.ModelProto) -> ir.Model:
    made = ir.from_proto(proto)
    Normalize()(made)
    Lower()(made)
    return made


def test_lower_usual_quantizer_is_short() -> None:
    assert kinds(lowered(quantized_input())) == [
        *("Div", "Greater", "Where", "Less", "Where", "Round", "Mul")
    ]


def test_lower_neutral_parameters_leave_no_nodes() -> None:
    nodes = kinds(lowered(quantized_input(scale=1, zeropt=-0.0)))
    assert not {"Div", "Add", "Sub", "Mul"} & set(nodes)


def test_lower_neutral_array_that_returns_the_shape_stays() -> None:
    made = lowered(quantized_input(scale=np.ones((1, 4), np.float32)))
    assert kinds(made)[0] == "Greater"  # x has that shape already


def test_lower_tensors_keep_their_names_and_nodes_get_names_of_their_own() -> None:
    constants = {"s": 0.5, "z": 1, "b": 4}
    nodes = [
        node("Quant", "x s z b", "q", name="q/Div"),
        node("Quant", "q s z b", "q/Div_2", name=""),
        node("Identity", "q/Div_2", "y", domain="", name="q/Round"),
    ]
    made = lowered(model(nodes, constants))
    names = [item.name for item in made.graph]
    assert len(set(names)) == len(names)
    assert made.graph.outputs[0].name == "y"
    produced = [value.name for item in made.graph for value in item.outputs]
    assert {"q", "q/Div_2", "y"} <= set(produced)
    assert len(set(produced)) == len(produced)


def test_lower_equal_constants_are_one_initializer() -> None:
    constants = {"s": 0.5, "z": 0, "b": 4}
    nodes = [node("Quant", "x s z b", "q", name="1"), node("Quant", "q s z b", name="2")]
    made = lowered(model(nodes, constants))
    written = [value for value in made.graph.initializers.values() if value.name not in constants]
    contents = [value.const_value.numpy().tobytes() for value in written]
    assert len(set(contents)) == len(contents)


def test_lower_operator_that_copies_its_input_leaves_a_node_for_the_name() -> None:
    # A bipolar quantizer of a constant is a constant with the name of the output.
    made = lowered(model([node("BipolarQuant", "c s")], {"c": 3, "s": 0.5}, inputs={}))
    assert kinds(made) == ["Identity"]
    assert made.graph.outputs[0].name == "y"


def test_lower_quantizers_in_branches() -> None:
    branch = helper.make_graph(
        [node("Quant", "x s z b", "inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["negative"])],
        "other",
        [],
        [helper.make_tensor_value_info("negative", onnx.TensorProto.FLOAT, None)],
    )
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
    constants = {"s": 0.5, "z": 0, "b": 3, "c": np.array(True)}
    proto = model([choice], constants)
    x = np.float32([[0.3, 0.8, 5, -5]])
    y = anybit.convert(proto, to="standard").model
    np.testing.assert_array_equal(anybit.load(y).run(x)["y"], anybit.int_quant(x, 0.5, 0, 3))


def refused(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        lowered(proto)


def test_lower_bad_parameters_are_refused_as_the_operator_does() -> None:
    refused(quantized_input(bitwidth=2.5), r"the_Quant.*bitwidth must be an integer >= 1, got 2\.5")
    refused(quantized_input(scale=np.ones(3, np.float32)), r"scale of shape \(3,\) does not broad")
    refused(quantized_input(rounding_mode="UPWARD"), "rounding_mode must be one of")


def test_lower_unknown_type_is_refused() -> None:
    proto = quantized_input()
    proto.graph.node[0].input[0] = "unknown"
    proto.graph.node.insert(0, helper.make_node("Neg", ["x"], ["unknown"]))
    refused(proto, "the type of 'unknown' is not known; declare it in the model")


def test_lower_unknown_rank_is_refused_where_it_matters() -> None:
    quantize = helper.make_node("DynamicQuantize", ["x", "s"], ["y"], "dq", domain="anybit")
    per_channel = helper.make_node(
        *("DynamicQuantize", ["x", "s"], ["y"], "dq"), domain="anybit", qtype="per_channel"
    )
    for made, is_refused in ((quantize, False), (per_channel, True)):
        proto = model([made], {"s": np.ones(1, np.float32)}, opsets={"anybit": 1})
        proto.graph.input[0].type.tensor_type.ClearField("shape")
        proto.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="y"))
        if is_refused:
            refused(proto, "the rank of a tensor is not known; infer shapes first")
        else:
            assert lowered(proto)


def functions(attributes: list[dict[str, Any]]) -> tuple[ir.Model, dict[str, str]]:
    constants = {"s": 0.5, "z": 0, "b": 4}
    places = ["x", *(f"t{index}" for index in range(len(attributes) - 1)), "y"]
    nodes = [
        node("Quant", f"{before} s z b", after, name=after, **item)
        for before, after, item in zip(places, places[1:], attributes, strict=False)
    ]
    made = ir.from_proto(model(nodes, constants))
    Normalize()(made)
    for item in made.graph:
        item.outputs[0].dtype = ir.DataType.FLOAT
    return made, AddFunctions()(made).left


def test_lower_one_set_of_attributes_needs_no_branch() -> None:
    made, left = functions([{}, {}])
    (function,) = made.functions.values()
    assert "If" not in [inner.op_type for inner in function]
    assert find_function_opset(made) == 15
    assert not left


def test_lower_one_branch_per_further_set_of_attributes() -> None:
    made, _ = functions([{}, {"signed": 0}, {"rounding_mode": "CEIL"}, {}])
    (function,) = made.functions.values()
    everything = [item.op_type for item in ir.traversal.RecursiveGraphIterator(function.graph)]
    assert everything.count("If") == 2
    assert find_function_opset(made) == 19  # the modes are compared as strings


def test_lower_large_constants_of_functions_stand_outside_of_branches() -> None:
    """ONNX Runtime 1.24 to 1.26 fail otherwise."""
    made, _ = functions([{}, {"signed": 0}])
    (function,) = made.functions.values()
    for item in function:
        for attribute in item.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                assert "Constant" not in [inner.op_type for inner in attribute.as_graph()]
