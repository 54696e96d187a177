# SPDX-License-Identifier: Apache-2.0
"""From float networks to few bits: what is quantized, how well, and what is said of it."""

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
def test_sixteen_bits_are_nearly_floats(name: str) -> None:
    found = anybit.quantize(
        NETWORKS[name](), data_for(name, 8), weights="int16", activations="uint16"
    )
    assert found.verdict is not None
    assert 70 < found.verdict.sqnr < 130
    assert found.verdict.passed


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("weights", "activations", "least"),
    [("int8", "uint8", 25), ("int8 power-of-two", "int8", 20), ("fp8_e4m3", "fp8_e4m3", 15)],
)
def test_eight_bits(name: str, weights: str, activations: str, least: float) -> None:
    found = anybit.quantize(
        NETWORKS[name](), data_for(name), weights=weights, activations=activations
    )
    assert found.verdict is not None
    assert found.verdict.sqnr > least
    assert not found.skipped
    assert anybit.check(found.model) is not None
    assert all(layer.weights or layer.name in ("scores", "context") for layer in found.layers)


def test_what_multiplies_is_quantized_and_nothing_else() -> None:
    found = anybit.quantize(attention(), data_for("attention"))
    made = kinds(found.model)
    names = {each.name: each for each in found.layers}
    assert list(names) == [
        *("query", "key", "value", "scores", "context", "output", "wide", "narrow"),
    ]
    assert (names["scores"].weights, names["scores"].activations) == ("", "uint8")
    # One tensor for the first three, two each for scores and context, three more; six weights.
    assert made.count("IntQuant") == 1 + 4 + 3 + 6
    for kind in ("Softmax", "LayerNormalization"):
        (untouched,) = [each for each in found.model.graph if each.op_type == kind]
        assert all(
            value.producer() is None or value.producer().op_type != "IntQuant"
            for value in untouched.inputs
        )


def test_normalization_and_biases_of_convolutions() -> None:
    found = anybit.quantize(convolutions(), data_for("convolutions"))
    assert "BatchNormalization" not in kinds(found.model)
    first = next(each for each in found.model.graph if each.name == "first")
    weight, bias = (value.producer() for value in first.inputs[1:])
    scales = [
        np.ravel(each.inputs[1].const_value.numpy())
        for each in (first.inputs[0].producer(), weight, bias)
    ]
    np.testing.assert_array_equal(scales[2], scales[0] * scales[1])
    assert bias.inputs[3].const_value.numpy() == 32


def test_what_was_judged_is_what_runs(tmp_path: Path) -> None:
    data = data_for("convolutions")
    found = anybit.quantize(convolutions(), data)
    found.save(tmp_path / "q.onnx")
    floats, quantized = anybit.load(convolutions()), anybit.load(tmp_path / "q.onnx")
    held = [each for index, each in enumerate(data) if is_held_out(index)]
    a = np.concatenate([floats.run(each)["y"] for each in held]).astype(np.float64)
    b = np.concatenate([quantized.run(each)["y"] for each in held])
    sqnr = 10 * np.log10(np.square(a).sum() / np.square(a - b).sum())
    assert found.verdict is not None
    # The float model of the verdict has its normalization folded, which moves it by roundings.
    assert found.verdict.sqnr == pytest.approx(sqnr, abs=1e-3)
    assert found.verdict.samples == len(held)
    assert found.verdict.logits_agreement == np.mean(a.argmax(-1) == b.argmax(-1))


def test_the_same_inputs_give_the_same_bytes() -> None:
    models = [anybit.quantize(attention(), data_for("attention")).model for _ in range(2)]
    a, b = (ir.to_proto(each).SerializeToString(deterministic=True) for each in models)
    assert a == b


def test_smoothing_changes_no_bit_of_the_float_function() -> None:
    data = data_for("attention", 48)
    for each in data:
        each["x"][..., 3] *= 100
    proto = attention()
    del proto.graph.node[0]
    for each in proto.graph.node[:3]:
        each.input[0] = "x"
    found = anybit.quantize(proto, data, weights="int16")
    assert any(layer.smoothed for layer in found.layers)
    bare = found.model.clone()
    for each in list(bare.graph):
        if each.op_type == "IntQuant":
            each.outputs[0].replace_all_uses_with(each.inputs[0])
    x = random(2, 5, 16)
    np.testing.assert_array_equal(anybit.load(bare).run(x)["y"], anybit.load(proto).run(x)["y"])


def test_channels_of_depthwise_convolutions_are_scaled() -> None:
    """Each has a weight scale of its own, so that this costs nothing."""
    constants = {"w": random(12, 1, 3, 3, seed=1), "b": random(12, seed=2)}
    nodes = [node("Conv", "x w b", domain="", name="conv", group=6)]
    proto = model(nodes, constants, inputs={"x": ["rows", 6, 5, 5]}, opsets=OPSETS)
    sizes = np.float32([1, 100, 1, 0.01, 1, 1000]).reshape(6, 1, 1)
    data = random(96, 6, 5, 5, seed=5) * sizes
    found = anybit.quantize(proto, data)
    assert found.layers[0].smoothed
    # Without it, the small channels are lost, all of them: one step of the largest is 10.
    y, q = anybit.load(proto).run(data)["y"], anybit.load(found.model).run(data)["y"]
    noise = np.square(y - q).mean(axis=(0, 2, 3)) / np.square(y).mean(axis=(0, 2, 3))
    assert noise.max() < 1e-2


