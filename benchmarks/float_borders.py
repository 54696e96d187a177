# SPDX-License-Identifier: Apache-2.0
"""Time of float32 numbers to 8-bit codes at the border of a region, over a copy of the numbers.

    python benchmarks/float_borders.py

One thread; ANYBIT_ISA selects the instructions. The codes are those of a QONNX Quant with this
scale and zero-point. Numbers of an image lie channel by channel, and are transposed.
"""

import time

import numpy as np
from _measure import arguments, machine, show, versions

from anybit._native import set_num_threads
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network

COLUMNS = ("numbers", "scale", "zero-point", "method", "over a copy", "microseconds")
SCALES = ((1 / 16, 128), (0.0931, 0), (0.0931, 117))
# Channels, height and width.
IMAGES = ((64, 16, 16), (64, 32, 32))
LEVELS = 256


def find_thresholds(scale: float, zero_point: int) -> np.ndarray:
    """Return the least float32 of each code but the first."""
    codes = np.arange(1, LEVELS)
    least = ((codes - 0.5001 - zero_point) * scale).astype(np.float32)
    while True:
        quotient = least / np.float32(scale) + np.float32(zero_point)
        low = np.rint(np.clip(quotient, 0, LEVELS - 1)) < codes
        if not low.any():
            return least
        least[low] = np.nextafter(least[low], np.float32(np.inf))


def make_network(
    image: tuple[int, int, int], channels_first: bool, thresholds: np.ndarray
) -> Network:
    """Return a program that computes the codes of an image, and from them numbers."""
    channels, height, width = image
    sizes = image if channels_first else (height, width, channels)
    port = p.Port(np.int32(sizes), height, width, channels, int(channels_first))
    quantize = p.Quantize(0, 0, np.int32([1]), thresholds, 0)
    dequantize = p.Dequantize(0, 0, np.arange(LEVELS, dtype=np.float32))
    tensor = p.Tensor(height, width, channels, 0, 1, LEVELS)
    return Network(p.Program((port,), (port,), (tensor,), (quantize, dequantize)))


def measure(
    image: tuple[int, int, int], channels_first: bool, scale: float, zero_point: int, rounds: int
) -> tuple[str, ...]:
    """Return a row of the table."""
    network = make_network(image, channels_first, find_thresholds(scale, zero_point))
    random = np.random.default_rng(0)
    x = random.normal(0, 40 * scale, (1, *image)).astype(np.float32)
    if not channels_first:
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    copy, ours, copied = np.empty_like(x), float("inf"), float("inf")
    for _ in range(rounds):
        ours = min(ours, network.run_timed([x])[1][0])
        start = time.perf_counter()
        np.copyto(copy, x)
        copied = min(copied, time.perf_counter() - start)
    order = "channel by channel" if channels_first else "pixel by pixel"
    method = network.describe()["stages"][0]["kernel"].removesuffix(" to bytes")
    shape = " x ".join(map(str, image))
    return (
        *(f"{shape}, {order}", f"{scale:.4g}", str(zero_point), method),
        *(f"{ours / copied:.2f}", f"{ours * 1e6:.1f}"),
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(rounds=300)
    options = parser.parse_args()
    set_num_threads(1)
    rows = [
        measure(image, channels_first, *parameters, options.rounds)
        for image in IMAGES
        for channels_first in (False, True)
        for parameters in SCALES
    ]
    title = f"Float32 to codes of 8 bits, {machine()}, {versions('numpy')}"
    show(title, COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
