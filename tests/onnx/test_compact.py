# SPDX-License-Identifier: Apache-2.0
"""The compact form: weights as codes of their width, activations as they are."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import OPERATORS
from forms import SAMPLE, Kind, differences, iter_models, select_calls
from small_models import kinds, quantized_input, quantized_weight

import anybit
from anybit.errors import OptionError

BITS = {"int8": 8, "int4": 4, "int3": 4, "int2": 2, "ternary": 2, "fp8_e4m3": 8, "mxfp4": 4.25}
SIZE = 256


@pytest.fixture(scope="module")
def float_model() -> onnx.ModelProto:
    """Two layers, 256 x 256 each."""
    random = np.random.default_rng(0)
    text = f"""
    <ir_version: 8, opset_import: ["": 17]>
    graph (float[n, {SIZE}] x) => (float[n, {SIZE}] y) {{
      h = MatMul(x, w)
      r = Relu(h)
      y = MatMul(r, v)
    }}"""
    model = onnx.parser.parse_model(text)
    for name in ("w", "v"):
        array = random.standard_normal((SIZE, SIZE), dtype=np.float32) / 16
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


DATA = np.random.default_rng(1).standard_normal((32, SIZE), dtype=np.float32)


@pytest.mark.parametrize("weights", BITS)
def test_compact_form_quantized_files_take_the_bits_of_their_weights(
    float_model: onnx.ModelProto, weights: str, tmp_path: Path
) -> None:
    quantized = anybit.quantize(float_model, DATA, weights=weights, effort="fast")
    quantized.save(tmp_path / "q.onnx")
    size = (tmp_path / "q.onnx").stat().st_size
    scales = 4 * 2 * SIZE
    assert size <= 2 * SIZE * SIZE * BITS[weights] / 8 + scales + 4096
    expected = anybit.load(quantized).run(DATA)["y"]
    assert np.array_equal(anybit.load(tmp_path / "q.onnx").run(DATA)["y"], expected)


@pytest.mark.parametrize("weights", ["int8", "int4", "ternary"])
def test_compact_files_compile_like_their_qonnx_form(
    float_model: onnx.ModelProto, weights: str, tmp_path: Path
) -> None:
    quantized = anybit.quantize(float_model, DATA, weights=weights, effort="fast")
    quantized.save(tmp_path / "q.onnx")
    mine, its = (anybit.compile(path).report for path in (tmp_path / "q.onnx", quantized))
    assert mine.coverage == its.coverage == "2 of 2 layers, 100 % of MACs"
    assert mine.guarantees == its.guarantees
    assert [layer.layer.weight_bits for layer in mine.layers] == [
        layer.layer.weight_bits for layer in its.layers
    ]


def test_compact_form_quantized_files_can_be_qonnx(
    float_model: onnx.ModelProto, tmp_path: Path
) -> None:
    quantized = anybit.quantize(float_model, DATA, effort="fast")
    quantized.save(tmp_path / "q.onnx", to="qonnx")
    assert "DequantizeLinear" not in kinds(ir.load(tmp_path / "q.onnx"))
    with pytest.raises(OptionError, match="to must be one of"):
        quantized.save(tmp_path / "other.onnx", to="small")
    assert not (tmp_path / "other.onnx").exists()


def test_convert_to_compact_keeps_activations() -> None:
    converted = anybit.convert(quantized_input(), to="compact")
    assert kinds(converted.model) == ["IntQuant"]
    assert converted.steps == ()


def test_convert_to_compact_stores_weights_as_codes() -> None:
    proto, *_ = quantized_weight()
    converted = anybit.convert(proto, to="compact")
    assert "DequantizeLinear" in kinds(converted.model)
    again = anybit.convert(converted, to="compact")
    assert not again.steps
    assert ir.to_proto(again.model) == ir.to_proto(converted.model)
    back = anybit.convert(converted, to="qonnx")
    assert "DequantizeLinear" not in kinds(back.model)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("every", [SAMPLE, pytest.param(1, marks=pytest.mark.slow)])
def test_weights_keep_their_values_in_compact_form(operator: str, every: int) -> None:
    wrong = []
    for model in iter_models(Kind.WEIGHT, select_calls(operator, every), 24):
        converted = anybit.convert(model.proto, to="compact")
        actual = anybit.load(converted).run(dict(model.feeds))
        wrong += differences(actual, model, model.undefined(converted))
    assert not wrong, wrong[:10]
