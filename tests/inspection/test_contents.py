# SPDX-License-Identifier: Apache-2.0
"""The summary of a model: operators, quantizers, weights and types."""

from typing import Any

import numpy as np
import onnx
import pytest
from nbits_models import NBits
from small_models import array, model, node, quantized_input, quantized_weight

import anybit
from anybit.errors import ModelError
from anybit.inspection import text
from anybit.onnx.summary import ModelSummary


def summary(source: Any) -> ModelSummary:
    contents = anybit.inspect(source, layers=False).summary
    assert contents is not None
    return contents


@pytest.mark.parametrize("style", ["qdq", "qcdq"])
def test_summary_lists_qdq_pairs_as_quantizers(style: str) -> None:
    proto, _ = quantized_weight()
    proto.graph.node.append(node("Quant", "y scale zeropt bitwidth", "out", name="last"))
    proto.graph.output[0].name = "out"
    contents = summary(anybit.convert(proto, to=style).model)
    assert [item.operator for item in contents.quantizers] == ["QDQ", "QDQ"]
    weight, activation = contents.quantizers
    assert (weight.role, weight.constant, weight.shape) == ("weight", True, "[4, 3]")
    assert (activation.role, activation.constant) == ("activation", False)
    assert (activation.bits, activation.codes, activation.type) == ("3", "-4..3", "int8")
    assert activation.scale is not None
    assert (activation.scale.smallest, activation.scale.granularity) == (0.25, "per-tensor")
    rows = text.make_quantizer_rows(contents.quantizers)
    assert [row["of"] for row in rows] == ["weight*", "activation"]
    (note,) = text.make_quantizer_notes(contents)
    assert note.startswith("0 of 2 quantizers run as nodes of the operator library; 1 are folded")


def test_summary_counts_constant_nodes() -> None:
    weight = np.ones((256, 4), np.float32)
    held = onnx.helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(weight))
    proto = model([held, node("MatMul", "w x", domain="")], inputs={"x": [4, 2]})
    contents = summary(proto)
    assert contents.constant_bytes == weight.nbytes
    assert (contents.parameters, contents.weights) == (1024, {"w": "float32[256, 4]"})
    assert contents.operators == {"Constant": 1, "MatMul": 1}


def test_parameters_exclude_scales_shapes_and_scalars() -> None:
    proto, weight = quantized_weight()
    nodes = [
        node("Mul", "y half", "scaled", domain=""),
        node("Reshape", "scaled shape", "flat", domain=""),
    ]
    proto.graph.node.extend(nodes)
    proto.graph.output[0].name = "flat"
    for name, values in {"half": array(0.5), "shape": np.array([-1])}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    contents = summary(proto)
    assert (contents.parameters, list(contents.weights)) == (weight.size, ["weight"])


def test_parameters_include_stored_codes() -> None:
    proto, weight = quantized_weight()
    assert summary(anybit.convert(proto, to="qdq").model).parameters == weight.size


def test_shapes_have_one_spelling() -> None:
    proto = quantized_input()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    assert summary(proto).inputs == {"x": "float32[rows, 4]"}
    assert [str(item) for item in anybit.load(proto).inputs] == ["x: float32[rows, 4]"]


@pytest.mark.parametrize(
    ("nodes", "constants", "bits", "codes"),
    [
        (node("BipolarQuant", "x s"), {"s": 1}, "1", "-1, 1"),
        (node("Quant", "x s z b"), {"s": 1, "z": 0, "b": array([2, 3, 4, 8])}, "2..8", ""),
        (node("DynamicQuantize", "x s", domain="anybit", dst="u8"), {"s": array([1])}, "8", ""),
        (
            node("FloatQuant", "x s e m b"),
            {"s": 1, "e": array([4, 5, 4, 4]), "m": 3, "b": 7},
            "e4..5 m3",
            "",
        ),
    ],
    ids=["sign", "per-channel", "integers", "floats-per-channel"],
)
def test_quantizers_report_bits(
    nodes: Any, constants: dict[str, Any], bits: str, codes: str
) -> None:
    opsets = {nodes.domain: 1}
    proto = model([nodes], constants, opsets=opsets)
    proto.graph.output[0].ClearField("type")  # that of DynamicQuantize follows from its attributes
    (contents,) = summary(proto).quantizers
    assert (contents.bits, contents.codes) == (bits, codes)


