# SPDX-License-Identifier: Apache-2.0
"""`onnx.reference.ReferenceEvaluator` with our operators computes what their functions compute."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import ort_backend
import pytest
from backends import OPERATORS
from cases import OPERATORS as CASE_TABLES
from cases import assert_same_bits, every_case, expected_result
from onnx.reference import ReferenceEvaluator
from places import MODELS, needs_models
from small_models import DOMAIN, model, node, quantized_input

import anybit
from anybit.errors import ModelError
from anybit.onnx import reference_ops
from anybit.onnx.operators.registry import CANONICAL_DOMAINS, find_versions

X = np.array([[0.3, -0.8, 1.2, 99]], np.float32)
QUANTIZED = [[0.5, -1.0, 1.0, 3.5]]
TRUNC_5 = "x scale zeropt bits bits"
TRUNC_6 = "x scale zeropt bits scale bits"
CONSTANTS = {"scale": 0.5, "zeropt": 0, "bits": 4}


def run(proto: onnx.ModelProto, feeds: Mapping[str, Any] | None = None) -> Any:
    return ReferenceEvaluator(proto, new_ops=reference_ops()).run(None, feeds or {"x": X})[0]


def evaluate(operator: str, *inputs: Any, **attributes: Any) -> Any:
    """Build a model of one node whose inputs are model inputs."""
    declared = OPERATORS[operator]
    values = [
        value if value is None else ort_backend.as_tensor(value, described)
        for value, described in zip(inputs[1:], declared.inputs[1:], strict=False)
    ]
    values.insert(0, np.asarray(inputs[0]))
    feeds = {f"input_{place}": value for place, value in enumerate(values) if value is not None}
    names = ["" if value is None else f"input_{place}" for place, value in enumerate(values)]
    file = ort_backend.model(
        [ort_backend.node(declared, names, ["y"], **attributes)],
        {name: (value.dtype, value.shape) for name, value in feeds.items()},
        {"y": (None, None)},
        {},
    )
    return run(onnx.load_model_from_string(file), feeds)


@pytest.mark.parametrize("operator", CASE_TABLES)
def test_reference_ops_case_tables(operator: str) -> None:
    faults = []
    for name, case in every_case():
        if name == operator and case.raises is None:
            try:
                actual = evaluate(operator, *case.inputs, **case.attributes)
                assert_same_bits(actual, expected_result(operator, case), case)
            except Exception as error:
                faults.append(f"{case.name}: {error}")
    assert not faults, "\n".join(faults[:20])


# Names and attributes as files have them


@pytest.mark.parametrize("domain", [DOMAIN, *CANONICAL_DOMAINS])
@pytest.mark.parametrize("name", ["Quant", "IntQuant"])
def test_reference_ops_names(domain: str, name: str) -> None:
    nodes = [node(name, "x scale zeropt bits", domain=domain)]
    assert run(model(nodes, CONSTANTS, opsets={domain: 1})).tolist() == QUANTIZED


@pytest.mark.parametrize("name", ["Trunc", "TruncQuant"])
@pytest.mark.parametrize("declared", [1, 2])
def test_reference_ops_versions_are_reported_apart_by_their_inputs(
    name: str, declared: int
) -> None:
    for inputs, function, arguments in (
        (TRUNC_5, anybit.trunc_v1, (0.5, 0, 4, 4)),
        (TRUNC_6, anybit.trunc, (0.5, 0, 4, 0.5, 4)),
    ):
        result = run(model([node(name, inputs)], CONSTANTS, opsets={DOMAIN: declared}))
        assert result.tolist() == function(X, *arguments).tolist()


@pytest.mark.parametrize("mode", ["FLOOR", "floor"])
def test_reference_ops_rounding_mode(mode: str) -> None:
    assert run(quantized_input(rounding_mode=mode)).tolist() == [[0.0, -1.0, 1.0, 3.5]]


def test_reference_ops_integers_are_booleans() -> None:
    result = run(quantized_input(signed=0, narrow=1))
    assert result.tolist() == anybit.int_quant(X, 0.5, 0, 4, signed=False, narrow=True).tolist()


@pytest.mark.parametrize("name", ["has_infinity", "has_inf", "an_attribute_of_another_tool"])
def test_reference_ops_attribute_names(name: str) -> None:
    constants = {"scale": 1, "e": 2, "m": 1, "bias": 1}
    result = run(model([node("FloatQuant", "x scale e m bias", **{name: 1})], constants))
    assert result.tolist() == [[0.5, -1.0, 1.0, 6.0]]


def test_reference_ops_omitted_inputs() -> None:
    """Accept missing and unnamed optional inputs."""
    constants = {"scale": 1, "e": 2, "m": 1, "bias": 1}
    proto = model([node("FloatQuant", "x scale e m bias")], constants)
    proto.graph.node[0].input.append("")
    assert run(proto).tolist() == [[0.5, -1.0, 1.0, 6.0]]


def test_reference_ops_type_of_the_result() -> None:
    for dst, expected in (("s8", np.int8), ("u8", np.uint8)):
        nodes = [node("DynamicQuantize", "x scale", domain="anybit", dst=dst)]
        proto = model(nodes, {"scale": np.float32([0.5])}, opsets={"anybit": 1})
        assert run(proto).dtype == expected


def test_reference_ops_copying_function_of_an_exporter_is_not_used() -> None:
    proto = quantized_input()
    body = onnx.helper.make_node("Identity", ["x"], ["y"])
    names = list(proto.graph.node[0].input)
    proto.functions.append(
        onnx.helper.make_function(DOMAIN, "Quant", names, ["y"], [body], proto.opset_import)
    )
    proto.functions[0].node[0].input[0] = names[0]
    assert run(proto).tolist() == QUANTIZED


def test_reference_ops_attribute_of_a_function() -> None:
    body = node("Quant", "x scale zeropt bits")
    body.attribute.append(
        onnx.AttributeProto(
            name="rounding_mode", type=onnx.AttributeProto.STRING, ref_attr_name="mode"
        )
    )
    imports = [onnx.helper.make_opsetid(DOMAIN, 1)]
    inputs = ["x", "scale", "zeropt", "bits"]
    function = onnx.helper.make_function("local", "Round", inputs, ["y"], [body], imports, ["mode"])
    call = node("Round", "x scale zeropt bits", domain="local", mode="FLOOR")
    proto = model([call], CONSTANTS, opsets={"local": 1})
    proto.functions.append(function)
    operators = reference_ops()
    evaluator = ReferenceEvaluator(function, new_ops=operators)
    feeds = dict(zip(inputs, (X, *map(np.float32, CONSTANTS.values())), strict=True))
    result = evaluator.run(None, feeds, attributes={"mode": "FLOOR"})[0]
    assert result.tolist() == [[0.0, -1.0, 1.0, 3.5]]


# What is refused


def test_reference_ops_number_of_inputs() -> None:
    with pytest.raises(ModelError, match=r"the_Quant.*must have 4 inputs, got 3"):
        run(model([node("Quant", "x scale zeropt")], CONSTANTS))


@pytest.mark.parametrize(
    ("options", "pattern"),
    [({"bitwidth": 2.5}, r"the_Quant.*2\.5"), ({"rounding_mode": "DPU"}, "the_Quant.*DPU")],
    ids=["width", "mode"],
)
def test_reference_ops_refused_values_name_the_node(options: dict[str, Any], pattern: str) -> None:
    with pytest.raises(ModelError, match=pattern):
        run(quantized_input(**options))


# As a part of the package


def test_reference_ops_list_is_the_callers() -> None:
    before = reference_ops()
    reference_ops().clear()
    assert reference_ops() == before


def test_reference_ops_import_is_lazy() -> None:
    code = "import sys, anybit.onnx; sys.exit('onnx.reference' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_reference_ops_with_and_without_schemas() -> None:
    """Ignore defaults of schemas, which the evaluator copies on import."""
    step = """
