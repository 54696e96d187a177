# SPDX-License-Identifier: Apache-2.0
"""Quantization of unusual networks."""

import numpy as np
import onnx
import pytest
from float_models import OPSETS
from pass_checks import random
from small_models import model, node

import anybit
from anybit import ModelError
from anybit.metrics.output_parts import OutputPart
from anybit.metrics.quality import QualityAccumulator, QualityMetrics, compare_outputs
from anybit.metrics.regions import TensorRegion


def measure_sqnr(proto: onnx.ModelProto, result: anybit.QuantizationResult, x: np.ndarray) -> float:
    """Return the SQNR of a quantized model in dB."""
    y = anybit.load(proto).run(x)["y"].astype(np.float64)
    return float(
        10 * np.log10((y**2).sum() / ((y - anybit.load(result.model).run(x)["y"]) ** 2).sum())
    )


def make_gemm(weight: np.ndarray, bias: np.ndarray, **attributes: float) -> onnx.ModelProto:
    nodes = [node("Gemm", "x w b", domain="", name="head", **attributes)]
    shape = ["rows", len(weight)]
    return model(nodes, {"w": weight, "b": bias}, inputs={"x": shape}, opsets=OPSETS)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1e-4}, {"beta": 1000.0}])
def test_quantize_handles_biases_of_zero_channels_and_scaled_biases(
    attributes: dict[str, float],
) -> None:
    weight, bias = random(8, 6, seed=1), random(6, seed=2)
    weight[:, ::2] = 0
    proto, x = make_gemm(weight, bias, **attributes), random(64, 8) * np.float32(300)
    assert measure_sqnr(proto, anybit.quantize(proto, x), x) > 35


def test_quantize_keeps_the_bias_with_tiny_weights() -> None:
    """Check a bias that is more than 2^24 times the product of scales."""
    weight = random(8, 6, seed=1) * np.float32(1e-38)
    result = anybit.quantize(make_gemm(weight, random(6, seed=2)), random(64, 8))
    assert result.verdict.sqnr > 35


def test_pruned_channels_compile() -> None:
    """Quantize channels whose weights training has made tiny: they are 0 next to the others."""
    weight = random(8, 6, seed=1)
    weight[:, ::2] *= np.float32(1e-37)
    proto, x = make_gemm(weight, random(6, seed=2)), random(64, 8)
    result = anybit.quantize(proto, x)
    assert measure_sqnr(proto, result, x) > 35
    compiled = anybit.compile(result.model)
    assert compiled.report.coverage == "1 of 1 layer, 100 % of MACs"


def test_quantize_keeps_the_bias_with_zero_data() -> None:
    proto = make_gemm(random(8, 6, seed=1) * 300, random(6, seed=2))
    x = np.zeros((8, 8), np.float32)
    assert measure_sqnr(proto, anybit.quantize(proto, x), x) > 45


def test_quantize_handles_a_bias_of_two_axes() -> None:
    proto = make_gemm(random(8, 6, seed=1), random(1, 6, seed=2))
    result = anybit.quantize(proto, random(16, 8))
    (gemm,) = [inner for inner in result.model.graph if inner.op_type == "Gemm"]
    assert gemm.inputs[2].producer().op_type == "IntQuant"


def test_quality_of_integer_outputs_is_agreement() -> None:
    nodes = [
        node("MatMul", "x w", "m", domain="", name="head"),
        node("ArgMax", "m", "y", domain="", name="label", axis=1),
    ]
    proto = model(nodes, {"w": random(8, 30)}, inputs={"x": ["rows", 8]}, opsets=OPSETS)
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    good = anybit.quantize(proto, random(200, 8, seed=1))
    bad = anybit.quantize(proto, random(200, 8, seed=1), weights="bipolar", activations="bipolar")
    assert good.verdict is not None
    assert bad.verdict is not None
    assert good.verdict.sqnr is None
    assert good.verdict.passed
    assert not bad.verdict.passed


def test_quality_ignores_infinities_of_both_models() -> None:
    judge = QualityAccumulator()
    a = np.float32([[1, -np.inf, 3, np.nan]])
    judge.add(compare_outputs({"y": a}, {"y": a + np.float32([[0.1, 0, 0, 0]])}))
    verdict = judge.compute(seen=False)
    assert verdict.sqnr == pytest.approx(30, abs=0.1)
    judge.add(compare_outputs({"y": a}, {"y": np.zeros_like(a)}))
    assert judge.compute(seen=False).sqnr == -np.inf
    assert not QualityAccumulator().compute(seen=False).passed