def test_biases_make_up_for_the_mean_of_the_noise() -> None:
    """Inputs of one sign: rounded weights pull each channel to one side."""
    constants = {"w": random(6, 64, 1, 1, seed=1), "b": random(6, seed=2)}
    nodes = [node("Conv", "x w b", domain="", name="conv")]
    proto = model(nodes, constants, inputs={"x": ["rows", 64, 4, 4]}, opsets=OPSETS)
    data = np.abs(random(40, 64, 4, 4, seed=3)) / 10 + np.float32(1)
    found = anybit.quantize(proto, data, weights="int4")
    y, q = anybit.load(proto).run(data)["y"], anybit.load(found.model).run(data)["y"]
    means = np.abs((q - y).mean(axis=(0, 2, 3)))
    assert means.max() < 0.1 * np.abs(q - y).std(axis=(0, 2, 3)).max() + 0.02
    bare = anybit.quantize(proto, weights="int4", activations=None)
    pulled = np.abs((anybit.load(bare.model).run(data)["y"] - y).mean(axis=(0, 2, 3)))
    assert pulled.max() > 5 * means.max()


def test_weights_alone_need_no_data() -> None:
    found = anybit.quantize(convolutions(), weights="int4", activations=None)
    assert found.verdict is None
    assert {each.activations for each in found.layers} == {""}
    assert found.bytes_after < found.bytes_before / 4
    with pytest.raises(OptionError, match="activations need data"):
        anybit.quantize(convolutions())


def test_layers_that_are_kept() -> None:
    found = anybit.quantize(convolutions(), data_for("convolutions"), keep=["head", "p*wise"])
    assert found.skipped == {"head": "float was requested", "pointwise": "float was requested"}
    assert [each.name for each in found.layers] == ["first", "depthwise", "up"]
    with pytest.raises(OptionError, match="keep: no layer matches 'heads'; there are head"):
        anybit.quantize(convolutions(), data_for("convolutions"), keep=["heads"])


def test_what_is_left_is_named() -> None:
    constants = {"table": random(9, 4), "w": random(4, 3)}
    nodes = [
        node("Cast", "x", "i", domain="", name="cast", to=onnx.TensorProto.INT64),
        node("Gather", "table i", "e", domain="", name="embedding"),
        node("MatMul", "e w", domain="", name="head"),
    ]
    proto = model(nodes, constants, inputs={"x": ["rows", 5]}, opsets=OPSETS)
    data = np.random.default_rng(0).integers(0, 9, (8, 5)).astype(np.float32)
    found = anybit.quantize(proto, data)
    assert list(found.skipped) == ["embedding"]
    assert [each.name for each in found.layers] == ["head"]


def test_weights_alone_behind_operators_that_nobody_knows() -> None:
    """Both factors have one type, so that of the weight says the other."""
    nodes = [
        node("Secret", "x", "a", domain="some.where"),
        node("MatMul", "a w", "b", domain="", name="first"),
        node("Secret", "b", "c", domain="some.where"),
        node("Gemm", "c v", domain="", name="second"),
    ]
    constants = {"w": random(4, 3), "v": random(3, 5)}
    proto = model(nodes, constants, inputs={"x": ["rows", 4]}, opsets={**OPSETS, "some.where": 1})
    found = anybit.quantize(proto, weights="int4", activations=None)
    assert [each.name for each in found.layers] == ["first", "second"]
    assert not found.skipped
    kinds = [each.op_type for each in ir.to_proto(found.model).graph.node]
    assert kinds.count("Secret") == 2


def test_constants_among_the_inputs() -> None:
    proto = convolutions()
    for each in proto.graph.initializer:
        shape = list(each.dims)
        proto.graph.input.append(
            onnx.helper.make_tensor_value_info(each.name, onnx.TensorProto.FLOAT, shape)
        )
    found = anybit.quantize(proto, data_for("convolutions"))
    assert [
        each.value if hasattr(each, "value") else each.name for each in found.model.graph.inputs
    ] == ["x"]
    assert len(found.layers) == 5


def test_layers_with_computed_biases_and_states() -> None:
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
    found = anybit.quantize(proto, data)
    assert [each.name for each in found.layers] == ["head", "lstm"]
    assert found.verdict is not None
    assert found.verdict.sqnr > 25


