# SPDX-License-Identifier: Apache-2.0
"""Networks in which something is unusual."""

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


def sqnr(proto: onnx.ModelProto, found: anybit.QuantizationResult, x: np.ndarray) -> float:
    """Of a model and its quantized form, in dB."""
    y = anybit.load(proto).run(x)["y"].astype(np.float64)
    return float(
        10 * np.log10((y**2).sum() / ((y - anybit.load(found.model).run(x)["y"]) ** 2).sum())
    )


def head(weight: np.ndarray, bias: np.ndarray, **attributes: float) -> onnx.ModelProto:
    nodes = [node("Gemm", "x w b", domain="", name="head", **attributes)]
    shape = ["rows", len(weight)]
    return model(nodes, {"w": weight, "b": bias}, inputs={"x": shape}, opsets=OPSETS)


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1e-4}, {"beta": 1000.0}])
def test_biases_of_dead_channels_and_factors(attributes: dict[str, float]) -> None:
    weight, bias = random(8, 6, seed=1), random(6, seed=2)
    weight[:, ::2] = 0
    proto, x = head(weight, bias, **attributes), random(64, 8) * np.float32(300)
    assert sqnr(proto, anybit.quantize(proto, x), x) > 35


def test_weights_next_to_nothing_leave_the_bias() -> None:
    """Units of products are so small then that the bias has more of them than float32 counts."""
    weight = random(8, 6, seed=1) * np.float32(1e-38)
    found = anybit.quantize(head(weight, random(6, seed=2)), random(64, 8))
    assert found.verdict.sqnr > 35


def test_data_of_zeros_leave_the_bias() -> None:
    proto = head(random(8, 6, seed=1) * 300, random(6, seed=2))
    x = np.zeros((8, 8), np.float32)
    assert sqnr(proto, anybit.quantize(proto, x), x) > 45


def test_a_bias_of_two_axes() -> None:
    proto = head(random(8, 6, seed=1), random(1, 6, seed=2))
    found = anybit.quantize(proto, random(16, 8))
    (gemm,) = [each for each in found.model.graph if each.op_type == "Gemm"]
    assert gemm.inputs[2].producer().op_type == "IntQuant"


def test_integers_are_judged_by_what_is_the_same() -> None:
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


def test_infinities_that_both_have_are_no_noise() -> None:
    judge = QualityAccumulator()
    a = np.float32([[1, -np.inf, 3, np.nan]])
    judge.add(compare_outputs({"y": a}, {"y": a + np.float32([[0.1, 0, 0, 0]])}))
    verdict = judge.compute(seen=False)
    assert verdict.sqnr == pytest.approx(30, abs=0.1)
    judge.add(compare_outputs({"y": a}, {"y": np.zeros_like(a)}))
    assert judge.compute(seen=False).sqnr == -np.inf
    assert not QualityAccumulator().compute(seen=False).passed


def with_classes(name: str) -> OutputPart:
    """All of an output, whose last axis is said to be one of classes."""
    return OutputPart(name, TensorRegion({}, -1, "distribution"))


def judged(*outputs: tuple[np.ndarray, np.ndarray]) -> QualityMetrics:
    judge = QualityAccumulator()
    floats, others = ({str(at): each[side] for at, each in enumerate(outputs)} for side in (0, 1))
    judge.add(compare_outputs(floats, others, {name: [with_classes(name)] for name in floats}))
    return judge.compute(seen=False)


def test_the_output_that_agrees_least_counts() -> None:
    labels, flags = np.arange(10), np.ones(1000, bool)
    verdict = judged((labels, np.where(labels < 2, 99, labels)), (flags, flags))
    assert verdict.agreement == 0.8
    assert not verdict.passed


def test_rows_of_sequences_have_a_largest_element() -> None:
    a = 9 + random(2, 5, 4)
    b = a.copy()
    b[0, 0] = a[0, 0][::-1]
    assert judged((a, b)).agreement == 0.9


@pytest.mark.parametrize("a", [9 + random(3, 4), np.arange(12), random(2, 3, 4, 5)])
def test_outputs_of_another_shape_are_noise(a: np.ndarray) -> None:
    verdict = judged((a, a), (a, a[:1]))
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


def test_images_have_no_largest_element() -> None:
    constants = {"w": random(3, 3, 3, 3) / 4, "b": random(3)}
    nodes = [node("Conv", "x w b", domain="", name="conv", pads=[1, 1, 1, 1])]
    proto = model(nodes, constants, inputs={"x": ["rows", 3, 8, 8]}, opsets=OPSETS)
    found = anybit.quantize(proto, random(12, 3, 8, 8))
    assert found.verdict is not None
    assert found.verdict.agreement is None


def test_depthwise_transposed_convolutions_have_a_scale_per_channel() -> None:
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
def test_weights_without_a_range(value: float) -> None:
    weight = random(8, 6)
    weight[2, 3] = value
    with pytest.raises(ModelError, match="'w', a weight of 'head', holds NaN or infinity"):
        anybit.quantize(head(weight, random(6)), activations=None)


