# SPDX-License-Identifier: Apache-2.0
"""Data of the networks: patterns and spectra made from seeds, and scikit-learn's digits."""

from functools import cache

import numpy as np
import torch
from _architectures import Network
from sklearn.datasets import load_digits
from torch import Tensor

PATTERNS = 4  # of a class
FACTORS, ANOMALY = 8, 0.6


def make_data(network: Network, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows to train with, and their classes."""
    random = np.random.default_rng(seed)
    if not network.noise:
        x, labels = split_digits()[0]
        chosen = random.integers(len(x), size=rows)
        return x[chosen], labels[chosen]
    if not network.classes:
        return _make_spectra(network, rows, random, 0), torch.zeros(rows, dtype=torch.int64)
    patterns = _make_patterns(network)
    chosen = random.integers(len(patterns), size=rows)
    noise = random.standard_normal((rows, *network.shape), np.float32)
    x = patterns[chosen] + np.float32(network.noise) * noise
    return torch.tensor(x), torch.tensor(chosen % network.classes)


def make_test_data(network: Network, rows: int) -> tuple[Tensor, Tensor]:
    """Return rows that training never has, and their classes; of spectra, 1 marks anomalies."""
    if not network.noise:
        return split_digits()[1]
    if network.classes:
        return make_data(network, rows, 2)
    random, half = np.random.default_rng(2), rows // 2
    spectra = [_make_spectra(network, half, random, amount) for amount in (0, ANOMALY)]
    return torch.cat(spectra), torch.arange(2).repeat_interleave(half)


@cache
def split_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return rows and classes of the digits, to train and to test with; every third is a test."""
    data = load_digits()
    x = torch.tensor(data.data / 8 - 1, dtype=torch.float32)
    labels = torch.tensor(data.target)
    test = torch.arange(len(x)) % 3 == 0
    return (x[~test], labels[~test]), (x[test], labels[test])


@cache
def _make_patterns(network: Network) -> np.ndarray:
    """Return the patterns of all classes, which take turns."""
    fixed = np.random.default_rng(1)
    patterns = fixed.standard_normal((PATTERNS * network.classes, *network.shape))
    window = np.ones(network.smoothing) / network.smoothing
    for axis in range(max(1, patterns.ndim - 2), patterns.ndim):
        patterns = np.apply_along_axis(lambda row: np.convolve(row, window, "same"), axis, patterns)
    return (patterns / patterns.std()).astype(np.float32)


def _make_spectra(
    network: Network, rows: int, random: np.random.Generator, anomaly: float
) -> Tensor:
    """Return positive sums of eight factors; anomalies have others, too."""
    fixed = np.random.default_rng(1)
    factors, others = (fixed.standard_normal((FACTORS, *network.shape)) for _ in range(2))
    x = np.maximum(random.standard_normal((rows, FACTORS)), 0) @ factors
    x += anomaly * np.maximum(random.standard_normal((rows, FACTORS)), 0) @ others
    x += network.noise * random.standard_normal(x.shape)
    return torch.tensor(x, dtype=torch.float32)


def score(network: Network, x: np.ndarray, y: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of right classes, or of pairs of rows whose anomaly has the larger error."""
    if network.classes:
        return float((y.argmax(1) == labels).mean())
    errors = ((x - y) ** 2).mean(1)
    return float((errors[labels == 1][:, None] > errors[labels == 0]).mean())