def test_a_weight_that_two_layers_read_along_different_axes() -> None:
    constants = {"w": random(4, 4, seed=1) * np.float32([1, 10, 100, 1000])}
    nodes = [
        node("Gemm", "x w", "a", domain="", name="one", transB=1),
        node("MatMul", "x w", "b", domain="", name="other"),
        node("Add", "a b", domain="", name="sum"),
    ]
    proto = model(nodes, constants, inputs={"x": ["rows", 4]}, opsets=OPSETS)
    found = anybit.quantize(proto, random(20, 4), weights="int8", activations="uint16")
    scales = [
        next(each for each in found.model.graph if each.name == name).inputs[1].producer().inputs[1]
        for name in ("one", "other")
    ]
    assert [each.shape.numpy() for each in scales] == [(4, 1), (1, 4)]


def test_models_that_cannot_be_quantized() -> None:
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
        ("int5 perchannel", 'unknown option "perchannel"; did you mean "per-channel"'),
        ("fp8", 'did you mean "float8_e4m3fn"'),
        ("1bit", 'did you mean "bipolar" or "uint1"'),
        ("quint8", 'did you mean "uint8"'),
        ("int4 per-group 32", 'unknown option "per-group"; did you mean "per-block NUMBER"'),
        ("int4 block 32", 'unknown option "block"; did you mean "per-block NUMBER"'),
        ("int40", "use 1 to 16 bits"),
        ("int1", "use bipolar for -1 and 1"),
        ("bipolar asymmetric", "asymmetric is for integers"),
    ],
)
def test_words_that_mean_nothing(words: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(convolutions(), weights=words, activations=None)
    if words == "int1":
        with pytest.raises(OptionError, match="sum need one scale"):
            anybit.quantize(convolutions(), weights="int8", activations="uint8 per-channel")


@pytest.mark.parametrize("value", [0.0, 5.0, 1e30, 1e-30])
def test_data_without_variety(value: float) -> None:
    data = np.full((4, 3, 8, 8), value, np.float32)
    found = anybit.quantize(convolutions(), data)
    assert found.verdict is not None
    y = anybit.load(found.model).run(data)["y"]
    assert np.isfinite(y).all()


def test_a_dead_channel_and_an_outlier() -> None:
    proto = convolutions()
    for each in proto.graph.initializer:
        if each.name == "w1":
            weight = onnx.numpy_helper.to_array(each).copy()
            weight[2] = 0
            each.CopyFrom(onnx.numpy_helper.from_array(weight, "w1"))
    data = np.concatenate([each["x"] for each in data_for("convolutions")])
    data[3, 0, 0, 0] = 1e4
    found = anybit.quantize(proto, data)
    assert found.verdict is not None
    assert np.isfinite(anybit.load(found.model).run(data)["y"]).all()


def test_a_network_that_breaks_is_not_passed() -> None:
    found = anybit.quantize(
        attention(), data_for("attention"), weights="bipolar", activations="bipolar"
    )
    assert found.verdict is not None
    assert not found.verdict.passed
    assert found.to_json()["verdict"]["passed"] is False
    assert repr(found).startswith("<anybit.QuantizationResult: ")
    assert " dB, " in repr(found)


def test_candidates_are_told() -> None:
    data = data_for("attention", 8)
    found = anybit.quantize(attention(), data, activations="uint4")
    for layer in found.layers:
        if layer.name in ("scores", "context"):
            continue
        whole, *others = layer.tried
        errors = [each.error for each in others]
        assert len(others) == 7
        assert errors == sorted(errors)
        assert all(each.highest <= whole.highest or each.smoothed for each in others)
        assert whole.lowest < whole.highest
    wide = anybit.quantize(attention(), data, activations="uint16").layers[0]
    assert len(wide.tried) == 1


def test_the_worst_samples_are_told() -> None:
    data = data_for("convolutions")
    data[8]["x"] *= 1e-3  # the bias alone is left, and all noise
    found = anybit.quantize(convolutions(), data, activations="uint4")
    worst = found.verdict.worst
    assert {each.number for each in worst} == {1, 4, 8, 13, 16, 21}
    floats, quantized = anybit.load(convolutions()), anybit.load(found.model)
    for each in worst:
        a = floats.run(data[each.number])["y"].astype(np.float64)
        b = quantized.run(data[each.number])["y"]
        sqnr = 10 * np.log10(np.square(a).sum() / np.square(a - b).sum())
        assert each.sqnr == pytest.approx(sqnr, abs=1e-3)
        assert each.agrees == (a.argmax() == b.argmax())
    assert [each.sqnr for each in worst] == sorted(each.sqnr for each in worst)


def test_samples_are_called_by_their_files(tmp_path: Path) -> None:
    from anybit.data.dataset import Dataset
    from anybit.inputs import TensorInfo

    tensor = TensorInfo("x", np.dtype(np.float32), (None, 4))
    np.save(tmp_path / "a.npy", np.ones((2, 4), np.float32))
    np.save(tmp_path / "b.npy", np.ones((1, 4), np.float32))
    assert list(Dataset(tmp_path, (tensor,)).iterate_names()) == ["a.npy[0]", "a.npy[1]", "b.npy"]
    assert list(Dataset(np.ones((2, 4)), (tensor,)).iterate_names()) == ["", ""]
    assert list(Dataset(iter(np.ones((2, 1, 4))), (tensor,)).iterate_names()) == ["", ""]
