# SPDX-License-Identifier: Apache-2.0
"""Quantization of float networks: quantized layers, quality, and reports."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from float_models import NETWORKS, OPSETS, attention, convolutions, data_for
from pass_checks import random
from small_models import kinds, model, node, quantized_input

import anybit
from anybit import ModelError, OptionError
from anybit.data.splits import is_held_out


@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_to_16_bits_is_nearly_exact(name: str) -> None:
    result = anybit.quantize(
        NETWORKS[name](), data_for(name, 8), weights="int16", activations="uint16"
    )
    assert result.verdict is not None
    assert 70 < result.verdict.sqnr < 130
    assert result.verdict.passed


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("weights", "activations", "least"),
    [("int8", "uint8", 25), ("int8 power-of-two", "int8", 20), ("fp8_e4m3", "fp8_e4m3", 15)],
)
def test_quantize_to_8_bits(name: str, weights: str, activations: str, least: float) -> None:
    result = anybit.quantize(
        NETWORKS[name](), data_for(name), weights=weights, activations=activations
    )
    assert result.verdict is not None
    assert result.verdict.sqnr > least
    assert not result.skipped
    assert anybit.check(result.model) is not None
    assert all(layer.weights or layer.name in ("scores", "context") for layer in result.layers)


def test_quantize_quantizes_only_matmul_like_operators() -> None:
    result = anybit.quantize(attention(), data_for("attention"))
    made = kinds(result.model)
    names = {layer.name: layer for layer in result.layers}
    assert list(names) == [
        *("query", "key", "value", "scores", "context", "output", "wide", "narrow"),
    ]
    assert (names["scores"].weights, names["scores"].activations) == ("", "uint8")
    # One tensor for the first three, two each for scores and context, three more; six weights.
    assert made.count("IntQuant") == 1 + 4 + 3 + 6
    for kind in ("Softmax", "LayerNormalization"):
        (untouched,) = [node for node in result.model.graph if node.op_type == kind]
        assert all(
            value.producer() is None or value.producer().op_type != "IntQuant"
            for value in untouched.inputs
        )


def test_quantize_folds_batch_norm_and_quantizes_biases() -> None:
    result = anybit.quantize(convolutions(), data_for("convolutions"))
    assert "BatchNormalization" not in kinds(result.model)
    first = next(node for node in result.model.graph if node.name == "first")
    weight, bias = (value.producer() for value in first.inputs[1:])
    scales = [
        np.ravel(quantizer.inputs[1].const_value.numpy())
        for quantizer in (first.inputs[0].producer(), weight, bias)
    ]
    np.testing.assert_array_equal(scales[2], scales[0] * scales[1])
    assert bias.inputs[3].const_value.numpy() == 32


def test_verdict_equals_the_quality_of_the_saved_model(tmp_path: Path) -> None:
    data = data_for("convolutions")
    result = anybit.quantize(convolutions(), data)
    result.save(tmp_path / "q.onnx")
    floats, quantized = anybit.load(convolutions()), anybit.load(tmp_path / "q.onnx")
    held = [sample for index, sample in enumerate(data) if is_held_out(index)]
    a = np.concatenate([floats.run(sample)["y"] for sample in held]).astype(np.float64)
    b = np.concatenate([quantized.run(sample)["y"] for sample in held])
    sqnr = 10 * np.log10(np.square(a).sum() / np.square(a - b).sum())
    assert result.verdict is not None
    # The float model of the verdict has its normalization folded, which moves it by roundings.
    assert result.verdict.sqnr == pytest.approx(sqnr, abs=1e-3)
    assert result.verdict.samples == len(held)
    assert result.verdict.logits_agreement == np.mean(a.argmax(-1) == b.argmax(-1))


def test_quantize_gives_the_same_bytes_for_the_same_inputs() -> None:
    models = [anybit.quantize(attention(), data_for("attention")).model for _ in range(2)]
    a, b = (ir.to_proto(network).SerializeToString(deterministic=True) for network in models)
    assert a == b


def test_smoothing_does_not_change_the_float_function() -> None:
    data = data_for("attention", 48)
    for sample in data:
        sample["x"][..., 3] *= 100
    proto = attention()
    del proto.graph.node[0]
    for product in proto.graph.node[:3]:
        product.input[0] = "x"
    result = anybit.quantize(proto, data, weights="int16")
    assert any(layer.smoothed for layer in result.layers)
    bare = result.model.clone()
    for quantizer in list(bare.graph):
        if quantizer.op_type == "IntQuant":
            quantizer.outputs[0].replace_all_uses_with(quantizer.inputs[0])
    x = random(2, 5, 16)
    np.testing.assert_array_equal(anybit.load(bare).run(x)["y"], anybit.load(proto).run(x)["y"])


def test_smoothing_scales_channels_of_depthwise_convolutions() -> None:
    """Test with one weight scale per channel, so that scaling costs nothing."""
    constants = {"w": random(12, 1, 3, 3, seed=1), "b": random(12, seed=2)}
    nodes = [node("Conv", "x w b", domain="", name="conv", group=6)]
    proto = model(nodes, constants, inputs={"x": ["rows", 6, 5, 5]}, opsets=OPSETS)
    sizes = np.float32([1, 100, 1, 0.01, 1, 1000]).reshape(6, 1, 1)
    data = random(96, 6, 5, 5, seed=5) * sizes
    result = anybit.quantize(proto, data)
    assert result.layers[0].smoothed
    # Without it, the small channels are lost, all of them: one step of the largest is 10.
    y, q = anybit.load(proto).run(data)["y"], anybit.load(result.model).run(data)["y"]
    noise = np.square(y - q).mean(axis=(0, 2, 3)) / np.square(y).mean(axis=(0, 2, 3))
    assert noise.max() < 1e-2


def test_bias_correction_removes_the_mean_error() -> None:
    """Test with inputs of one sign, so that rounded weights shift the mean of each channel."""
    constants = {"w": random(6, 64, 1, 1, seed=1), "b": random(6, seed=2)}
    nodes = [node("Conv", "x w b", domain="", name="conv")]
    proto = model(nodes, constants, inputs={"x": ["rows", 64, 4, 4]}, opsets=OPSETS)
    data = np.abs(random(40, 64, 4, 4, seed=3)) / 10 + np.float32(1)
    result = anybit.quantize(proto, data, weights="int4")
    y, q = anybit.load(proto).run(data)["y"], anybit.load(result.model).run(data)["y"]
    means = np.abs((q - y).mean(axis=(0, 2, 3)))
    assert means.max() < 0.1 * np.abs(q - y).std(axis=(0, 2, 3)).max() + 0.02
    bare = anybit.quantize(proto, weights="int4", activations="float")
    pulled = np.abs((anybit.load(bare.model).run(data)["y"] - y).mean(axis=(0, 2, 3)))
    assert pulled.max() > 5 * means.max()


def test_quantize_of_weights_needs_no_data() -> None:
    result = anybit.quantize(convolutions(), weights="int4")
    assert result.verdict is None
    assert {layer.activations for layer in result.layers} == {""}
    assert result.bytes_after < result.bytes_before / 4


def test_default_activations_are_uint8_with_data_and_float_without() -> None:
    data = data_for("convolutions")
    result = anybit.quantize(convolutions(), data, effort="fast")
    assert {layer.activations for layer in result.layers} == {"uint8"}
    result = anybit.quantize(convolutions(), data, activations="float", effort="fast")
    assert {layer.activations for layer in result.layers} == {""}
    for options in ({"activations": "uint8"}, {"integer_only": True}):
        with pytest.raises(OptionError, match="activations need calibration data"):
            anybit.quantize(convolutions(), **options)


def test_keep_skips_layers_by_name_and_pattern() -> None:
    result = anybit.quantize(convolutions(), data_for("convolutions"), keep=["head", "p*wise"])
    assert result.skipped == {"head": "float was requested", "pointwise": "float was requested"}
    assert [layer.name for layer in result.layers] == ["first", "depthwise", "up"]
    with pytest.raises(OptionError, match="keep='heads': no layer matches; there are head"):
        anybit.quantize(convolutions(), data_for("convolutions"), keep=["heads"])


def test_result_names_skipped_operators() -> None:
    constants = {"table": random(9, 4), "w": random(4, 3)}
    nodes = [
        node("Cast", "x", "i", domain="", name="cast", to=onnx.TensorProto.INT64),
        node("Gather", "table i", "e", domain="", name="embedding"),
        node("MatMul", "e w", domain="", name="head"),
    ]
    proto = model(nodes, constants, inputs={"x": ["rows", 5]}, opsets=OPSETS)
    data = np.random.default_rng(0).integers(0, 9, (8, 5)).astype(np.float32)
    result = anybit.quantize(proto, data)
    assert list(result.skipped) == ["embedding"]
    assert [layer.name for layer in result.layers] == ["head"]


def test_quantize_of_weights_accepts_unknown_operators() -> None:
    """Test an operator without type inference: the type of the weight is that of the product."""
    nodes = [
        node("Secret", "x", "a", domain="some.where"),
        node("MatMul", "a w", "b", domain="", name="first"),
        node("Secret", "b", "c", domain="some.where"),
        node("Gemm", "c v", domain="", name="second"),
    ]
    constants = {"w": random(4, 3), "v": random(3, 5)}
    proto = model(nodes, constants, inputs={"x": ["rows", 4]}, opsets={**OPSETS, "some.where": 1})
    result = anybit.quantize(proto, weights="int4", activations="float")
    assert [layer.name for layer in result.layers] == ["first", "second"]
    assert not result.skipped
    kinds = [node.op_type for node in ir.to_proto(result.model).graph.node]
    assert kinds.count("Secret") == 2


def test_quantize_removes_initializers_from_the_inputs() -> None:
    proto = convolutions()
    for tensor in proto.graph.initializer:
        shape = list(tensor.dims)
        proto.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, shape)
        )
    result = anybit.quantize(proto, data_for("convolutions"))
    assert [value.name for value in result.model.graph.inputs] == ["x"]
    assert len(result.layers) == 5


def test_quantize_accepts_computed_biases_and_states() -> None:
    constants = {
        "w": random(3, 4, seed=1),
        "wl": random(1, 20, 3, seed=2) / 3,
        "rl": random(1, 20, 5, seed=3) / 3,
        "zero": np.array([0]),
    }
    nodes = [
        node("Abs", "c", "b", domain="", name="bias"),
        node("Gemm", "x w b", "g", domain="", name="head", transB=1),
        node("Unsqueeze", "g zero", "u", domain="", name="time"),
        node("Tanh", "h", "t", domain="", name="state"),
        node("LSTM", "u wl rl    t", "l", domain="", name="lstm", hidden_size=5),
        node("Squeeze", "l zero", "y", domain="", name="flat"),
    ]
    nodes[4].input[:] = ["u", "wl", "rl", "", "", "t"]
    inputs = {"x": [2, 4], "c": [3], "h": [1, 2, 5]}
    proto = model(nodes, constants, inputs=inputs, opsets=OPSETS)
    data = [
        {name: random(*shape, seed=seed) for name, shape in inputs.items()} for seed in range(8)
    ]
    result = anybit.quantize(proto, data)
    assert [layer.name for layer in result.layers] == ["head", "lstm"]
    assert result.verdict is not None
    assert result.verdict.sqnr > 25


def test_quantize_copies_a_weight_that_layers_use_along_different_axes() -> None:
    constants = {"w": random(4, 4, seed=1) * np.float32([1, 10, 100, 1000])}
    nodes = [
        node("Gemm", "x w", "a", domain="", name="one", transB=1),
        node("MatMul", "x w", "b", domain="", name="other"),
        node("Add", "a b", domain="", name="sum"),
    ]
    proto = model(nodes, constants, inputs={"x": ["rows", 4]}, opsets=OPSETS)
    result = anybit.quantize(proto, random(20, 4), weights="int8", activations="uint16")
    scales = [
        next(node for node in result.model.graph if node.name == name)
        .inputs[1]
        .producer()
        .inputs[1]
        for name in ("one", "other")
    ]
    assert [scale.shape.numpy() for scale in scales] == [(4, 1), (1, 4)]


def test_quantize_rejects_models_without_float_layers() -> None:
    with pytest.raises(
        ModelError, match=r"has quantizers already \(IntQuant\); quantize the float"
    ):
        anybit.quantize(quantized_input(), np.ones((1, 4), np.float32))
    relu = model([node("Relu", "x", domain="")])
    with pytest.raises(ModelError, match="nothing in it multiplies"):
        anybit.quantize(relu, np.ones((1, 4), np.float32))
    with pytest.raises(ModelError, match="no layer to quantize"):
        anybit.quantize(convolutions(), data_for("convolutions", 4), layers={"*": "float"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("int5 perchannel", 'unknown word "perchannel"; did you mean "per-channel"'),
        ("fp8", 'did you mean "float8_e4m3fn"'),
        ("1bit", 'did you mean "bipolar" or "uint1"'),
        ("quint8", 'did you mean "uint8"'),
        ("int4 per-group 32", 'unknown word "per-group"; did you mean "per-block NUMBER"'),
        ("int4 block 32", 'unknown word "block"; did you mean "per-block NUMBER"'),
        ("int40", "use 1 to 16 bits"),
        ("int1", "use bipolar for -1 and 1"),
        ("bipolar asymmetric", "asymmetric is for integers"),
    ],
)
def test_quantize_rejects_invalid_specs(words: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(convolutions(), weights=words, activations="float")
    if words == "int1":
        with pytest.raises(OptionError, match="sum need one scale"):
            anybit.quantize(convolutions(), weights="int8", activations="uint8 per-channel")


@pytest.mark.parametrize("value", [0.0, 5.0, 1e30, 1e-30])
def test_quantize_accepts_constant_data(value: float) -> None:
    data = np.full((4, 3, 8, 8), value, np.float32)
    result = anybit.quantize(convolutions(), data)
    assert result.verdict is not None
    y = anybit.load(result.model).run(data)["y"]
    assert np.isfinite(y).all()


def test_quantize_accepts_a_dead_channel_and_an_outlier() -> None:
    proto = convolutions()
    for tensor in proto.graph.initializer:
        if tensor.name == "w1":
            weight = onnx.numpy_helper.to_array(tensor).copy()
            weight[2] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(weight, "w1"))
    data = np.concatenate([sample["x"] for sample in data_for("convolutions")])
    data[3, 0, 0, 0] = 1e4
    result = anybit.quantize(proto, data)
    assert result.verdict is not None
    assert np.isfinite(anybit.load(result.model).run(data)["y"]).all()


def test_verdict_fails_for_a_broken_network() -> None:
    result = anybit.quantize(
        attention(), data_for("attention"), weights="bipolar", activations="bipolar"
    )
    assert result.verdict is not None
    assert not result.verdict.passed
    assert result.to_json()["verdict"]["passed"] is False
    assert repr(result).startswith("<anybit.QuantizationResult: ")
    assert " dB, " in repr(result)


def test_result_lists_range_candidates() -> None:
    data = data_for("attention", 8)
    result = anybit.quantize(attention(), data, activations="uint4")
    for layer in result.layers:
        if layer.name in ("scores", "context"):
            continue
        whole, *others = layer.tried
        errors = [candidate.error for candidate in others]
        assert len(others) == 7
        assert errors == sorted(errors)
        assert all(candidate.highest <= whole.highest or candidate.smoothed for candidate in others)
        assert whole.lowest < whole.highest
    wide = anybit.quantize(attention(), data, activations="uint16").layers[0]
    assert len(wide.tried) == 1


def test_verdict_lists_the_worst_samples() -> None:
    data = data_for("convolutions")
    data[8]["x"] *= 1e-3  # the bias alone is left, and all noise
    result = anybit.quantize(convolutions(), data, activations="uint4")
    worst = result.verdict.worst
    assert {sample.number for sample in worst} == {1, 4, 8, 13, 16, 21}
    floats, quantized = anybit.load(convolutions()), anybit.load(result.model)
    for sample in worst:
        a = floats.run(data[sample.number])["y"].astype(np.float64)
        b = quantized.run(data[sample.number])["y"]
        sqnr = 10 * np.log10(np.square(a).sum() / np.square(a - b).sum())
        assert sample.sqnr == pytest.approx(sqnr, abs=1e-3)
        assert sample.agrees == (a.argmax() == b.argmax())
    assert [sample.sqnr for sample in worst] == sorted(sample.sqnr for sample in worst)
