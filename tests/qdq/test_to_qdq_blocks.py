# SPDX-License-Identifier: Apache-2.0
"""Constants in blocks become DequantizeLinear with block_size, and others codes and a table."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from block_models import WORDS, layers_of_all_kinds, output_weights
from float_models import attention
from onnx.reference import ReferenceEvaluator
from pass_checks import random
from small_models import kinds, model, node

import anybit
from anybit.onnx.graph.constants import read_array

NATIVE = ("mxfp8", "mxint8 floor", "int4 per-block 32", "uint4 per-block 16")


def plain(proto: onnx.ModelProto, level: str) -> dict[str, np.ndarray]:
    """Return the result of ONNX Runtime without the operator library."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    made = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return dict(
        zip([get_output.name for get_output in made.get_outputs()], made.run(None, {}), strict=True)
    )


def size(made: ir.Model) -> int:
    return len(ir.to_proto(made).SerializeToString())


@pytest.mark.parametrize("words", WORDS)
def test_to_qdq_blocks_keep_their_values(words: str) -> None:
    quantized = anybit.quantize(layers_of_all_kinds(), weights=words, activations="float").model
    expected = anybit.load(output_weights(quantized)).run({})
    converted = anybit.convert(quantized, to="qdq")
    assert converted.exact
    assert not {"IntQuant", "FloatQuant"} & set(kinds(converted.model))
    weights = output_weights(converted.model)
    proto = ir.to_proto(weights)
    runs = [plain(proto, level) for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")]
    runs.append(anybit.load(weights).run({}))
    if words.startswith("int"):  # ONNX's own evaluator has no other types in blocks
        runs.append(dict(zip(expected, ReferenceEvaluator(proto).run(None, {}), strict=True)))
    for actual in runs:
        assert actual.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(actual[name], array)
    x = random(2, 3, 6, 6)
    a, b = (anybit.load(item).run(x)["y"] for item in (quantized, converted.model))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("words", NATIVE)
def test_to_qdq_blocks_of_native_types(words: str) -> None:
    """Matrices are read by DequantizeLinear in their own shape, short last blocks included."""
    quantized = anybit.quantize(layers_of_all_kinds(), weights=words, activations="float").model
    made = anybit.convert(quantized, to="qdq").model
    for name, axis in (("middle", 0), ("head", 1), ("pointwise", 1), ("up", 0)):
        (layer,) = (item for item in made.graph if item.name == name)
        stored = layer.inputs[1].producer()
        if stored.op_type == "Min":
            stored = stored.inputs[0].producer()
        assert stored.op_type == "DequantizeLinear"
        codes, scale = (read_array(value) for value in stored.inputs[:2])
        if scale.ndim < 2:  # one block
            continue
        block = stored.attributes["block_size"].value
        assert stored.attributes["axis"].value == axis
        assert scale.shape[axis] == -(-codes.shape[axis] // block)
        assert codes.shape == tuple(layer.inputs[1].shape)


def test_to_qdq_default_options_keep_their_values() -> None:
    """Hide each DequantizeLinear by a Min from fusions of ONNX Runtime."""
    words = "int4 per-block 16"
    quantized = anybit.quantize(layers_of_all_kinds(), weights=words, activations="float").model
    (remark,) = anybit.convert(quantized, to="qdq").remarks
    assert "default options keep its values" in remark


@pytest.mark.parametrize(
    ("words", "most"), [("mxfp4", 0.16), ("nvfp4", 0.17), ("fp4_e2m1", 0.15), ("mxfp6", 0.29)]
)
def test_to_qdq_formats_without_native_type_are_small(words: str, most: float) -> None:
    floats = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(512, 128)},
        inputs={"x": ["rows", 512]},
    )
    quantized = anybit.quantize(floats, weights=words, activations="float").model
    converted = anybit.convert(quantized, to="qdq")
    assert size(converted.model) < most * len(floats.SerializeToString())
    (step,) = converted.steps
    assert "values stand in a table" in step.reason
    expected = anybit.load(output_weights(quantized)).run({})["head"]
    actual = plain(ir.to_proto(output_weights(converted.model)), "ORT_ENABLE_ALL")["head"]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("words", ["mxfp4", "nvfp4", "int4 per-block 8"])
def test_to_qdq_there_and_back(words: str) -> None:
    quantized = anybit.quantize(attention(), weights=words, activations="float").model
    there = anybit.convert(quantized, to="qdq").model
    back = anybit.convert(there, to="qonnx").model
    x = random(2, 5, 16)
    a, b, c = (anybit.load(item).run(x)["y"] for item in (quantized, there, back))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a, c)


def test_to_qdq_old_runtimes_get_floats_or_bytes() -> None:
    quantized = anybit.quantize(attention(), weights="int4 per-block 8", activations="float").model
    old = anybit.convert(quantized, to="qdq", opset_limit=20)
    assert "DequantizeLinear" not in kinds(old.model)
    assert {step.action for step in old.steps} == {"constant"}
    x = random(2, 5, 16)
    np.testing.assert_array_equal(
        anybit.load(old.model).run(x)["y"], anybit.load(quantized).run(x)["y"]
    )
    quantized = anybit.quantize(attention(), weights="mxfp4", activations="float").model
    old = anybit.convert(quantized, to="qdq", opset_limit=20)
    stored = {
        item.inputs[0].dtype for item in old.model.graph if item.op_type == "DequantizeLinear"
    }
    assert stored == {ir.DataType.UINT8}


def test_to_qdq_tables_give_the_type_that_the_quantizer_returns() -> None:
    format = ("exponent", "mantissa", "bias", "largest")
    quantized = model(
        [
            node("FloatQuant", "w scale exponent mantissa bias largest", "q"),
            node("Cast", "q", "wide", domain="", to=onnx.TensorProto.FLOAT),
            node("Add", "x wide", domain=""),
        ],
        {"w": np.float16([0.3, -2, 5, 9]), "scale": 0.3}
        | dict(zip(format, (2, 1, 1, 6), strict=True)),
    )
    made = anybit.convert(quantized, to="qdq").model
    assert "Gather" in kinds(made)
    x = random(1, 4)
    (actual,) = onnxruntime.InferenceSession(ir.to_proto(made).SerializeToString()).run(
        None, {"x": x}
    )
    np.testing.assert_array_equal(actual, anybit.load(quantized).run(x)["y"])


@pytest.mark.parametrize("harm", ["axis", "block", "scale", "rank"])
def test_to_qdq_blocks_that_do_not_fit(harm: str) -> None:
    quantized = anybit.quantize(attention(), weights="int4 per-block 8", activations="float").model
    made = anybit.convert(quantized, to="qdq").model
    stored = next(item for item in made.graph if item.op_type == "DequantizeLinear")
    if harm == "axis":
        stored.attributes["axis"] = ir.AttrInt64("axis", 7)
    elif harm == "block":
        stored.attributes["block_size"] = ir.AttrInt64("block_size", -3)
    else:
        scale = read_array(stored.inputs[1])
        scale = scale[:-1] if harm == "scale" else scale.ravel()
        stored.inputs[1].const_value = ir.tensor(scale)
    with pytest.raises(anybit.ModelError, match=r"for blocks of -?\d+ along axis"):
        anybit.load(made)
