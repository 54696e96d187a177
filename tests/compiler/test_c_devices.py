# SPDX-License-Identifier: Apache-2.0
"""C source of programs on emulated microcontrollers: the outputs of the reference, to the byte."""

from dataclasses import dataclass

import numpy as np
import pytest
from c_targets import TARGETS, Call, run_c

from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.program import program as p
from anybit.compiler.program import reference

ROWS = 2


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


def make_network(width: Width, rng: np.random.Generator) -> p.Program:
    """Return a padded convolution, a depthwise one, a pointwise one with a residual sum, a matrix.

    Channels and rows of weights have all remainders by the blocks of the kernels.
    """
    sizes = ((6, 5, 3), (6, 5, 10), (3, 3, 10), (3, 3, 10), (3, 3, 10), (1, 1, 7))
    tensors = [p.Tensor(*size, width.lowest, 1, width.levels) for size in sizes]

    def make_product(source: int, window: p.Window, groups: int = 1) -> p.Product:
        x, y = tensors[source], tensors[source + 1]
        rows = window.kernel_height * window.kernel_width * x.channels // groups
        weights = rng.integers(0, len(width.values), rows * y.channels)
        reach = rows * max(map(abs, width.values)) * max(-width.lowest, width.lowest + width.levels)
        gains = rng.normal(0, 6 * width.levels / reach, y.channels).astype(np.float32)
        offsets = rng.normal(0, 1, y.channels).astype(np.float32)
        tail = p.Affine(gains, offsets, width.levels // 2)
        values = np.array(width.values, np.int32)
        packed = weights.astype(np.uint8)
        return p.Product(source, source + 1, window, groups, 8, packed, values, tail)

    single = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    gains = np.array([0.37, 0.61], np.float32)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    zeros = np.array([-width.lowest] * 2, np.int32)
    levels = width.levels - 1
    steps: list[p.Instruction] = [
        p.Quantize(0, 0, np.int32([1]), np.sort(rng.normal(0, 1, levels)).astype(np.float32), 0),
        make_product(0, p.Window(3, 3, 1, 1, 1, 1, 1, 1, 1, 1)),
        make_product(1, p.Window(3, 3, 2, 2, 1, 1, 1, 1, 0, 1), groups=10),
        make_product(2, single),
        p.Add(2, 3, 4, zeros, gains, zero, one, -width.lowest, 0, levels),
        make_product(4, p.Window(3, 3, 1, 1, 1, 1, 0, 0, 0, 0)),
        p.Dequantize(5, 0, rng.normal(0, 1, width.levels).astype(np.float32)),
    ]
    ports = [
        p.Port(np.int32([t.height * t.width * t.channels]), t.height, t.width, t.channels, 0)
        for t in (tensors[0], tensors[5])
    ]
    return p.Program((ports[0],), (ports[1],), tuple(tensors), tuple(steps))


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize(
    ("target", "optimization"),
    [
        *(("cortex_m4", "-O2"), ("cortex_m0", "-Os")),
        *(("riscv32", "-O3"), ("atmega", "-Os"), ("wasm32", "-O3")),
    ],
)
def test_device_gives_same_bytes(target: str, optimization: str, name: str) -> None:
    if reason := TARGETS[target].missing:
        pytest.skip(reason)
    rng = np.random.default_rng(len(name))
    program = make_network(WIDTHS[name], rng)
    x = rng.normal(0, 1, (ROWS, program.inputs[0].sizes[0])).astype(np.float32)
    source = emit_c(program, "net", layout="speed" if target == "cortex_m0" else "size")
    (expected,) = reference.run(program, [x])
    call = Call(
        "net.h", "net_run", "float", x.shape[1], "float", expected.shape[1], "NET_ARENA_SIZE"
    )
    result = run_c(source.files, call, x.tobytes(), TARGETS[target], (optimization,))
    assert result.outputs == expected.tobytes()
    assert result.ram == 0