def test_outputs_that_are_left_out_or_constant() -> None:
    constants = {"w": random(1, 20, 3) / 3, "r": random(1, 20, 5) / 3, "c": random(2)}
    nodes = [
        node("LSTM", "x w r", "l h", domain="", name="lstm", hidden_size=5),
        node("Identity", "h", "y", domain="", name="last"),
        node("Identity", "c", "z", domain="", name="constant"),
    ]
    nodes[0].output[:] = ["", "h"]
    proto = model(nodes, constants, inputs={"x": [4, 1, 3]}, outputs=["y", "z"], opsets=OPSETS)
    found = anybit.quantize(proto, [{"x": random(4, 1, 3, seed=seed)} for seed in range(8)])
    assert found.verdict is not None
    assert found.verdict.sqnr is not None
    assert found.verdict.sqnr > 25


def test_weights_that_layers_share_are_counted_once() -> None:
    nodes = [
        node("MatMul", "x w" if at == 0 else f"m{at - 1} w", f"m{at}", domain="", name=f"n{at}")
        for at in range(9)
    ]
    proto = model(nodes, {"w": np.eye(8, dtype=np.float32)}, inputs={"x": [2, 8]}, outputs=["m8"])
    found = anybit.quantize(proto, activations=None)
    assert (found.bytes_before, found.bytes_after) == (256, 64)


def test_reasons_are_said_where_nothing_is_quantized() -> None:
    nodes = [node("Einsum", "x w", domain="", name="sum", equation="ij,jk->ik")]
    proto = model(nodes, {"w": random(4, 3)}, opsets=OPSETS)
    with pytest.raises(
        ModelError, match="sum: it has weights, but the operator Einsum is not supported"
    ):
        anybit.quantize(proto, activations=None)


@pytest.mark.parametrize("words", [{}, {"weights": "int4"}, {"weights": "mxfp4"}])
def test_a_matrix_times_a_vector(words: dict[str, str]) -> None:
    nodes = [node("MatMul", "w x", domain="", name="turned")]
    proto = model(nodes, {"w": random(5, 32)}, inputs={"x": [32]}, opsets=OPSETS)
    found = anybit.quantize(proto, [{"x": random(32, seed=each)} for each in range(12)], **words)
    assert [layer.name for layer in found.layers] == ["turned"]
    assert found.verdict.sqnr > 8


@pytest.mark.parametrize("words", [{}, {"weights": "int4"}])
def test_a_tensor_of_which_nothing_is_ever_seen(words: dict[str, str]) -> None:
    nodes = [
        node("Slice", "x start end axis", "none", domain="", name="slice"),
        node("MatMul", "none w", "a", domain="", name="unseen"),
        node("MatMul", "x w", "b", domain="", name="seen"),
        node("Concat", "a b", domain="", axis=1, name="join"),
    ]
    constants = {"w": random(8, 3), "start": np.int64([0]), "axis": np.int64([1])}
    # How many rows there are is known only by the data.
    count = [
        node("ReduceMin", "x", "least", domain="", keepdims=0, name="least"),
        node("Greater", "least far", "more", domain="", name="more"),
        node("Cast", "more", "number", domain="", to=onnx.TensorProto.INT64, name="number"),
        node("Reshape", "number one", "end", domain="", name="end"),
    ]
    constants |= {"far": np.float32(100), "one": np.int64([1])}
    proto = model([*count, *nodes], constants, inputs={"x": ["rows", 4, 8]}, opsets=OPSETS)
    found = anybit.quantize(proto, random(16, 4, 8), **words)
    assert [layer.name for layer in found.layers] == ["unseen", "seen"]
    assert found.verdict.sqnr > 12


@pytest.mark.parametrize("words", [{}, {"weights": "int4"}, {"activations": None}])
def test_weights_without_elements(words: dict[str, str | None]) -> None:
    nodes = [
        node("MatMul", "x none", "a", domain="", name="empty"),
        node("MatMul", "x w", "b", domain="", name="full"),
        node("Concat", "a b", domain="", axis=1, name="join"),
    ]
    constants = {"none": np.zeros((8, 0), np.float32), "w": random(8, 3)}
    proto = model(nodes, constants, inputs={"x": ["rows", 8]}, opsets=OPSETS)
    found = anybit.quantize(proto, random(16, 8), **words)
    assert found.skipped == {"empty": "its weights have no elements"}
    assert [layer.name for layer in found.layers] == ["full"]


@pytest.mark.parametrize("samples", [1, 2, 3, 5])
def test_layers_are_judged_by_samples_that_choose_nothing(samples: int) -> None:
    """A bias makes up for everything that happens to the only sample that there is."""
    proto = head(random(8, 6, seed=1), random(6, seed=2))
    found = anybit.quantize(proto, random(samples, 8))
    (layer,) = found.layers
    assert (layer.sqnr is None) == (samples < 5)
    assert any("too few samples" in each for each in found.remarks) == (samples < 5)
    assert layer.sqnr is None or layer.sqnr < 100
