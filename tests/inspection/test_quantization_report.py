# SPDX-License-Identifier: Apache-2.0
"""Reports on results of `quantize`: noise, quality, weights, sizes and the front of mixes."""

import dataclasses
import json
import math
import re

import numpy as np
import onnx
import pytest
from float_models import NETWORKS, data_for
from small_models import model, node, quantized_weight

import anybit
from anybit import ModelError
from anybit.inspection import LayerReport, ModelReport, report_quantization
from anybit.inspection.advice import add_advice
from anybit.inspection.model_report import LayerQuality, QuantizationReport, QuantizedTensor
from anybit.inspection.pages import render_report
from anybit.inspection.text import describe_conclusion
from anybit.metrics.confidence import MIN_SAMPLES
from anybit.ptq import ParetoPoint, QualityMetrics
from anybit.quant_types.layer_info import LayerInfo


@pytest.mark.parametrize("name", NETWORKS)
def test_report_has_the_results_of_quantize(name: str) -> None:
    quantized = anybit.quantize(NETWORKS[name](), data_for(name, 8), weights="int4")
    report = report_quantization(quantized, name=name, command="anybit quantize")
    assert [row.name for row in report.layers] == [row.name for row in quantized.layers]
    assert report.verdict == quantized.verdict
    assert (report.bytes_before, report.bytes_after) == (
        quantized.bytes_before,
        quantized.bytes_after,
    )
    assert sum(row.noise for row in report.layers) == pytest.approx(1)
    for layer, row in zip(report.layers, quantized.layers, strict=True):
        assert layer.quality.sqnr == row.sqnr
        kinds = {tensor.role: tensor.kind for tensor in layer.tensors}
        assert kinds.get("weights", "") == row.weights
        assert kinds["activations"] == row.activations
        assert (layer.layer.weight_bits, layer.layer.input_bits) == (4 if row.weights else 8, 8)
        assert layer.layer.parameters == row.parameters
    text = render_report(report)
    assert "anybit quantize" in text
    assert text.count("<details ") == len(report.layers)
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize("words", ["int3 per-tensor", "int4", "fp4_e2m1", "bipolar"])
def test_weight_statistics_match_the_tensors(words: str) -> None:
    quantized = anybit.quantize(NETWORKS["convolutions"](), weights=words, activations="float")
    report = report_quantization(quantized)
    nodes = {item.name: item for item in quantized.model.graph}
    for layer in report.layers:
        (tensor,) = layer.tensors
        quantizer = nodes[layer.name].inputs[1].producer()
        x = quantizer.inputs[0].const_value.numpy().astype(np.float64)
        scale = quantizer.inputs[1].const_value.numpy().astype(np.float64)
        steps = x / scale if scale.size > 1 else x
        assert tensor.in_steps == (scale.size > 1)
        assert tensor.scales == scale.size
        assert sum(tensor.histogram.counts) == x.size
        assert tensor.histogram.lowest == pytest.approx(steps.min())
        assert tensor.histogram.highest == pytest.approx(steps.max())
        edges = np.linspace(steps.min(), steps.max(), len(tensor.histogram.counts) + 1)
        below = np.searchsorted(np.sort(steps.ravel()), edges[1:-1])
        seen = np.cumsum(tensor.histogram.counts)[:-1]
        assert np.abs(seen - below).max() <= 0.05 * x.size + 2
        y = anybit.load(_only(quantizer, x.shape)).run(x.astype(np.float32))["y"]
        noise = np.square(x - y).sum() / np.square(x).sum()
        assert tensor.sqnr == pytest.approx(-10 * np.log10(noise), abs=1e-6)
        axis = 1 if layer.layer.operator == "ConvTranspose" else 0
        reach = np.abs(x).max(axis=tuple(item for item in range(x.ndim) if item != axis))
        np.testing.assert_allclose(tensor.channel_max, reach, rtol=1e-6)
        if words != "bipolar":
            assert tensor.clipped == np.mean((steps > _last(tensor)) | (steps < -_last(tensor)))
        rounded = y / scale if scale.size > 1 else y
        away = np.abs(rounded[..., None] - np.array(tensor.values)).min(axis=-1)
        assert away.max() < 1e-5 * np.abs(rounded).max()


