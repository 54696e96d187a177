# SPDX-License-Identifier: Apache-2.0
"""Bytes of weight arrays in C source, relative to those of 8 bits."""

import re

import numpy as np
import pytest

from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.program import program as p

VALUES = {
    "int8": range(-128, 128),
    "int4": range(-8, 8),
    "int2": range(-2, 2),
    "ternary": range(-1, 2),
    "bipolar": (-1, 1),
}
MOST = {"int8": 1.0, "int4": 0.53, "int2": 0.28, "ternary": 0.21, "bipolar": 0.16}


def make_network(values: np.ndarray, rng: np.random.Generator) -> p.Program:
    """Return a convolution, depthwise and pointwise ones of 64 channels, and a matrix."""
    sizes = ((4, 4, 16), (4, 4, 64), (4, 4, 64), (4, 4, 64), (1, 1, 10))
    tensors = tuple(p.Tensor(*size, 0, 1, 4) for size in sizes)
    steps: list[p.Instruction] = [p.Quantize(0, 0, np.int32([1]), np.float32([0.1, 0.2, 0.3]), 0)]
    for source, (kernel, groups) in enumerate([(3, 1), (3, 64), (1, 1), (4, 1)]):
        x, y = tensors[source], tensors[source + 1]
        pad = int(kernel == 3)
        window = p.Window(kernel, kernel, 1, 1, 1, 1, pad, pad, pad, pad)
        count = kernel * kernel * x.channels // groups * y.channels
        codes = rng.integers(0, len(values), count)
        codes[: len(values)] = range(len(values))
        scales = np.full(y.channels, 0.01, np.float32)
        epilogue = p.Affine(scales, np.zeros(y.channels, np.float32), 0)
        product = p.Product(
            *(source, source + 1, window, groups, 8, codes.astype(np.uint8)), values, epilogue
        )
        steps.append(product)
    steps.append(p.Dequantize(4, 0, np.float32([0, 1, 2, 3])))
    ports = [
        p.Port(np.int32([t.height * t.width * t.channels]), t.height, t.width, t.channels, 0)
        for t in (tensors[0], tensors[-1])
    ]
    return p.Program((ports[0],), (ports[1],), tensors, tuple(steps))


def measure_weights(name: str) -> int:
    """Return the bytes of the weight arrays of a network."""
    values = np.array(VALUES[name], np.int32)
    program = make_network(values, np.random.default_rng(0))
    text = emit_c(program, "net").files["net.c"]
    arrays = re.findall(r"const u?int8_t \w+_weights\[(\d+)\]", text)
    assert len(arrays) == 4
    return sum(map(int, arrays))


@pytest.mark.parametrize("name", VALUES)
def test_weights_of_few_bits_take_few_bytes(name: str) -> None:
    assert measure_weights(name) <= MOST[name] * measure_weights("int8")
