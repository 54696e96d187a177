# SPDX-License-Identifier: Apache-2.0
"""Factors for the channels of weights whose activations stay in floats."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from float_models import NETWORKS, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit.ptq.algorithms.awq import select_awq_factors
from anybit.ptq.algorithms.gptq import GptqRounder
from anybit.ptq.algorithms.layer_runner import LayerRunner, scale_weight
from anybit.ptq.algorithms.round_to_nearest import round_to_nearest
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph.targets import find_targets
from anybit.ptq.search import layer_search as search
from anybit.quant_types.spec import parse_quant_spec

Array = np.ndarray


def product(weights: Array) -> ir.Model:
    """x @ weights."""
    shapes = {"x": ["n", len(weights)]}
    return ir.from_proto(model([node("MatMul", "x w", domain="")], {"w": weights}, inputs=shapes))


def make_runner(weights: Array, words: str) -> LayerRunner:
    of = product(weights)
    (layer,) = find_targets(of).layers
    return LayerRunner(of, layer, 0, parse_quant_spec(words, "weights"), DEFAULT)


def select_factors(runner: LayerRunner, x: Array) -> Array | None:
    samples = [{"x": x}]
    return select_awq_factors([runner], GptqRounder(None, None, samples), DEFAULT.awq)


def measure_noise(runner: LayerRunner, x: Array, factors: Array | None) -> float:
    """The squared error of all weights, times the power of what each is multiplied with."""
    ((weight, array),) = runner.layer.constants
    s = np.ones(len(array), np.float32) if factors is None else factors
    power = np.square(x, dtype=np.float64).mean(axis=0)[:, None]
    assert runner.spec is not None
    costs = np.broadcast_to(power / np.square(s, dtype=np.float64)[:, None], array.shape)
    scaled = scale_weight(array, weight, s)
    rounded = round_to_nearest(scaled, weight, runner.spec, DEFAULT.weights, costs).values
    return float((np.square(rounded / s[:, None] - array, dtype=np.float64) * power).sum())


def test_what_lies_between_powers_of_two_is_given_back() -> None:
    on_grid = np.random.default_rng(0).choice([-6, -3, -2, -1.5, 1, 1.5, 4, 6], (32, 24))
    weights = (on_grid * np.exp2(np.arange(32) % 8 / 8)[:, None]).astype(np.float32)
    runner, x = make_runner(weights, "mxfp4"), random(50, 32, seed=1)
    found = select_factors(runner, x)
    assert measure_noise(runner, x, found) < measure_noise(runner, x, None) / 20


def test_nearly_the_best_of_all_factors() -> None:
    """Of an octave for each of two channels, in 64 steps."""
    steps = np.exp2(np.arange(-4, 4) / 8).astype(np.float32)
    worse = []
    for seed in range(8):
        runner, x = make_runner(random(2, 6, seed=seed), "mxfp4"), random(40, 2, seed=seed + 90)
        all_there_are = (np.float32(each) for each in itertools.product(steps, repeat=2))
        best = min(measure_noise(runner, x, each) for each in all_there_are)
        found = measure_noise(runner, x, select_factors(runner, x))
        worse.append((found - best) / measure_noise(runner, x, None))
    assert np.mean(worse) < 0.03


@pytest.mark.parametrize(
    ("words", "share"), [("mxfp4", 0.75), ("mxfp6", 0.75), ("mxfp4 ceil", 0.9)]
)
@pytest.mark.parametrize("channels", [2, 32, 100])
def test_there_is_less_noise(words: str, share: float, channels: int) -> None:
    shares = []
    for seed in range(5):
        runner = make_runner(random(channels, 24, seed=seed), words)
        x = random(40, channels, seed=seed + 90)
        shares.append(
            measure_noise(runner, x, select_factors(runner, x)) / measure_noise(runner, x, None)
        )
    assert np.mean(shares) < share


def test_the_function_stays_within_rounding() -> None:
    weights = random(96, 40)
    runner, x = make_runner(weights, "mxfp4"), random(64, 96) * np.exp2(np.arange(96) % 9)
    x = x.astype(np.float32)
    found = select_factors(runner, x)
    assert found is not None
    assert found.dtype == np.float32
    (larger,) = runner.scale_weights(found)
    (become,) = (runner.make_input_rounding(None, found)(x),)
    y = x.astype(np.float64) @ weights
    assert np.abs(become.astype(np.float64) @ larger - y).max() < 1e-5 * np.abs(y).max()


@pytest.mark.parametrize("words", ["int4", "nvfp4", "mxint8", "mxfp8", "int4 per-block 32"])
def test_floats_for_scales_and_eight_bits_are_fine_without(words: str) -> None:
    assert select_factors(make_runner(random(64, 40), words), random(64, 64)) is None


def test_nothing_is_enlarged() -> None:
    """So that what is large stays finite."""
    runner = make_runner(random(64, 40) * np.float32(1e-37), "mxfp4")
    x = (random(50, 64) * np.float32(1e37)).clip(-3.4e38, 3.4e38)
    found = select_factors(runner, x)
    assert found is not None
    assert 1 <= found.min() < 2
    assert np.isfinite(
        runner.make_input_rounding(None, found)(np.full((1, 64), 3.4e38, np.float32))
    ).all()


def test_weights_at_the_end_of_float32_stay_finite() -> None:
    runner = make_runner(random(64, 40).clip(-3, 3) * np.float32(1.1e38), "mxfp4")
    assert select_factors(runner, random(50, 64)) is None


def test_what_is_on_its_grid_needs_no_factors() -> None:
    weights = np.random.default_rng(0).choice([-6, -3, -1.5, 1, 2, 6], (64, 40))
    data = random(50, 64)
    found = anybit.quantize(
        product(weights.astype(np.float32)), data, weights="mxfp4", activations=None
    )
    assert not found.layers[0].smoothed
    zeros = np.zeros((50, 64), np.float32)
    found = anybit.quantize(product(random(64, 40)), zeros, weights="mxfp4", activations=None)
    assert not found.layers[0].smoothed


def test_layers_that_read_the_same_have_factors_in_common() -> None:
    nodes = [
        node("MatMul", "x v", "a", domain="", name="first"),
        node("MatMul", "x w", "b", domain="", name="second"),
        node("Add", "a b", domain=""),
    ]
    constants = {"v": random(64, 24), "w": random(64, 24, seed=1) * 5}
    found = anybit.quantize(
        model(nodes, constants, inputs={"x": ["n", 64]}),
        random(200, 64, seed=2),
        weights="mxfp4",
        activations=None,
    )
    assert [layer.smoothed for layer in found.layers] == [True, True]
    assert sum(each.op_type == "Mul" for each in found.model.graph) == 1


@pytest.mark.parametrize("words", ["mxfp4", "mxfp4 floor", "mxfp6"])
def test_layers_lose_less(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gains = []
    for name in ("convolutions", "attention"):
        found, plain = (
            _quantized(monkeypatch, each, name, words)
            for each in (select_awq_factors, lambda *_: None)
        )
        pairs = zip(found.layers, plain.layers, strict=True)
        gains += [a.sqnr - b.sqnr for a, b in pairs if a.sqnr and b.sqnr]
    assert len(gains) > 8
    assert np.mean(gains) > 1.0
    assert min(gains) > -0.5


def _quantized(
    monkeypatch: pytest.MonkeyPatch, rescaled: object, name: str, words: str
) -> anybit.QuantizationResult:
    monkeypatch.setattr(search, "select_awq_factors", rescaled)
    return anybit.quantize(NETWORKS[name](), data_for(name, 48), weights=words, activations=None)
