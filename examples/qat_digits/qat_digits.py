# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training, from images to files, on scikit-learn's digits.

    python examples/qat_digits/qat_digits.py [FOLDER] [--seeds N] [--docs]

A small convolutional network is trained in float, quantized to 8, 4, 2 and 1 bits, to FP8 and to
FP4, trained a little more, exported, and each file is run on the test images by `anybit run`,
which compares with what PyTorch gave. FOLDER gets the files; --docs writes the table and the
picture of docs/qat_digits.md.

All scales are powers of two: the sums of a network of integers are exact then, and a file gives
the same bits in every runtime.
"""

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import fuse_conv_bn_eval

import anybit.torch

BATCH = 64
FLOAT_EPOCHS, FLOAT_RATE = 30, 0.005
EPOCHS, RATE = 20, 0.01


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
    """Two convolutions and a linear layer: 6090 parameters, and those of the normalisation."""

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
        """Put the normalisation into the convolutions: a file should not hold it."""
        self.eval()
        self.conv1 = fuse_conv_bn_eval(self.conv1, self.norm1)
        self.conv2 = fuse_conv_bn_eval(self.conv2, self.norm2)
        self.norm1 = self.norm2 = nn.Identity()


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
    """The network trained in float, without normalisation in the end."""
    torch.manual_seed(seed)
    network = Network()
    train(network, data, epochs=epochs, rate=FLOAT_RATE, seed=seed)
    network.fold()
    return network


@dataclass(frozen=True)
class Variant:
    """Numbers to compute with: words for weights and for activations, none for float32."""

    name: str
    bits: int
    weight: str | None = None
    activation: str | None = None
    bias: str = "int16 accumulator"

    @property
    def spec(self) -> dict[str, Any]:
        """What `anybit.torch.quantize_model` takes. The images need 5 bits, and lose nothing."""
        return {
            "weight": f"{self.weight} per-channel power-of-two",
            "activation": f"{self.activation} power-of-two",
            "bias": self.bias,
            "layers": {"conv1": {"activation": "uint5 scale=1"}},
        }


VARIANTS = (
    Variant("float32", 32),
    Variant("int8", 8, "int8 narrow absmax", "uint8 ema"),
    Variant("fp8_e4m3", 8, "float8_e4m3fn absmax", "float8_e4m3fn ema", bias="none"),
    Variant("int4", 4, "int4 narrow absmax", "uint4 ema"),
    Variant("fp4_e2m1", 4, "float4_e2m1fn absmax", "float4_e2m1fn ema"),
    Variant("ternary", 2, "ternary absmax", "uint2 learned"),
    Variant("bipolar", 1, "bipolar absmean", "uint1 learned"),
)


def quantized(
    network: nn.Module, variant: Variant, data: Digits, seed: int, epochs: int = EPOCHS
) -> nn.Module:
    """A copy of the network in those numbers, trained further. Also in float, to be fair."""
    spec = variant.spec if variant.weight else {"weight": "none"}
    network = anybit.torch.quantize_model(network, spec)
    train(network, data, epochs=epochs, rate=RATE, seed=seed)
    return network
