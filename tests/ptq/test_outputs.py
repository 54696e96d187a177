# SPDX-License-Identifier: Apache-2.0
"""Quantizers at the outputs of a model."""

import numpy as np
import onnx
import parallel_tasks
import pytest
from onnx import numpy_helper
from pass_checks import random
from small_models import model, node

import anybit
from anybit import OptionError, QuantizationResult
from anybit.onnx.graph.constants import read_array
from anybit.ptq import pipeline

HEADS = """<ir_version: 8, opset_import: ["": 17]>
heads (float[N, 8] x) =>
  (float[N, 6] hidden, float[N, 1, 4] y, float[N, 8] x, int64[N] label, float[2] c)
<float[2] c = {1, 2}, int64[3] shape = {0, 1, 4}> {
  first = MatMul(x, w)
  hidden = Relu(first)
  scores = MatMul(hidden, v)
  label = ArgMax<axis = 1, keepdims = 0>(scores)
  z = Tanh(scores)
  y = Reshape(z, shape)
}"""


def heads() -> onnx.ModelProto:
    """Return a model whose outputs are read inside, moved, integers, an input and a constant."""
    proto = onnx.parser.parse_model(HEADS)
    for name, shape in (("w", (8, 6)), ("v", (6, 4))):
        proto.graph.initializer.append(numpy_helper.from_array(random(*shape), name))
    return proto


def quantize(**options: str | bool) -> QuantizationResult:
    return anybit.quantize(heads(), random(120, 8), **{"outputs": "int8", **options})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"integer_only": True},
        {"sensitivity": True},
        {"effort": "fast"},
        {"budget": "60%bops"},
        {"scales": "power-of-two"},
        {"layers": {"*": "int4/uint6"}},
    ],
    ids=str,
)
def test_float_outputs_get_quantizers_and_keep_their_names(options: dict[str, str | bool]) -> None:
    result = quantize(**options)
    names = [value.name for value in result.model.graph.outputs]
    assert names == [output.name for output in heads().graph.output]
    rows = {layer.name: layer for layer in result.layers if layer.operator == "output"}
    assert [layer.activation_bits for layer in rows.values()] == [8, 8]
    assert rows["y_output"].activations.split()[0] == "int8"
    assert "Identity" not in [node.op_type for node in result.model.graph]
    y = anybit.load(result).run(random(40, 8, seed=3))
    assert len(np.unique(y["hidden"])) <= 256
    largest = max(np.unique(np.abs(y["y"])))
    steps = y["y"] / np.diff(np.unique(y["y"])).min()
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    assert 0 < largest < 1.05


def test_other_outputs_stay_with_remarks() -> None:
    remarks = [remark for remark in quantize().remarks if remark.startswith("output ")]
    assert remarks == [
        "output x is not quantized: it is an input of the model",
        "output label is not quantized: it is int64",
        "output c is not quantized: it is constant",
    ]
    assert not [row for row in anybit.quantize(heads(), random(40, 8)).layers if not row.weights]


def test_output_read_by_a_layer_shares_its_quantizer() -> None:
    result = quantize(activations="uint6")
    (hidden,) = [value for value in result.model.graph.outputs if value.name == "hidden"]
    assert [reader.op_type for reader, _ in hidden.uses()] == ["MatMul"]
    (remark,) = [remark for remark in result.remarks if "hidden_float" in remark]
    assert "gets int8, the widest" in remark


def test_integer_only_quantizes_before_data_movement_to_an_output() -> None:
    reshape = quantize(integer_only=True).model.graph.outputs[1].producer()
    assert reshape.op_type == "Reshape"
    quantizer = reshape.inputs[0].producer()
    assert (quantizer.op_type, quantizer.inputs[0].producer().op_type) == ("IntQuant", "Tanh")
    assert read_array(quantizer.inputs[1]).size == 1


def test_outputs_are_the_same_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [quantize(sensitivity=True)]
    monkeypatch.setattr(pipeline, "open_executor", parallel_tasks.open_pickling_executor)
    results.append(quantize(sensitivity=True))
    assert results[0].to_json() == results[1].to_json()


def test_standard_operators_compute_the_quantized_outputs() -> None:
    result, x = quantize(scales="power-of-two"), random(9, 8, seed=5)
    converted = anybit.convert(result, to="qdq")
    expected, actual = anybit.load(result).run(x), anybit.load(converted).run(x)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


@pytest.mark.parametrize("target", ["finn", "hls4ml"])
def test_targets_choose_the_sign_of_output_quantizers(target: str) -> None:
    rows = {row.name: row.activations.split()[0] for row in quantize(target=target).layers}
    assert (rows["hidden_output"], rows["y_output"]) == ("uint8", "int8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": "int99"}, "outputs='int99'"),
        ({"outputs": "int16", "integer_only": True}, "outputs='int16': .* must be integers"),
        ({"outputs": "mxfp8", "integer_only": True}, "outputs='mxfp8': .* must be integers"),
        ({"outputs": "int8", "data": None}, "outputs='int8' needs calibration data"),
    ],
)
def test_unsupported_output_formats_are_rejected(options: dict, message: str) -> None:
    arguments = {"data": random(40, 8), **options}
    with pytest.raises(OptionError, match=message):
        anybit.quantize(heads(), **arguments)


def test_outputs_in_blocks_are_quantized() -> None:
    result = quantize(outputs="mxfp8", layers={"*": "int8/uint8"})
    assert result.verdict.sqnr > 20


def test_model_without_float_outputs_is_rejected() -> None:
    nodes = [
        node("MatMul", "x w", "s", domain=""),
        node("ArgMax", "s", "y", domain="", axis=1, keepdims=0),
    ]
    proto = model(nodes, {"w": random(4, 3)}, inputs={"x": ["N", 4]})
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    with pytest.raises(OptionError, match=r"can be quantized: output y .* it is int64; leave out"):
        anybit.quantize(proto, random(40, 4), outputs="int8")
