# SPDX-License-Identifier: Apache-2.0
"""Quantize kernels are right at and next to all thresholds."""

import numpy as np
import pytest

from anybit.compiler.program import program as p
from anybit.compiler.program import reference
from anybit.compiler.program.network import Network

INF = np.float32(np.inf)


def thresholds_of(index_of, levels, lowest, highest):
    """Return the smallest float32 of all indices of an increasing function."""
    result = []
    for index in range(1, levels):
        below, above = np.float32(lowest), np.float32(highest)
        while np.nextafter(below, INF) < above:
            middle = np.float32((np.float64(below) + np.float64(above)) / 2)
            if middle in (below, above):
                middle = np.nextafter(below, INF)
            if index_of(middle) >= index:
                above = middle
            else:
                below = middle
        result.append(above)
    return np.array(result, np.float32)


def divided(scale):
    return lambda x: np.rint(np.float32(x) / np.float32(scale)) + 128


def with_zero_point(scale, zero_point, lowest=0):
    def index(x):
        with np.errstate(over="ignore"):
            y = np.float32(x) / np.float32(scale) + np.float32(zero_point)
        return np.rint(np.clip(y, lowest, lowest + 255)) - lowest

    return index


def shifted(x):
    return np.rint((np.float32(x) * np.float32(2) - np.float32(1)) / np.float32(1 / 128)) + 128


def network_of(thresholds, levels, direction=1, lowest=-128, channels=7, nan=0):
    tensor = p.Tensor(1, 1, channels, lowest, 1, levels)
    port = p.Port(np.int32([channels]), 1, 1, channels, 0)
    values = np.arange(levels, dtype=np.float32)
    quantize = p.Quantize(0, 0, np.int32([direction]), thresholds.astype(np.float32), nan)
    last = p.Dequantize(0, 0, values)
    return p.Program((port,), (port,), (tensor,), (quantize, last))


def inputs_beside(thresholds, channels):
    near = [thresholds, np.nextafter(thresholds, -INF), np.nextafter(thresholds, INF)]
    special = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40])
    x = np.concatenate([*near, special]).astype(np.float32)
    return np.resize(x, (len(x) // channels + 1, channels))


@pytest.mark.parametrize(
    ("thresholds", "way"),
    [
        (thresholds_of(divided(1 / 16), 256, -20, 20), "affine"),
        (thresholds_of(divided(0.1), 256, -20, 20), "divide"),
        (thresholds_of(divided(0.007), 256, -2, 2), "divide"),
        (thresholds_of(with_zero_point(0.0931, 117), 256, -20, 20), "divide"),
        (thresholds_of(with_zero_point(0.0931, -11, -128), 256, -20, 20), "divide"),
        (thresholds_of(shifted, 256, -1, 3), "affine"),
        (np.linspace(-1, 1, 255), "affine, corrected"),
        (np.linspace(-1, 1, 255) ** 3, "search"),
        (np.zeros(255), "search"),
        (np.r_[np.full(100, -INF), np.linspace(0, 1, 55), np.full(100, INF)], "search"),
    ],
)
@pytest.mark.parametrize("direction", [1, -1])
def test_quantize_equals_reference_at_thresholds(level, thresholds, way, direction):
    program = network_of(thresholds, 256, direction)
    network = Network(program)
    assert network.describe()["stages"][0]["kernel"] == f"{way} to bytes"
    x = inputs_beside(program.instructions[0].thresholds, 7)
    np.testing.assert_array_equal(network.run([x])[0], reference.run(program, [x])[0])


@pytest.mark.parametrize("exponent", [-100, -61, -59, -20, -3, 0, 30, 59, 61, 100])
def test_quantize_divides_by_any_scale(level, exponent):
    """Divide exactly next to thresholds, at large and at tiny numbers."""
    random = np.random.default_rng(exponent + 128)
    for _ in range(3):
        scale = np.float32(np.ldexp(random.uniform(0.5, 1), exponent))
        zero_point = int(random.integers(0, 256))
        most = np.float32(300) * scale
        thresholds = thresholds_of(with_zero_point(scale, zero_point), 256, -most, most)
        program = network_of(thresholds, 256, lowest=-zero_point)
        x = inputs_beside(thresholds, 7)
        np.testing.assert_array_equal(Network(program).run([x])[0], reference.run(program, [x])[0])


@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("channels", [1, 15, 31, 32, 48, 64, 100, 113, 784])
def test_quantize_packs_few_levels(level, levels, direction, channels):
    """Quantize for a product that reads bits or planes."""
    program = words_of(levels, direction, channels)
    x = inputs_beside(program.instructions[0].thresholds, channels)
    network = Network(program)
    assert network.describe()["stages"][0]["kernel"].startswith("compare to")
    np.testing.assert_array_equal(network.run([x])[0], reference.run(program, [x])[0])


@pytest.mark.parametrize("levels", [2, 3])
def test_quantize_packed_refuses_only_nan(level, levels):
    channels = 113
    network = Network(words_of(levels, 1, channels, nan=-1))
    x = np.zeros((3, channels), np.float32)
    x[0, ::16], x[0, 64] = np.inf, -np.inf
    x[1], x[1, 5::16] = np.finfo(np.float32).max, -np.inf
    same = reference.run(words_of(levels, 1, channels), [x])[0]
    np.testing.assert_array_equal(network.run([x])[0], same)
    for place in range(channels):
        x[2, place] = np.nan
        with pytest.raises(ValueError, match="has NaN"):
            network.run([x])
        x[2, place] = 0


def words_of(levels, direction, channels, nan=0):
    """Return a program with a quantizer and a product that reads bits or planes."""
    first = network_of(np.array([-1.5, 0, 2])[: levels - 1], levels, direction, 0, channels, nan)
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    identity = np.packbits(np.eye(channels, dtype=np.uint8).ravel(), bitorder="little")
    epilogue = p.Arithmetic(np.ones(channels, np.float32), ())
    product = p.Product(0, 0, window, 1, 1, identity, np.int32([0, 1]), epilogue)
    return p.Program(first.inputs, first.outputs, first.tensors, (first.instructions[0], product))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 8, 33])
@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 191])
def test_quantize_takes_channels_first(width, channels):
    """Pixels are written in blocks of 64."""
    height = 3
    sizes = np.int32([channels, height, width])
    tensor = p.Tensor(height, width, channels, -128, 1, 256)
    thresholds = thresholds_of(divided(1 / 16), 256, -20, 20)
    quantize = p.Quantize(0, 0, np.int32([1]), thresholds, 0)
    last = p.Dequantize(0, 0, np.arange(256, dtype=np.float32))
    inside = p.Port(sizes, height, width, channels, 1)
    outside = p.Port(sizes, height, width, channels, 1)
    program = p.Program((inside,), (outside,), (tensor,), (quantize, last))
    x = np.random.default_rng(0).normal(0, 4, (2, *sizes)).astype(np.float32)
    expected = reference.run(program, [x])[0]
    np.testing.assert_array_equal(Network(program).run([x])[0], expected)
    codes = np.clip(np.rint(x * 16) + 128, 0, 255)
    np.testing.assert_array_equal(expected, codes)
