# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training from images to files, on scikit-learn's digits.

    python examples/qat_digits/qat_digits.py [FOLDER] [--seeds N] [--docs]

A small convolutional network is trained in float, quantized to 8, 4, 2 and 1 bits, to FP8 and to
FP4, trained on, exported, and run on the test images by `anybit run`, which compares with what
PyTorch gave. FOLDER gets the files. --docs writes the table and the picture of
docs/qat_digits.md.

All scales are powers of two. The sums of a network of integers are exact then, so that its file
gives the same bits in every runtime.
"""

import argparse
import copy
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import fuse_conv_bn_eval

import anybit
import anybit.torch

BATCH = 64
FLOAT_EPOCHS, FLOAT_RATE = 15, 0.005
EPOCHS, RATE = 24, 0.01
SEEDS = 4  # two for each of two processors


class Digits(NamedTuple):
    """Images of shape (rows, 1, 8, 8), integers from 0 to 16, and the digits that they show."""

    images: torch.Tensor
    labels: torch.Tensor


def digits() -> tuple[Digits, Digits]:
    """scikit-learn's digits for training and for testing: every seventh image."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target)
    test = torch.arange(len(labels)) % 7 == 0
    return Digits(images[~test], labels[~test]), Digits(images[test], labels[test])


class Network(nn.Module):
    """Two convolutions and a linear layer: 6090 parameters, and those of the normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1: nn.Module = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2: nn.Module = nn.BatchNorm2d(32)
        self.linear = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.norm1(self.conv1(x)).relu(), 2)
        x = nn.functional.max_pool2d(self.norm2(self.conv2(x)).relu(), 2)
        return self.linear(x.flatten(1))

    def fold(self) -> None:
        """Put the normalization into the convolutions: between quantizers it would only round."""
        self.eval()
        self.conv1 = fuse_conv_bn_eval(self.conv1, self.norm1)
        self.conv2 = fuse_conv_bn_eval(self.conv2, self.norm2)
        self.norm1, self.norm2 = nn.Identity(), nn.Identity()


def train(network: nn.Module, data: Digits, *, epochs: int, rate: float, seed: int) -> None:
    """Adam on batches in an order that the seed decides; the rate rises, then falls to zero."""
    torch.manual_seed(seed)
    network.train()
    optimizer = torch.optim.Adam(network.parameters(), rate)
    steps = epochs * -(-len(data.labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(data.labels)).split(BATCH):
            loss = nn.functional.cross_entropy(network(data.images[rows]), data.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()


@torch.no_grad()
def accuracy(network: nn.Module, data: Digits) -> float:
    return float((network(data.images).argmax(1) == data.labels).double().mean())


def float_network(data: Digits, seed: int, epochs: int = FLOAT_EPOCHS) -> Network:
    """The network trained in float, in the end without normalization."""
    torch.manual_seed(seed)
    network = Network()
    train(network, data, epochs=epochs, rate=FLOAT_RATE, seed=seed)
    network.fold()
    return network


@dataclass(frozen=True)
class Variant:
    """Numbers to compute with, in the words of `anybit.torch.nn.quantizer`; without, float32."""

    name: str
    bits: int
    weight: str = ""
    activation: str = ""
    bias: str = "int16 accumulator"

    @property
    def spec(self) -> dict[str, Any]:
        """For `anybit.torch.quantize_model`. Pixels need 5 bits, and lose nothing by them."""
        return {
            "weight": f"{self.weight} per-channel power-of-two",
            "activation": f"{self.activation} power-of-two",
            "bias": self.bias,
            "layers": {"conv1": {"activation": "uint5 scale=1"}},
        }


VARIANTS = (
    Variant("float32", 32),
    Variant("int8", 8, "int8 narrow absmax", "uint8 ema"),
    # Sums of FP8 are not exact in float32 anyway: the bias may have all its bits.
    Variant("fp8_e4m3", 8, "float8_e4m3fn absmax", "float8_e4m3fn ema", bias="none"),
    Variant("int4", 4, "int4 narrow absmax", "uint4 ema"),
    Variant("fp4_e2m1", 4, "float4_e2m1fn absmax", "float4_e2m1fn ema"),
    Variant("ternary", 2, "ternary absmax", "uint2 learned"),
    Variant("bipolar", 1, "bipolar absmean", "uint1 learned"),
)


def trained(
    network: nn.Module, variant: Variant, data: Digits, seed: int, epochs: int = EPOCHS
) -> nn.Module:
    """A copy of the network in those numbers, trained on: in float32 too, to be fair."""
    if variant.weight:
        network = anybit.torch.quantize_model(network, variant.spec)
    else:
        network = copy.deepcopy(network)
    train(network, data, epochs=epochs, rate=RATE, seed=seed)
    return network


@dataclass(frozen=True)
class File:
    """What became of a network as a file: how it agrees with PyTorch, and sizes in bytes.

    `steps` is the most by which a quantized tensor differs, `tolerance` what `anybit run` was
    allowed for the outputs. `constants` are those in the converted file.
    """

    equal: bool
    steps: float
    tolerance: float
    qonnx: int
    qdq: int
    constants: int


def write(network: nn.Module, images: torch.Tensor, folder: Path, name: str) -> File:
    """Export the network, run the file on the images by `anybit run`, and convert it."""
    path, record, converted = (folder / f"{name}{end}" for end in (".onnx", ".npz", "_qdq.onnx"))
    exported = anybit.torch.export(network, images, path, input_names=["x"], output_names=["y"])
    with torch.no_grad():
        outputs = network(images).numpy()
    np.savez(record, x=images.numpy(), y=outputs)
    # One step in a tensor moves the outputs further than sums in another order do.
    tolerance = 0.0 if exported.equal else 0.1 if exported.steps else 1e-4
    run_command("run", path, "--input", record, "--expect", record, "--atol", str(tolerance))
    conversion = anybit.convert(path, to="qdq")
    conversion.save(converted)
    again = anybit.load(converted).run(images.numpy())["y"]
    np.testing.assert_allclose(again, outputs, rtol=0, atol=tolerance)
    initializers = conversion.model.graph.initializers.values()
    constants = sum(value.const_value.nbytes for value in initializers)
    sizes = path.stat().st_size, converted.stat().st_size, constants
    return File(bool(exported.equal), exported.steps or 0.0, tolerance, *sizes)


def run_command(*words: object) -> str:
    """Run `anybit` with these words; what it prints. SystemExit with that if it fails."""
    command = [sys.executable, "-m", "anybit", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Outcome:
    """One network, trained and tested; a file only for the first seed."""

    variant: Variant
    seed: int
    accuracy: float
    file: File | None


def outcomes(seed: int, folder: Path) -> list[Outcome]:
    """All variants of the network that the seed gives."""
    # One thread adds in one order; the tensors are too small for more anyway.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    training, test = digits()
    start = float_network(training, seed)
    found = []
    for variant in VARIANTS:
        network = trained(start, variant, training, seed)
        file = write(network, test.images, folder, variant.name) if seed == 0 else None
        found.append(Outcome(variant, seed, accuracy(network, test), file))
    return found


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where the files go; else nowhere")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many; {SEEDS}")
    parser.add_argument("--docs", action="store_true", help="write docs/qat_digits.md")
    options = parser.parse_args(words)
    import report

    began = time.perf_counter()
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        count = min(options.seeds, os.cpu_count() or 1)
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            running = [pool.submit(outcomes, seed, folder) for seed in range(options.seeds)]
            with Console(stderr=True).status(
                f"Training {options.seeds} x {len(VARIANTS)} networks"
            ):
                found = [outcome for each in running for outcome in each.result()]
    lines = report.lines(found)
    Console().print(report.table(lines))
    Console().print(f"{len(found)} networks in {time.perf_counter() - began:.0f} s")
    if options.docs:
        report.write(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