def test_computed_bits_are_unknown() -> None:
    inputs = {"x": [1, 4], "b": []}
    proto = model([node("Quant", "x s z b")], {"s": 1, "z": 0}, inputs=inputs)
    (contents,) = summary(proto).quantizers
    assert (contents.bits, contents.codes) == ("?", "")
    assert contents.parameters["bitwidth"].granularity == "computed"


def test_quantizer_json_has_parameters_and_attributes() -> None:
    nodes = [
        node("FloatQuant", "x scale four three seven", "t", rounding_mode="floor"),
        node("Trunc", "t scale seven eight one four"),
    ]
    constants_ = {
        "scale": np.array([1, 2, 3, np.inf], np.float32),
        "one": 1,
        "three": 3,
        "four": 4,
        "seven": 7,
        "eight": np.array(8),
    }
    contents = anybit.inspect(model(nodes, constants_, opsets={}), layers=False).to_json()[
        "summary"
    ]
    assert contents["opsets"] == {"": 13}
    first, second = contents["quantizers"]
    assert (first["role"], first["bits"], first["constant"]) == ("input", "8", False)
    assert first["codes"] == "float8_e4m3 to 480"
    assert first["attributes"]["rounding_mode"] == "FLOOR"
    scale = {"granularity": "per-channel", "axis": -1, "smallest": 1, "largest": None}
    assert first["parameters"]["scale"] == first["scale"] == scale
    assert (second["version"], second["bits"], second["role"]) == (2, "4", "activation")
    assert second["codes"] == "-8..7"


def test_quantizers_of_one_kind_share_a_row() -> None:
    nodes = [node("Quant", f"x s{at} z b", f"y{at}", name=f"q{at}") for at in range(3)]
    proto = model(
        nodes, {"s0": 0.5, "s1": 0.25, "s2": 2.0, "z": 0, "b": 4}, outputs=["y0", "y1", "y2"]
    )
    (row,) = text.make_quantizer_rows(summary(proto).quantizers)
    assert (row["quantizers"], row["bits"], row["scales"]) == ("3 IntQuant", "4", "0.25..2")
    (line,) = [line for line in str(anybit.inspect(proto)).splitlines() if "3 IntQuant" in line]
    assert line.split() == [
        "3",
        "IntQuant",
        "input",
        "4",
        "-8..7",
        "0.25..2",
        "tensor",
        "0",
        "ROUND",
    ]


def test_notes_name_operators_on_codes_and_their_remedy() -> None:
    first, *weights = text.make_quantizer_notes(summary(NBits().model()))
    assert first == (
        "No quantizers, but operators on codes (1 com.microsoft::MatMulNBits); anybit convert "
        "--to qonnx replaces those that it can. The weights:"
    )
    assert weights


def test_notes_list_the_weights_of_a_float_model() -> None:
    weights = {f"w{place}": np.ones((4, 4), np.float32) for place in range(14)}
    names = ["x", *(f"h{place}" for place in range(13)), "y"]
    nodes = [
        node("MatMul", f"{names[place]} w{place}", names[place + 1], domain="")
        for place in range(14)
    ]
    notes = text.make_quantizer_notes(summary(model(nodes, weights)))
    assert notes[:2] == ["No quantizers. The weights:", "  w0: float32[4, 4]"]
    assert notes[-1] == "  and 2 more (--json has all)"


def test_text_as_a_scale_is_refused() -> None:
    with pytest.raises(ModelError, match="must hold numbers to quantize with"):
        anybit.inspect(model([node("Quant", "x s z b")], {"s": np.array(["a"]), "z": 0, "b": 4}))


def test_inspect_does_not_change_its_source() -> None:
    proto, _ = quantized_weight()
    before = proto.SerializeToString()
    anybit.inspect(proto, np.ones((1, 4), np.float32))
    assert proto.SerializeToString() == before
