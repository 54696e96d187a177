# SPDX-License-Identifier: Apache-2.0
"""Guarantees hold for sums in other orders: equal codes, or listed risks."""

import numpy as np
import pytest
from text_models import parse

import anybit
from anybit.quant_types.layer_info import Guarantee

MODEL = """
g (float[n, {size}] x) => (float[n, 16] y)
{{
    xq = Quant <signed: int = 1, narrow: int = 0> (x, s, none, bits)
    c = MatMul (xq, w)
    n = Mul (c, gain)
    y = Quant <signed: int = 1, narrow: int = 0> (n, t, none, bits)
}}
"""

WIDE = """
g (float[n, 600] x) => (float[n, 32] y)
{
    xq = Quant <signed: int = 0, narrow: int = 0> (x, s, none, bits)
    c = MatMul (xq, w)
    n = BatchNormalization (c, gain, offset, mean, variance)
    r = Relu (n)
    y = Quant <signed: int = 0, narrow: int = 0> (r, t, none, bits)
}
"""


def network(size, codes, order, scale):
    constants = {
        "w": (codes[order] * np.float32(scale)).astype(np.float32),
        "s": 0.3,
        "t": 0.7,
        "gain": np.linspace(-1, 1, 16).astype(np.float32),
        "none": 0,
        "bits": 4,
    }
    return parse(MODEL.format(size=size), constants)


@pytest.mark.parametrize("size", [40, 1200])
def test_guarantee_lists_all_codes_that_depend_on_order(size):
    random = np.random.default_rng(size)
    codes = random.integers(-7, 8, (size, 16)).astype(np.float32)
    order = np.arange(size)
    compiled = anybit.compile(network(size, codes, order, 0.1))
    (layer,) = compiled.report.layers
    assert layer.guarantee is (Guarantee.BOUNDED if layer.risks else Guarantee.CERTIFIED)
    assert len(layer.risks) < 16 * (layer.layer.accumulator[1] - layer.layer.accumulator[0])
    x = (random.integers(-8, 8, (3000, size)) * np.float32(0.3)).astype(np.float32)
    accumulators = np.rint(x / np.float32(0.3)).astype(np.int64) @ codes.astype(np.int64)
    risks = {(channel, at) for channel, at in layer.risks}
    mine = compiled.run(x)["y"]
    for _ in range(4):
        other = anybit.load(network(size, codes, order, 0.1)).run(x[:, order])["y"]
        for row, channel in np.argwhere(other != mine):
            assert (channel, accumulators[row, channel]) in risks
        order = random.permutation(size)


def test_guarantee_is_exact_for_power_of_two_scales():
    codes = np.random.default_rng(0).integers(-7, 8, (40, 16)).astype(np.float32)
    rounds = anybit.compile(network(40, codes, np.arange(40), 0.1))
    assert Guarantee.EXACT not in rounds.report.guarantees
    assert "not a power of two" in rounds.report.layers[0].reason
    only_exact = anybit.compile(network(40, codes, np.arange(40), 0.1), guarantee="exact")
    assert only_exact.report.guarantees == {}


def test_guarantee_keeps_affine_epilogue_for_eight_bits():
    """Many narrow steps lie on no line but that of the graph, rounding by rounding."""
    random = np.random.default_rng(0)
    size, channels = 600, 32
    constants = {
        "w": random.integers(-127, 128, (size, channels)) / 128,
        "s": 1 / 16,
        "t": 1 / 8,
        "none": 0,
        "bits": 8,
        "gain": random.uniform(0.2, 0.4, channels),
        "offset": random.normal(0, 1, channels),
        "mean": random.normal(0, 1, channels),
        "variance": random.uniform(0.5, 2, channels),
    }
    model = parse(WIDE, {name: np.float32(value) for name, value in constants.items()})
    compiled = anybit.compile(model)
    (layer,) = compiled.report.layers
    assert (layer.guarantee, layer.levels, layer.epilogue) == (Guarantee.EXACT, 256, "Affine")
    x = (random.integers(0, 256, (500, size)) / 16).astype(np.float32)
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(model).run(x)["y"])
