# SPDX-License-Identifier: Apache-2.0
"""Calls of the native gradients, for the tests of their values and of the engine."""

from typing import Any

import numpy as np

from anybit._native import _core


def backward(operator: str, gradient: Any, *inputs: Any, **options: Any) -> list[np.ndarray]:
    return getattr(_core, f"{operator}_backward")(gradient, *inputs, **options)


def exact_arguments(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], zeropt_shape: tuple
) -> tuple:
    """Arguments whose gradients are small multiples of 1/64: their sums are exact in any order."""
    random = np.random.default_rng(0)
    x = (random.integers(-128, 128, shape) / 8).astype(np.float32)
    scale = (2.0 ** random.integers(-1, 3, scale_shape)).astype(np.float32)
    zeropt = random.integers(-2, 3, zeropt_shape).astype(np.float32)
    gradient = random.integers(-8, 9, shape).astype(np.float32)
    return gradient, x, scale, zeropt