def with_classes(name: str) -> OutputPart:
    """Return the part of an output whose last axis holds classes."""
    return OutputPart(name, TensorRegion({}, -1, "distribution"))


def measure_quality(*outputs: tuple[np.ndarray, np.ndarray]) -> QualityMetrics:
    judge = QualityAccumulator()
    floats, others = (
        {str(index): pair[side] for index, pair in enumerate(outputs)} for side in (0, 1)
    )
    judge.add(compare_outputs(floats, others, {name: [with_classes(name)] for name in floats}))
    return judge.compute(seen=False)


def test_quality_is_that_of_the_worst_output() -> None:
    labels, flags = np.arange(10), np.ones(1000, bool)
    verdict = measure_quality((labels, np.where(labels < 2, 99, labels)), (flags, flags))
    assert verdict.agreement == 0.8
    assert not verdict.passed


def test_quality_compares_the_arg_max_of_sequences() -> None:
    a = 9 + random(2, 5, 4)
    b = a.copy()
    b[0, 0] = a[0, 0][::-1]
    assert measure_quality((a, b)).agreement == 0.9


@pytest.mark.parametrize("a", [9 + random(3, 4), np.arange(12), random(2, 3, 4, 5)])
def test_quality_of_outputs_with_another_shape_is_zero(a: np.ndarray) -> None:
    verdict = measure_quality((a, a), (a, a[:1]))
    assert verdict.agreement == 0
    assert verdict.sqnr == (0 if a.dtype.kind == "f" else None)
    assert not verdict.passed
    judge = QualityAccumulator()
    parts = {"y": [with_classes("y")]} if a.ndim < 4 else {}
    judge.add(compare_outputs({"y": a}, {"y": a}, parts))
    judge.add(compare_outputs({"y": a}, {"y": a[:1]}, parts))
    assert judge.compute(seen=False).agreement == (0.5 if a.ndim < 4 else None)
    assert not judge.compute(seen=False).passed
    assert judge.compute(seen=False).worst[0].sqnr == -np.inf


def test_quality_of_images_has_no_agreement() -> None:
    constants = {"w": random(3, 3, 3, 3) / 4, "b": random(3)}
    nodes = [node("Conv", "x w b", domain="", name="conv", pads=[1, 1, 1, 1])]
    proto = model(nodes, constants, inputs={"x": ["rows", 3, 8, 8]}, opsets=OPSETS)
    result = anybit.quantize(proto, random(12, 3, 8, 8))
    assert result.verdict is not None
    assert result.verdict.agreement is None


def test_quantize_depthwise_transposed_convolutions_per_channel() -> None:
    sizes = np.float32([1e-3, 1e-2, 1, 100]).reshape(4, 1, 1, 1)
    nodes = [node("ConvTranspose", "x w", domain="", name="up", group=4)]
    proto = model(
        nodes, {"w": random(4, 1, 3, 3) * sizes}, inputs={"x": ["rows", 4, 5, 5]}, opsets=OPSETS
    )
    x = random(16, 4, 5, 5, seed=2)
    y, q = anybit.load(proto).run(x)["y"], anybit.load(anybit.quantize(proto, x).model).run(x)["y"]
    noise = np.square(y - q).mean(axis=(0, 2, 3)) / np.square(y).mean(axis=(0, 2, 3))
    assert noise.max() < 1e-3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_quantize_rejects_weights_that_are_not_finite(value: float) -> None:
    weight = random(8, 6)
    weight[2, 3] = value
    with pytest.raises(ModelError, match="'w', a weight of 'head', holds NaN or infinity"):
        anybit.quantize(make_gemm(weight, random(6)), activations="float")


def test_quantize_handles_omitted_and_constant_outputs() -> None:
    constants = {"w": random(1, 20, 3) / 3, "r": random(1, 20, 5) / 3, "c": random(2)}
    nodes = [
        node("LSTM", "x w r", "l h", domain="", name="lstm", hidden_size=5),
        node("Identity", "h", "y", domain="", name="last"),
        node("Identity", "c", "z", domain="", name="constant"),
    ]
    nodes[0].output[:] = ["", "h"]
    proto = model(nodes, constants, inputs={"x": [4, 1, 3]}, outputs=["y", "z"], opsets=OPSETS)
    result = anybit.quantize(proto, [{"x": random(4, 1, 3, seed=seed)} for seed in range(8)])
    assert result.verdict is not None
    assert result.verdict.sqnr is not None
    assert result.verdict.sqnr > 25