import numpy as np, onnx.reference
proto = onnx.parser.parse_model('''
    <ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
    graph (float[n] x, float a, int64 b) => (float[n] y) {
        y = qonnx.custom_op.general.FloatQuant <has_inf = 1> (x, a, b, a, a)
    }
''')
evaluator = onnx.reference.ReferenceEvaluator(proto, new_ops=anybit.onnx.reference_ops())
feeds = {"x": np.float32([0.9, 9]), "a": np.float32(1), "b": np.array(2)}
print(evaluator.run(None, feeds)[0].tolist())
"""
    for before in ("import anybit.onnx", "import anybit.onnx; anybit.onnx.register()"):
        done = subprocess.run(
            [sys.executable, "-c", before + step], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("[1.0, 6.0]\n", "")


@needs_models
@pytest.mark.parametrize("name", ["TFC_1W1A", "TFC_2W2A", "qkeras_jettagging"])
def test_reference_ops_models_as_they_are(name: str) -> None:
    """Legacy domains and names. What other operators compute is their own business."""
    proto = onnx.load(MODELS / f"{name}.onnx")
    ours = [item for item in proto.graph.node if find_versions(item.domain, item.op_type)]
    proto.opset_import.append(onnx.helper.make_opsetid(ours[0].domain, 1))
    with np.load(MODELS / f"{name}.npz") as arrays:
        feeds = {proto.graph.input[0].name: arrays["x"][:1]}
    evaluator = ReferenceEvaluator(proto, new_ops=reference_ops())
    results = evaluator.run(None, feeds, intermediate=True)
    for our in ours:
        (operator,) = find_versions(our.domain, our.op_type)
        keywords = {item.name: onnx.helper.get_attribute_value(item) for item in our.attribute}
        if "rounding_mode" in keywords:
            keywords["rounding_mode"] = keywords["rounding_mode"].decode()
        expected = operator.function(*(results[value] for value in our.input), **keywords)
        assert results[our.output[0]].tobytes() == expected.tobytes(), our.name
