# SPDX-License-Identifier: Apache-2.0
"""Accuracy after calibration, a short training, and both, on scikit-learn's digits.

    python examples/qat_digits/calibration.py [--seeds N] [--docs]

The networks of qat_digits.py, with folded normalization, get quantizers with learned scales. They
are calibrated, trained for one epoch, or both. --docs updates the table of docs/qat_digits.md.
"""

import argparse
import copy
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from qat_digits import BATCH, Digits, accuracy, digits, float_network, train
from rich.console import Console

import anybit.torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "qat_digits.md"
BEGIN, END = "<!-- calibration:begin -->\n", "<!-- calibration:end -->"
# Format specs of weights, per channel, and of activations.
WIDTHS = (("int4 narrow", "uint4"), ("int3 narrow", "uint3"), ("int3", "uint2"), ("int2", "uint2"))
EPOCHS, RATE, SEEDS, BATCHES = 1, 0.002, 8, 8


def batches(data: Digits) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a third of the images for calibration, with labels, which it ignores."""
    for first in range(0, BATCH * BATCHES, BATCH):
        yield data.images[first : first + BATCH], data.labels[first : first + BATCH]


def stages(
    start: torch.nn.Module, weight: str, activation: str, data: Digits, seed: int
) -> list[torch.nn.Module]:
    """Return the network after calibration, after training, and after both."""
    spec = {
        "weight": f"{weight} per-channel",
        "activation": activation,
        "layers": {"conv1": {"activation": "uint5 scale=1"}},
    }
    fresh = anybit.torch.quantize_model(start, spec)
    calibrated = anybit.torch.calibrate(copy.deepcopy(fresh), batches(data)).eval()
    trained, both = fresh, copy.deepcopy(calibrated)
    for network in (trained, both):
        train(network, data, epochs=EPOCHS, rate=RATE, seed=seed)
    return [calibrated, trained, both]


def scores(seed: int) -> list[list[float]]:
    """Return accuracies in %, by width: in float, and after each stage."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    training, test = digits()
    start = float_network(training, seed)
    return [
        [
            100 * accuracy(network, test)
            for network in (start, *stages(start, *width, training, seed))
        ]
        for width in WIDTHS
    ]


def table(accuracies: np.ndarray) -> str:
    """Return means over seeds and their standard errors, of `accuracies[seed, width, stage]`."""
    heads = ("weights", "activations", "float32", "calibrated", "one epoch", "both")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    seeds = len(accuracies)
    mean = accuracies.mean(axis=0)
    error = accuracies.std(axis=0, ddof=1) / np.sqrt(seeds) if seeds > 1 else 0 * mean
    for width, means, errors in zip(WIDTHS, mean, error, strict=True):
        cells = [f"{value:.1f} ± {error:.1f}" for value, error in zip(means, errors, strict=True)]
        lines.append(f"| {' | '.join([*width, *cells])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="number of seeds (default: %(default)s)"
    )
    parser.add_argument("--docs", action="store_true", help="update docs/qat_digits.md")
    options = parser.parse_args()
    count = min(options.seeds, os.cpu_count() or 1)
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        text = table(np.array(list(pool.map(scores, range(options.seeds)))))
    Console().print(text, markup=False)
    if options.docs:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