def test_result_counts_bytes_of_shared_weights_once() -> None:
    nodes = [
        node("MatMul", f"m{index} w", f"m{index + 1}", domain="", name=f"n{index}")
        for index in range(9)
    ]
    proto = model(nodes, {"w": np.eye(8, dtype=np.float32)}, inputs={"m0": [2, 8]}, outputs=["m9"])
    result = anybit.quantize(proto, activations="float")
    assert (result.bytes_before, result.bytes_after) == (256, 64)


def test_quantize_explains_why_no_layer_is_quantized() -> None:
    nodes = [node("Einsum", "x w", domain="", name="sum", equation="ij,jk->ik")]
    proto = model(nodes, {"w": random(4, 3)}, opsets=OPSETS)
    with pytest.raises(
        ModelError, match="sum: it has weights, but the operator Einsum is not supported"
    ):
        anybit.quantize(proto, activations="float")


@pytest.mark.parametrize("options", [{}, {"weights": "int4"}, {"weights": "mxfp4"}])
def test_quantize_handles_a_matrix_times_a_vector(options: dict[str, str]) -> None:
    nodes = [node("MatMul", "w x", domain="", name="turned")]
    proto = model(nodes, {"w": random(5, 32)}, inputs={"x": [32]}, opsets=OPSETS)
    result = anybit.quantize(proto, [{"x": random(32, seed=seed)} for seed in range(12)], **options)
    assert [layer.name for layer in result.layers] == ["turned"]
    assert result.verdict.sqnr > 8


@pytest.mark.parametrize("options", [{}, {"weights": "int4"}])
def test_quantize_handles_activations_that_are_always_empty(options: dict[str, str]) -> None:
    nodes = [
        node("Slice", "x start end axis", "none", domain="", name="slice"),
        node("MatMul", "none w", "a", domain="", name="unseen"),
        node("MatMul", "x w", "b", domain="", name="seen"),
        node("Concat", "a b", domain="", axis=1, name="join"),
    ]
    constants = {"w": random(8, 3), "start": np.int64([0]), "axis": np.int64([1])}
    # The number of rows depends on the data.
    count = [
        node("ReduceMin", "x", "least", domain="", keepdims=0, name="least"),
        node("Greater", "least far", "more", domain="", name="more"),
        node("Cast", "more", "number", domain="", to=onnx.TensorProto.INT64, name="number"),
        node("Reshape", "number one", "end", domain="", name="end"),
    ]
    constants |= {"far": np.float32(100), "one": np.int64([1])}
    proto = model([*count, *nodes], constants, inputs={"x": ["rows", 4, 8]}, opsets=OPSETS)
    result = anybit.quantize(proto, random(16, 4, 8), **options)
    assert [layer.name for layer in result.layers] == ["unseen", "seen"]
    assert result.verdict.sqnr > 12


@pytest.mark.parametrize("options", [{}, {"weights": "int4"}, {"activations": "float"}])
def test_quantize_skips_weights_without_elements(options: dict[str, str | None]) -> None:
    nodes = [
        node("MatMul", "x none", "a", domain="", name="empty"),
        node("MatMul", "x w", "b", domain="", name="full"),
        node("Concat", "a b", domain="", axis=1, name="join"),
    ]
    constants = {"none": np.zeros((8, 0), np.float32), "w": random(8, 3)}
    proto = model(nodes, constants, inputs={"x": ["rows", 8]}, opsets=OPSETS)
    result = anybit.quantize(proto, random(16, 8), **options)
    assert result.skipped == {"empty": "its weights have no elements"}
    assert [layer.name for layer in result.layers] == ["full"]


@pytest.mark.parametrize("samples", [1, 2, 3, 5])
def test_result_has_the_sqnr_of_layers_with_held_out_samples(samples: int) -> None:
    """Bias correction removes all noise of a single calibration sample."""
    proto = make_gemm(random(8, 6, seed=1), random(6, seed=2))
    result = anybit.quantize(proto, random(samples, 8))
    (layer,) = result.layers
    assert (layer.sqnr is None) == (samples < 5)
    assert any("too few samples" in text for text in result.remarks) == (samples < 5)
    assert layer.sqnr is None or layer.sqnr < 100