def _last(tensor: QuantizedTensor) -> float:
    """Half a step beyond the last value."""
    return tensor.values[-1] + (tensor.values[-1] - tensor.values[-2]) / 2


def _only(quantizer, shape) -> onnx.ModelProto:
    """Return a model of one quantizer."""
    import onnx_ir as ir

    proto = ir.to_proto(quantizer)
    constants = {item.name: item.const_value.numpy() for item in quantizer.inputs[1:] if item}
    parameters = [item.name if item else "" for item in quantizer.inputs[1:]]
    made = node(proto.op_type, " ".join(["x", *parameters]))
    made.attribute.extend(proto.attribute)
    return model([made], constants, inputs={"x": list(shape)})


def test_inspect_describes_weights_without_data() -> None:
    proto, _ = quantized_weight()
    report = anybit.inspect(proto)
    (layer,) = report.layers
    (tensor,) = layer.tensors
    assert (layer.layer.weight_bits, layer.layer.input_bits) == (3, 32)
    assert (tensor.kind, tensor.lowest, tensor.highest) == ("int3", -1, 0.75)
    assert tensor.values == tuple(np.arange(-4, 4) / 4)
    assert (layer.quality, layer.noise, report.verdict) == (None, None, None)
    assert layer.bytes == (12 * 3 + 7) // 8


@pytest.mark.parametrize("form", ["qdq", "qcdq"])
def test_forms_have_equal_tensors(form: str) -> None:
    path = "examples/digits_w4a4.onnx"
    plain, other = anybit.inspect(path), anybit.inspect(anybit.convert(path, to=form))
    for one, two in zip(plain.layers, other.layers, strict=True):
        assert [(item.role, item.kind, item.lowest, item.highest) for item in one.tensors] == [
            (item.role, item.kind, item.lowest, item.highest) for item in two.tensors
        ]
        assert [sum(item.histogram.counts) for item in two.tensors if item.histogram] == [
            one.layer.parameters
        ]


def test_stored_codes_have_the_channels_of_their_floats() -> None:
    quantized = anybit.quantize(NETWORKS["convolutions"](), weights="int8", activations="float")
    plain, other = anybit.inspect(quantized), anybit.inspect(anybit.convert(quantized, to="qdq"))
    for one, two in zip(plain.layers, other.layers, strict=True):
        (floats,), (codes,) = one.tensors, two.tensors
        np.testing.assert_allclose(floats.channel_max, codes.channel_max, rtol=0.02)
        assert (codes.sqnr, codes.scales) == (None, floats.scales)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_weights_that_are_not_finite_have_no_histogram(wrong: float) -> None:
    proto, weight = quantized_weight()
    broken = weight.copy()
    broken[1, 1] = wrong
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(broken, "weight"))
    report = anybit.inspect(proto)
    assert report.layers[0].tensors[0].histogram is None
    assert "</html>" in render_report(report)


def test_parameters_that_do_not_broadcast_are_refused() -> None:
    proto, _ = quantized_weight()
    scale = np.ones((2, 1), np.float32)
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(scale, "scale"))
    with pytest.raises(ModelError, match="does not broadcast"):
        anybit.inspect(proto)


def judged(verdict: QualityMetrics) -> ModelReport:
    return ModelReport("m", quantization=QuantizationReport(verdict))


@pytest.mark.parametrize("samples", [3, MIN_SAMPLES - 1, MIN_SAMPLES, 300])
@pytest.mark.parametrize("sqnr", [3.0, 30.0])
def test_conclusion_is_the_quality(sqnr: float, samples: int) -> None:
    verdict = QualityMetrics(sqnr, 1.0, samples, seen=False, correlation=0.98765)
    sentence = describe_conclusion(judged(verdict))
    assert f": SQNR {sqnr:.1f} dB, correlation 0.9877, agreement 100.0 %" in sentence
    assert sentence.endswith(".")
    assert ("give hundreds" in sentence) == (samples < MIN_SAMPLES)
    assert (
        "quality check failed: SQNR 3.0 dB is below 10 dB; use wider formats, or set" in sentence
    ) == (sqnr < 10)


