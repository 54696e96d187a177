# SPDX-License-Identifier: Apache-2.0
"""Small networks that have all the products of C source, at several widths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anybit.compiler.program import program as p


@dataclass(frozen=True)
class Width:
    """Codes and weights of a network.

    Attributes:
        lowest, levels: Codes of its tensors.
        values: The weights that there are.
    """

    lowest: int
    levels: int
    values: tuple[int, ...]


WIDTHS = {
    "W8A8": Width(-128, 256, tuple(range(-128, 128))),
    "W8 unsigned": Width(0, 256, tuple(range(-128, 128))),
    "asymmetric": Width(-100, 256, tuple(range(-128, 128))),
    "W4A4": Width(-8, 16, tuple(range(-8, 8))),
    "W2A8": Width(0, 256, (-2, -1, 0, 1)),
    "ternary": Width(-8, 16, (-1, 0, 1)),
    "W1A1": Width(0, 2, (-1, 1)),
}


def make_product(
    tensors: Sequence[p.Tensor],
    source: int,
    target: int,
    window: p.Window,
    width: Width,
    rng: np.random.Generator,
    groups: int = 1,
) -> p.Product:
    """Return a product with random weights, whose results reach all codes."""
    x, y = tensors[source], tensors[target]
    rows = window.kernel_height * window.kernel_width * x.channels // groups
    weights = rng.integers(0, len(width.values), rows * y.channels).astype(np.uint8)
    reach = rows * max(map(abs, width.values)) * max(-width.lowest, width.lowest + width.levels)
    gains = rng.normal(0, 6 * width.levels / reach, y.channels).astype(np.float32)
    offsets = rng.normal(0, 1, y.channels).astype(np.float32)
    epilogue = p.Affine(gains, offsets, width.levels // 2)
    values = np.array(width.values, np.int32)
    return p.Product(source, target, window, groups, 8, weights, values, epilogue)


def make_network(width: Width, rng: np.random.Generator) -> p.Program:
    """Return a padded convolution, a depthwise one, a residual sum, a pointwise one, a matrix.

    Channels and rows of weights have all remainders by the blocks of the kernels.
    """
    sizes = ((6, 5, 5), (6, 5, 12), (6, 5, 12), (6, 5, 12), (6, 5, 10), (3, 3, 10), (1, 1, 7))
    tensors = [p.Tensor(*size, width.lowest, 1, width.levels) for size in sizes]
    padded = p.Window(3, 3, 1, 1, 1, 1, 1, 1, 1, 1)
    single = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    strided = p.Window(3, 3, 2, 2, 1, 1, 1, 1, 0, 1)
    gains = np.array([0.37, 0.61], np.float32)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    zeros = np.array([-width.lowest] * 2, np.int32)
    return make_program(
        tensors,
        (
            make_product(tensors, 0, 1, padded, width, rng),
            make_product(tensors, 1, 2, padded, width, rng, groups=12),
            p.Add(1, 2, 3, zeros, gains, zero, one, -width.lowest, 0, width.levels - 1),
            make_product(tensors, 3, 4, single, width, rng),
            make_product(tensors, 4, 5, strided, width, rng, groups=10),
            make_product(tensors, 5, 6, p.Window(3, 3, 1, 1, 1, 1, 0, 0, 0, 0), width, rng),
        ),
        rng,
    )


def make_windows(width: Width, rng: np.random.Generator, channels: int = 8) -> p.Program:
    """Return depthwise convolutions: dilated, unpadded, of one row, with and without padding."""
    sizes = ((9, 12), (4, 14), (2, 12), (2, 12), (2, 3))
    tensors = [p.Tensor(*size, channels, width.lowest, 1, width.levels) for size in sizes]
    windows = (
        p.Window(3, 2, 2, 1, 2, 3, 2, 2, 1, 3),
        p.Window(2, 3, 2, 1, 1, 1, 0, 0, 1, 0),
        p.Window(1, 9, 1, 1, 1, 1, 0, 4, 0, 4),
        p.Window(1, 10, 1, 1, 1, 1, 0, 0, 0, 0),
    )
    products = [
        make_product(tensors, i, i + 1, window, width, rng, groups=channels)
        for i, window in enumerate(windows)
    ]
    return make_program(tensors, products, rng)


def make_tiles(width: Width, rng: np.random.Generator) -> p.Program:
    """Return convolutions whose pixels are multiplied together: rows, parts of rows, one by one.

    Windows overlap, are dilated, have odd sizes, and are too high.
    """
    channels = (3, 8, 128, 8, 520, 4, 12, 8)
    sizes = ((5, 22), (5, 22), (3, 11), (3, 11), (3, 11), (3, 11), (3, 4), (3, 4))
    tensors = [
        p.Tensor(*size, count, width.lowest, 1, width.levels)
        for size, count in zip(sizes, channels, strict=True)
    ]
    padded = p.Window(3, 3, 1, 1, 1, 1, 1, 1, 1, 1)
    windows = (
        padded,
        p.Window(3, 3, 2, 2, 1, 1, 1, 1, 1, 1),
        padded,
        p.Window(3, 3, 1, 1, 2, 2, 2, 2, 2, 2),
        padded,
        p.Window(2, 3, 1, 3, 1, 1, 0, 1, 1, 1),
        p.Window(17, 1, 1, 1, 1, 1, 8, 0, 8, 0),
    )
    products = [
        make_product(tensors, i, i + 1, window, width, rng) for i, window in enumerate(windows)
    ]
    return make_program(tensors, products, rng)


def make_program(
    tensors: Sequence[p.Tensor], layers: Sequence[p.Instruction], rng: np.random.Generator
) -> p.Program:
    """Return a program of layers between floats."""
    first, last = tensors[0], tensors[-1]
    thresholds = np.sort(rng.normal(0, 1, first.levels - 1)).astype(np.float32)
    values = rng.normal(0, 1, last.levels).astype(np.float32)
    ports = [
        p.Port(np.int32([t.height * t.width * t.channels]), t.height, t.width, t.channels, 0)
        for t in (first, last)
    ]
    quantize = p.Quantize(0, 0, np.int32([1]), thresholds, 0)
    dequantize = p.Dequantize(len(tensors) - 1, 0, values)
    steps = (quantize, *layers, dequantize)
    return p.Program((ports[0],), (ports[1],), tuple(tensors), steps)
