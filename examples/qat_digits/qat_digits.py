# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training from images to files, on scikit-learn's digits.

    python examples/qat_digits/qat_digits.py [FOLDER] [--seeds N] [--docs]

A small convolutional network is trained in float, quantized to 8, 4, 2 and 1 bits, to FP8 and to
FP4, fine-tuned and exported. `anybit run` compares the file with PyTorch on the test images. Files
are kept in FOLDER. --docs updates the table and the figure of docs/qat_digits.md.

All scales are powers of two. Sums of the integer networks are then exact, so that their files give
the same bits in every runtime.
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
SEEDS = 4


class Digits(NamedTuple):
    """Images of shape (rows, 1, 8, 8), integers from 0 to 16, and their labels."""

    images: torch.Tensor
    labels: torch.Tensor


def digits() -> tuple[Digits, Digits]:
    """Return the training and test splits of scikit-learn's digits; every seventh is a test."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target)
    test = torch.arange(len(labels)) % 7 == 0
    return Digits(images[~test], labels[~test]), Digits(images[test], labels[test])


class Network(nn.Module):
    """Two convolutions and a linear layer: 6090 parameters, besides batch normalization."""

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
        """Fold batch normalization into the convolutions."""
        self.eval()
        self.conv1 = fuse_conv_bn_eval(self.conv1, self.norm1)
        self.conv2 = fuse_conv_bn_eval(self.conv2, self.norm2)
        self.norm1, self.norm2 = nn.Identity(), nn.Identity()


def train(network: nn.Module, data: Digits, *, epochs: int, rate: float, seed: int) -> None:
    """Train by Adam with a one-cycle learning rate; the seed determines the batches."""
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
    """Return the top-1 accuracy."""
    return float((network(data.images).argmax(1) == data.labels).double().mean())


def float_network(data: Digits, seed: int, epochs: int = FLOAT_EPOCHS) -> Network:
    """Train a network in float32 and fold its batch normalization."""
    torch.manual_seed(seed)
    network = Network()
    train(network, data, epochs=epochs, rate=FLOAT_RATE, seed=seed)
    network.fold()
    return network


@dataclass(frozen=True)
class Variant:
    """Formats of weights, activations and biases as specs of `anybit.torch`; float32 without."""

    name: str
    bits: int
    weight: str = ""
    activation: str = ""
    bias: str = "int16 accumulator"

    @property
    def spec(self) -> dict[str, Any]:
        """Return the spec for `anybit.torch.quantize_model`; 5 bits hold the pixels exactly."""
        return {
            "weight": f"{self.weight} per-channel power-of-two",
            "activation": f"{self.activation} power-of-two",
            "bias": self.bias,
            "layers": {"conv1": {"activation": "uint5 scale=1"}},
        }


VARIANTS = (
    Variant("float32", 32),
    Variant("int8", 8, "int8 narrow absmax", "uint8 ema"),
    # FP8 sums are not exact in float32, so the bias stays in float32.
    Variant("fp8_e4m3", 8, "float8_e4m3fn absmax", "float8_e4m3fn ema", bias="none"),
    Variant("int4", 4, "int4 narrow absmax", "uint4 ema"),
    Variant("fp4_e2m1", 4, "float4_e2m1fn absmax", "float4_e2m1fn ema"),
    Variant("ternary", 2, "ternary absmax", "uint2 learned"),
    Variant("bipolar", 1, "bipolar absmean", "uint1 learned"),
)


def train_variant(
    network: nn.Module, variant: Variant, data: Digits, seed: int, epochs: int = EPOCHS
) -> nn.Module:
    """Quantize a copy of the network and fine-tune it; float32 is fine-tuned, too."""
    if variant.weight:
        network = anybit.torch.quantize_model(network, variant.spec)
    else:
        network = copy.deepcopy(network)
    train(network, data, epochs=epochs, rate=RATE, seed=seed)
    return network


@dataclass(frozen=True)
class File:
    """Comparison of an exported network with PyTorch, and file sizes in bytes.

    Attributes:
        equal: Whether all outputs have the bits of PyTorch.
        steps: Largest difference of a quantized tensor, in steps.
        tolerance: Absolute tolerance of the outputs in `anybit run`.
        qonnx: Size of the QONNX file.
        qdq: Size of the file converted to QuantizeLinear and DequantizeLinear.
        constants: Size of the constants in the converted file.
    """

    equal: bool
    steps: float
    tolerance: float
    qonnx: int
    qdq: int
    constants: int


def write(network: nn.Module, images: torch.Tensor, folder: Path, name: str) -> File:
    """Export the network, check the file by `anybit run`, and convert it."""
    path, record, converted = (folder / f"{name}{end}" for end in (".onnx", ".npz", "_qdq.onnx"))
    exported = anybit.torch.export(network, images, path, input_names=["x"], output_names=["y"])
    with torch.no_grad():
        outputs = network(images).numpy()
    np.savez(record, x=images.numpy(), y=outputs)
    # A difference of one step changes outputs more than another order of summation.
    tolerance = 0.0 if exported.equal else 0.1 if exported.steps else 1e-4
    run_command("run", path, "--input", record, "--expect", record, "--atol", str(tolerance))
    conversion = anybit.convert(path, to="qdq")
    conversion.save(converted)
    converted_outputs = anybit.load(converted).run(images.numpy())["y"]
    np.testing.assert_allclose(converted_outputs, outputs, rtol=0, atol=tolerance)
    initializers = conversion.model.graph.initializers.values()
    constants = sum(value.const_value.nbytes for value in initializers)
    sizes = path.stat().st_size, converted.stat().st_size, constants
    return File(bool(exported.equal), exported.steps or 0.0, tolerance, *sizes)


def run_command(*arguments: object) -> str:
    """Run `anybit` and return its output; raise SystemExit with the output if it fails."""
    command = [sys.executable, "-m", "anybit", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


@dataclass(frozen=True)
class Outcome:
    """Accuracy of a trained variant; only the first seed has a file."""

    variant: Variant
    seed: int
    accuracy: float
    file: File | None


def run_seed(seed: int, folder: Path) -> list[Outcome]:
    """Train and test all variants, starting from the float network of a seed."""
    # Results depend on the number of threads; the tensors are too small for several.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    training, test = digits()
    start = float_network(training, seed)
    outcomes = []
    for variant in VARIANTS:
        network = train_variant(start, variant, training, seed)
        file = write(network, test.images, folder, variant.name) if seed == 0 else None
        outcomes.append(Outcome(variant, seed, accuracy(network, test), file))
    return outcomes


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "folder", type=Path, nargs="?", help="folder of the files (default: none is kept)"
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="number of seeds (default: %(default)s)"
    )
    parser.add_argument("--docs", action="store_true", help="update docs/qat_digits.md")
    options = parser.parse_args(arguments)
    import report

    begin = time.perf_counter()
    with TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        count = min(options.seeds, os.cpu_count() or 1)
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            futures = [pool.submit(run_seed, seed, folder) for seed in range(options.seeds)]
            with Console(stderr=True).status(
                f"Training {options.seeds} x {len(VARIANTS)} networks"
            ):
                outcomes = [outcome for future in futures for outcome in future.result()]
    lines = report.lines(outcomes)
    Console().print(report.table(lines))
    Console().print(f"{len(outcomes)} networks in {time.perf_counter() - begin:.0f} s")
    if options.docs:
        report.write(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