@pytest.mark.parametrize(
    ("samples", "seen", "words"),
    [
        (1, True, "No sample was held out for evaluation."),
        (1, False, "Only 1 sample was held out for evaluation."),
        (23, False, "Only 23 samples were held out for evaluation."),
    ],
)
def test_advice_on_few_samples(samples: int, seen: bool, words: str) -> None:
    report = add_advice(judged(QualityMetrics(30.0, 1.0, samples, seen=seen)))
    assert [item.text for item in report.advice] == [words]


def noisy(shares: list[float]) -> ModelReport:
    return ModelReport(
        "m",
        layers=tuple(
            LayerReport(
                LayerInfo(f"layer{at}", "MatMul", f"y{at}", weight_bits=4),
                quality=LayerQuality(noise=share),
            )
            for at, share in enumerate(shares)
        ),
        quantization=QuantizationReport(None),
    )


def test_layers_are_ranked_by_noise() -> None:
    report = noisy([0.0, 0.1, 0.2, 0.3])
    assert report.ranked == report.layers[::-1]
    text = render_report(report)
    assert text.index(">30 %<") < text.index(">10 %<")


@pytest.mark.parametrize(
    ("count", "share", "is_noisy"),
    [(3, 0.5, False), (3, 0.7, True), (10, 0.25, False), (10, 0.35, True)],
)
def test_advice_on_noise_depends_on_the_number_of_layers(
    count: int, share: float, is_noisy: bool
) -> None:
    others = [(1 - share) / (count - 1)] * (count - 1)
    advice = add_advice(noisy([share, *others])).advice
    assert any("of the noise of all layers" in item.text for item in advice) == is_noisy


def test_advice_on_an_outlier_channel() -> None:
    proto, weight = quantized_weight()
    loud = weight.copy()
    loud[:, 1] *= 0.01
    loud[:, 2] = 0.02
    loud[0, 1] = 0.1
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(loud, "weight"))
    (advice,) = [item for item in anybit.inspect(proto).advice if "alone uses" in item.text]
    assert "per-channel" in advice.remedy


def test_front_is_drawn_and_listed() -> None:
    mixes = [
        ParetoPoint("", 100 * item, 10**6 * item, 10.0 + 4 * item, False) for item in range(1, 4)
    ]
    same = [
        ParetoPoint(f"int{item}/uint8", 120 * item, 2 * 10**6, 9.0 + item, False)
        for item in (2, 4, 8)
    ]
    front = (
        *mixes,
        *same,
        ParetoPoint("", 350, 10**6, 23, True),
        ParetoPoint("", 1, 1, math.inf, False),
    )
    report = ModelReport("m", quantization=QuantizationReport(None, front=front))
    text = render_report(report)
    assert text.count('<circle class="same"') == 6
    assert text.count('<circle class="chosen"') == 2
    for words in ("int4/uint8", "output SQNR", "100 bytes", "3 M", "23.0 dB"):
        assert words in text
    assert "<circle" not in render_report(dataclasses.replace(report, quantization=None))


def test_worst_samples_are_numbered() -> None:
    data = data_for("convolutions", 8)
    report = report_quantization(anybit.quantize(NETWORKS["convolutions"](), data), data)
    assert {sample.number for sample in report.verdict.worst} == {1, 4}
    text = render_report(report)
    assert re.search("The worst samples.*>4</td>.*>1</td>", text, re.DOTALL)


def test_budget_search_reports_its_front_and_output_noise() -> None:
    data = data_for("convolutions")
    quantized = anybit.quantize(NETWORKS["convolutions"](), data, budget="25dB")
    report = report_quantization(quantized, data)
    assert report.quantization.front == quantized.front
    noises = [10 ** (-row.quality.output_sqnr / 10) for row in report.layers]
    for layer, noise in zip(report.layers, noises, strict=True):
        assert layer.noise == pytest.approx(noise / sum(noises))
    text = render_report(report)
    assert "The cost of other mixed precisions" in text
    assert text.count('<circle class="chosen"') >= 1
    assert "output, dB" in text


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_output_noise_of_layers_adds_up(name: str) -> None:
    data = data_for(name)
    quantized = anybit.quantize(NETWORKS[name](), data, weights="int5", sensitivity=True)
    report = report_quantization(quantized)
    total = sum(10 ** (-row.quality.output_sqnr / 10) for row in report.layers)
    assert -10 * math.log10(total) == pytest.approx(report.verdict.sqnr, abs=4)
