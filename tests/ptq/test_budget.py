# SPDX-License-Identifier: Apache-2.0
"""Mixed precision within budgets of noise, bytes and bit operations."""

import json
import math
import re
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from float_models import NETWORKS, attention, convolutions, data_for
from pass_checks import random
from places import ROOT
from small_models import model, node

import anybit
from anybit import ModelError, OptionError
from anybit.ptq.budget import parse_budget
from anybit.ptq.config import DEFAULT
from anybit.ptq.mixed_precision.assignment_search import choose_least_width
from anybit.ptq.mixed_precision.noise_model import interpolate_noise


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4MB", ("bytes", 4 * 2**20)),
        ("500KB", ("bytes", 500 * 2**10)),
        (" 1.5 KiB ", ("bytes", 1536)),
        ("10 bytes", ("bytes", 10)),
        ("2gb", ("bytes", 2 * 2**30)),
        ("30dB", ("noise", 1e-3)),
        ("20 DB", ("noise", 1e-2)),
        ("50%bops", ("bops", 0.5)),
        ("12.5 % BOPs", ("bops", 0.125)),
    ],
)
def test_parse_budget_returns_kind_and_limit(text: str, expected: tuple[str, float]) -> None:
    budget = parse_budget(text)
    assert (budget.kind.value, budget.limit) == (expected[0], pytest.approx(expected[1]))
    assert budget.text == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give a size"),
        ("30", "give a size"),
        ("dB", "give a size"),
        ("-30dB", "give a size"),
        ("nan dB", "give a size"),
        ("1e9dB", "give a size"),
        ("30dB 4MB", "give a size"),
        ("0MB", "nothing is left"),
        ("0dB", "nothing is left"),
        ("500dB", "an SQNR must be at most 150dB"),
        ("50%", "shares are of bit operations"),
        ("50% MB", "shares are of bit operations"),
        ("50bops", "give a size"),
        ("2ns", "give a size"),
        ("2ms", "give a size"),
        ("9" * 400 + "MB", "give a size"),
        ("\x00MB", "give a size"),
        ("٣dB", "give a size"),
    ],
)
def test_parse_budget_rejects_other_text(words: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_budget(words)


@pytest.mark.parametrize("name", NETWORKS)
def test_budget_of_noise_is_reached(name: str) -> None:
    result = anybit.quantize(NETWORKS[name](), data_for(name, 8), budget="42dB")
    assert result.verdict is not None
    assert result.verdict.sqnr >= 42
    assert {layer.weight_bits for layer in result.layers} <= {0, 2, 3, 4, 5, 6, 7, 8, 16}
    points = [(point.name, point.bytes, point.bops, point.sqnr) for point in result.front]
    assert len(set(points)) == len(points)
    for layer in result.layers:
        assert layer.macs > 0
        assert layer.output_sqnr > 30
    (chosen,) = [point for point in result.front if point.chosen]
    assert chosen.bytes == result.bytes_after
    assert chosen.sqnr == pytest.approx(result.verdict.sqnr)
    assert json.loads(json.dumps(result.to_json()))["front"]
    if name == "attention":  # layers that share a tensor move together
        read = {layer.name: layer.activations for layer in result.layers}
        assert read["query"] == read["key"] == read["value"]


def test_budget_of_bytes_beats_a_uniform_width() -> None:
    data = data_for("convolutions", 8)
    whole = anybit.quantize(convolutions(), data, weights="int4")
    result = anybit.quantize(convolutions(), data, budget=f"{whole.bytes_after}B")
    assert result.bytes_after <= whole.bytes_after
    assert result.verdict.sqnr > whole.verdict.sqnr
    assert {layer.activations for layer in result.layers} == {"uint8"}


def test_budget_of_bit_operations_is_kept_and_deterministic() -> None:
    data = data_for("attention", 8)
    result, again = (anybit.quantize(attention(), data, budget="60%bops") for _ in range(2))
    a, b = (ir.to_proto(run.model).SerializeToString(deterministic=True) for run in (result, again))
    assert a == b
    whole = sum(layer.macs for layer in result.layers) * 64
    bops = 0
    for layer in result.layers:
        kinds = [layer.weights] * bool(layer.weights) + layer.activations.split(", ")
        widths = [int(kind.lstrip("uint")) for kind in kinds]
        # Products of two tensors name one kind where both have it.
        bops += layer.macs * math.prod([*widths, *widths][:2])
    assert bops <= 0.6 * whole
    (chosen,) = [point for point in result.front if point.chosen]
    assert chosen.bops == bops
    assert len({layer.weights for layer in result.layers}) > 1


def test_budget_of_noise_is_deterministic() -> None:
    # Evaluated assignments are forgotten, and later ones depend on cached parameters.
    data = data_for("convolutions", 12)
    shares: list[float] = []
    results = [
        anybit.quantize(convolutions(), data, budget="45dB", progress=callback)
        for callback in (None, shares.append)
    ]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    a, b = (ir.to_proto(result.model).SerializeToString(deterministic=True) for result in results)
    assert a == b
    assert results[0].verdict.sqnr >= 45
    assert len({layer.weight_bits for layer in results[0].layers}) > 1


@pytest.mark.parametrize("budget", ["50%bops", "3660 bytes"])
def test_budget_is_not_worse_than_a_uniform_width(budget: str) -> None:
    examples = ROOT / "examples"
    data = examples / "digits.npz"
    even = anybit.quantize(examples / "digits_float.onnx", data, weights="int4")
    result = anybit.quantize(examples / "digits_float.onnx", data, budget=budget)
    assert even.bytes_after <= 3660
    assert result.verdict.sqnr >= even.verdict.sqnr


@pytest.mark.parametrize(
    ("share", "bits"), [(2.0, 8), (1.0, 8), (0.99, 6), (0.5625, 6), (0.56, 4), (0.01, 4)]
)
def test_choose_least_width_follows_the_uniform_width(share: float, bits: int) -> None:
    assert choose_least_width(share, DEFAULT.budget) == bits


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ["digits", *NETWORKS])
@pytest.mark.parametrize("share", ["35%bops", "50%bops", "75%bops"])
def test_budget_of_bit_operations_narrows_activations_where_better(
    name: str, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, data = _network(name)
    result = anybit.quantize(source, data, budget=share)
    monkeypatch.setattr(
        "anybit.ptq.mixed_precision.budget_search.choose_least_width", lambda share, config: 8
    )
    wide = anybit.quantize(source, data, budget=share)
    assert {layer.activation_bits for layer in wide.layers} <= {8, 16}
    assert {layer.activation_bits for layer in result.layers} <= {4, 5, 6, 7, 8, 16}
    assert result.verdict.sqnr >= wide.verdict.sqnr
    if share == "35%bops":
        assert result.verdict.sqnr > wide.verdict.sqnr + 3
        assert min(layer.activation_bits for layer in result.layers) < 8


def _network(name: str) -> tuple[Any, Any]:
    """Return a float model and data."""
    if name == "digits":
        examples = ROOT / "examples"
        return examples / "digits_float.onnx", examples / "digits.npz"
    return NETWORKS[name](), data_for(name, 12)


def test_budget_of_bit_operations_reaches_small_shares() -> None:
    result = anybit.quantize(convolutions(), data_for("convolutions", 12), budget="15%bops")
    (chosen,) = [point for point in result.front if point.chosen]
    whole = 64 * sum(layer.macs for layer in result.layers)
    assert 0.12 * whole < chosen.bops <= 0.15 * whole
    assert {"int4/uint4", "int4/uint8", "int8/uint8"} <= {point.name for point in result.front}


@pytest.mark.parametrize("budget", ["30dB", "1500B", "100%bops"])
def test_budgets_of_noise_and_bytes_do_not_narrow_activations(budget: str) -> None:
    result = anybit.quantize(convolutions(), data_for("convolutions", 8), budget=budget)
    assert {layer.activation_bits for layer in result.layers} <= {8, 16}


def test_interpolate_noise_is_infinite_without_noise() -> None:
    # An activation in the flat part of a function has no noise.
    noise = interpolate_noise(0.0, [0.0], 4, DEFAULT.budget)
    assert set(noise.values()) == {math.inf}
    assert interpolate_noise(0.0, [1.0], 4, DEFAULT.budget) == pytest.approx(
        {4: 1, 5: 0.25, 6: 0.0625, 7: 0.015625}
    )
    assert interpolate_noise(1e-4, [1e-2], 4, DEFAULT.budget)[6] == pytest.approx(1e-3)
    assert interpolate_noise(1e-4, [], 6, DEFAULT.budget) == pytest.approx({6: 1.6e-3, 7: 4e-4})


def test_budget_of_noise_is_reached_with_clipped_ranges() -> None:
    # Noise of clipping does not fall with the width as that of rounding does.
    generator = np.random.default_rng(4)
    w, b, v, c, x = (
        generator.normal(size=shape).astype(np.float32)
        for shape in ((8, 16), 16, (16, 5), 5, (200, 8))
    )
    nodes = [
        node("Gemm", "x w b", "h", domain="", name="first"),
        node("Relu", "h", "r", domain="", name="relu"),
        node("Gemm", "r v c", domain="", name="second"),
    ]
    constants = {"w": w, "b": b, "v": v, "c": c}
    proto = model(nodes, constants, inputs={"x": ["rows", 8]}, opsets={"": 17})
    assert anybit.quantize(proto, x, budget="30dB").verdict.sqnr >= 30
    assert anybit.quantize(proto, x, budget="70dB").verdict.sqnr >= 70


def test_budget_of_noise_counts_bytes_without_activations() -> None:
    data = data_for("convolutions", 8)
    result = anybit.quantize(convolutions(), data, activations="float", budget="25dB")
    assert result.verdict.sqnr >= 25
    assert {layer.activations for layer in result.layers} == {""}
    assert result.bytes_after < result.bytes_before / 4


def test_budget_keeps_named_layers_and_other_formats() -> None:
    data = data_for("convolutions", 16)
    layers = {"head": "int3/mxfp8", "up": "fp8_e4m3/fp8_e4m3", "first": "float"}
    result = anybit.quantize(convolutions(), data, layers=layers, budget="70%bops")
    widths = {layer.name: (layer.weights, layer.activations) for layer in result.layers}
    assert widths["head"] == ("int3", "mxfp8")
    assert widths["up"] == ("float8_e4m3fn", "float8_e4m3fn")
    assert "first" in result.skipped


def test_budget_keeps_the_width_of_weights_without_noise() -> None:
    # All values of these data are clipped.
    constants = {
        "w": np.abs(random(6, 6, seed=1)) + np.float32(1),
        "v": random(6, 3, seed=2),
        "low": np.float32(0),
        "high": np.float32(1),
    }
    nodes = [
        node("MatMul", "x w", "a", domain="", name="saturated"),
        node("Clip", "a low high", "c", domain="", name="clip"),
        node("MatMul", "x v", "b", domain="", name="plain"),
        node("MatMul", "c v", "d", domain="", name="behind"),
        node("Add", "b d", "y", domain="", name="sum"),
    ]
    proto = model(nodes, constants, inputs={"x": ["rows", 6]}, opsets={"": 17})
    data = np.abs(random(64, 6)) + np.float32(3)
    result = anybit.quantize(proto, data, budget="20dB")
    widths = {layer.name: layer.weight_bits for layer in result.layers}
    assert widths["saturated"] >= 8
    assert widths["plain"] < 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("140dB", r"not reached; the best of \d evaluated gives \d+\.\d dB; lower"),
        ("100B", r"the least possible is \d+ bytes of constants"),
        ("1%bops", r"the least possible is \d+(\.\d)? % of the operations"),
    ],
)
def test_budget_error_reports_the_least_possible(words: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        anybit.quantize(convolutions(), data_for("convolutions", 12), budget=words)
    assert re.match(f"budget={re.escape(repr(words))}: ", str(caught.value))


def test_budget_needs_data_integers_and_float_outputs() -> None:
    data = data_for("convolutions", 8)
    with pytest.raises(OptionError, match=r"budget='30dB' needs data"):
        anybit.quantize(convolutions(), activations="float", budget="30dB")
    with pytest.raises(ModelError, match="chooses the widths of integers"):
        anybit.quantize(convolutions(), data, weights="fp8_e4m3", budget="30dB")
    nodes = [
        node("MatMul", "x w", "a", domain="", name="layer"),
        node("ArgMax", "a", "y", domain="", name="largest", axis=1),
    ]
    proto = model(nodes, {"w": random(4, 4)}, inputs={"x": ["rows", 4]}, opsets={"": 17})
    proto.graph.output[0].type.tensor_type.elem_type = 7
    for words in ("30dB", "1KB", "50%bops"):
        with pytest.raises(ModelError, match=f"budget {words}: .*there are none; let the model"):
            anybit.quantize(proto, random(16, 4), budget=words)


@pytest.mark.parametrize(("layers", "count"), [({}, 5), ({"head": "ternary"}, 4)])
def test_budget_remarks_on_replaced_ternary_layers(layers: dict[str, str], count: int) -> None:
    result = anybit.quantize(
        convolutions(), data_for("convolutions", 8), weights="ternary", layers=layers, budget="1KB"
    )
    (remark,) = [remark for remark in result.remarks if "ternary" in remark]
    assert remark.startswith(f"The budget gives {count} layers integers of other widths")
    assert [layer.name for layer in result.layers if layer.weights == "ternary"] == list(layers)


@pytest.mark.parametrize("activations", ["uint8", "float"])
def test_budget_of_bit_operations_keeps_its_share(activations: str) -> None:
    proto, data = NETWORKS["convolutions"](), data_for("convolutions", 8)
    whole = anybit.quantize(proto, data, activations=activations, budget="100%bops")
    half = anybit.quantize(proto, data, activations=activations, budget="50%bops")

    def operations(result: anybit.QuantizationResult) -> float:
        return sum(
            layer.macs * layer.weight_bits * layer.activation_bits for layer in result.layers
        )

    of_int8 = 8 * (8 if activations == "uint8" else 32) * sum(layer.macs for layer in whole.layers)
    assert 0.9 * of_int8 < operations(whole) <= of_int8
    assert 0.4 * of_int8 < operations(half) <= 0.5 * of_int8
