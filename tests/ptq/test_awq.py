# SPDX-License-Identifier: Apache-2.0
"""Activation-aware weight scaling (AWQ) of layers with float activations."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from float_models import NETWORKS, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit.ptq.algorithms import registry
from anybit.ptq.algorithms.awq import select_awq_factors
from anybit.ptq.algorithms.gptq import GptqRounder
from anybit.ptq.algorithms.layer_runner import LayerRunner, scale_weight
from anybit.ptq.algorithms.round_to_nearest import round_to_nearest
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph.targets import find_targets
from anybit.quant_types.spec import parse_quant_spec

Array = np.ndarray


def product(weights: Array) -> ir.Model:
    """Return a model that computes x @ weights."""
    shapes = {"x": ["n", len(weights)]}
    return ir.from_proto(model([node("MatMul", "x w", domain="")], {"w": weights}, inputs=shapes))


def make_runner(weights: Array, spec: str) -> LayerRunner:
    network = product(weights)
    (layer,) = find_targets(network).layers
    return LayerRunner(network, layer, 0, parse_quant_spec(spec, "weights"), DEFAULT)


def select_factors(runner: LayerRunner, x: Array) -> Array | None:
    samples = [{"x": x}]
    return select_awq_factors([runner], GptqRounder(None, None, samples), DEFAULT)


def measure_noise(runner: LayerRunner, x: Array, factors: Array | None) -> float:
    """Return the squared error of all weights, each times the power of its input channel."""
    ((weight, array),) = runner.layer.constants
    s = np.ones(len(array), np.float32) if factors is None else factors
    power = np.square(x, dtype=np.float64).mean(axis=0)[:, None]
    assert runner.spec is not None
    costs = np.broadcast_to(power / np.square(s, dtype=np.float64)[:, None], array.shape)
    scaled = scale_weight(array, weight, s)
    rounded = round_to_nearest(scaled, weight, runner.spec, DEFAULT.weights, lambda: costs).values
    return float((np.square(rounded / s[:, None] - array, dtype=np.float64) * power).sum())


def test_awq_recovers_scales_between_powers_of_two() -> None:
    on_grid = np.random.default_rng(0).choice([-6, -3, -2, -1.5, 1, 1.5, 4, 6], (32, 24))
    weights = (on_grid * np.exp2(np.arange(32) % 8 / 8)[:, None]).astype(np.float32)
    runner, x = make_runner(weights, "mxfp4"), random(50, 32, seed=1)
    factors = select_factors(runner, x)
    assert measure_noise(runner, x, factors) < measure_noise(runner, x, None) / 20


def test_awq_is_near_exhaustive_search() -> None:
    """Compare with 8 x 8 factors, 8 steps of an octave for each of two channels."""
    steps = np.exp2(np.arange(-4, 4) / 8).astype(np.float32)
    worse = []
    for seed in range(8):
        runner, x = make_runner(random(2, 6, seed=seed), "mxfp4"), random(40, 2, seed=seed + 90)
        candidates = (np.float32(factors) for factors in itertools.product(steps, repeat=2))
        best = min(measure_noise(runner, x, factors) for factors in candidates)
        noise = measure_noise(runner, x, select_factors(runner, x))
        worse.append((noise - best) / measure_noise(runner, x, None))
    assert np.mean(worse) < 0.03


@pytest.mark.parametrize(("spec", "share"), [("mxfp4", 0.75), ("mxfp6", 0.75), ("mxfp4 ceil", 0.9)])
@pytest.mark.parametrize("channels", [2, 32, 100])
def test_awq_lowers_noise(spec: str, share: float, channels: int) -> None:
    shares = []
    for seed in range(5):
        runner = make_runner(random(channels, 24, seed=seed), spec)
        x = random(40, channels, seed=seed + 90)
        shares.append(
            measure_noise(runner, x, select_factors(runner, x)) / measure_noise(runner, x, None)
        )
    assert np.mean(shares) < share


def test_awq_keeps_the_function_within_rounding() -> None:
    weights = random(96, 40)
    runner, x = make_runner(weights, "mxfp4"), random(64, 96) * np.exp2(np.arange(96) % 9)
    x = x.astype(np.float32)
    factors = select_factors(runner, x)
    assert factors is not None
    assert factors.dtype == np.float32
    (scaled,) = runner.scale_weights(factors)
    (divided,) = (runner.make_input_rounding(None, factors)(x),)
    y = x.astype(np.float64) @ weights
    assert np.abs(divided.astype(np.float64) @ scaled - y).max() < 1e-5 * np.abs(y).max()


@pytest.mark.parametrize("spec", ["int4", "nvfp4", "mxint8", "mxfp8", "int4 per-block 32"])
def test_awq_skips_float_scales_and_eight_bits(spec: str) -> None:
    assert select_factors(make_runner(random(64, 40), spec), random(64, 64)) is None


def test_awq_does_not_enlarge_activations() -> None:
    """Check that large activations stay finite."""
    runner = make_runner(random(64, 40) * np.float32(1e-37), "mxfp4")
    x = (random(50, 64) * np.float32(1e37)).clip(-3.4e38, 3.4e38)
    factors = select_factors(runner, x)
    assert factors is not None
    assert 1 <= factors.min() < 2
    assert np.isfinite(
        runner.make_input_rounding(None, factors)(np.full((1, 64), 3.4e38, np.float32))
    ).all()


def test_awq_skips_weights_that_would_overflow_float32() -> None:
    runner = make_runner(random(64, 40).clip(-3, 3) * np.float32(1.1e38), "mxfp4")
    assert select_factors(runner, random(50, 64)) is None


def test_awq_skips_weights_without_error() -> None:
    weights = np.random.default_rng(0).choice([-6, -3, -1.5, 1, 2, 6], (64, 40))
    data = random(50, 64)
    result = anybit.quantize(
        product(weights.astype(np.float32)), data, weights="mxfp4", activations="float"
    )
    assert not result.layers[0].smoothed
    zeros = np.zeros((50, 64), np.float32)
    result = anybit.quantize(product(random(64, 40)), zeros, weights="mxfp4", activations="float")
    assert not result.layers[0].smoothed


def test_awq_shares_factors_between_layers_with_the_same_input() -> None:
    nodes = [
        node("MatMul", "x v", "a", domain="", name="first"),
        node("MatMul", "x w", "b", domain="", name="second"),
        node("Add", "a b", domain=""),
    ]
    constants = {"v": random(64, 24), "w": random(64, 24, seed=1) * 5}
    result = anybit.quantize(
        model(nodes, constants, inputs={"x": ["n", 64]}),
        random(200, 64, seed=2),
        weights="mxfp4",
        activations="float",
    )
    assert [layer.smoothed for layer in result.layers] == [True, True]
    assert [op.op_type for op in result.model.graph].count("Mul") == 1


@pytest.mark.parametrize("spec", ["mxfp4", "mxfp4 floor", "mxfp6"])
def test_awq_raises_the_sqnr_of_layers(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gains = []
    for name in ("convolutions", "attention"):
        scaled, plain = (
            _quantize(monkeypatch, select, name, spec)
            for select in (select_awq_factors, lambda *_: None)
        )
        pairs = zip(scaled.layers, plain.layers, strict=True)
        gains += [a.sqnr - b.sqnr for a, b in pairs if a.sqnr and b.sqnr]
    assert len(gains) > 8
    assert np.mean(gains) > 1.0
    assert min(gains) > -0.5


def _quantize(
    monkeypatch: pytest.MonkeyPatch, rescaled: object, name: str, spec: str
) -> anybit.QuantizationResult:
    monkeypatch.setattr(registry, "WEIGHT_SCALINGS", [rescaled])
    return anybit.quantize(NETWORKS[name](), data_for(name, 48), weights=spec, activations="float")
