# SPDX-License-Identifier: Apache-2.0
"""Weights of channels that hold zero-points, and of channels that are repeated.

A sum of (code - zero-point) * weight is one of codes alone: further channels hold the zero-point,
and their weights add up to the negative sum of the others.
"""

from dataclasses import dataclass

import numpy as np

from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.constants import Array

_MOST_GROWTH = 2
"""Most channels for zero-points, by those of the source."""

_LOWEST, _HIGHEST = -128, 127


@dataclass(frozen=True, eq=False)
class FittedWeights:
    """Weights of 8 bits that compute the sums of wider ones, and subtract the zero-point.

    Attributes:
        weights: Integers, the channels of a group along the last axis: its own, those that are
            repeated, those of the zero-point.
        repeated: The channels of a group that are repeated.
        zeros: The number of channels of the zero-point.
    """

    weights: Array
    repeated: Array
    zeros: int


def fit_weights(weights: Array) -> FittedWeights:
    """Return weights of 8 bits, with those of repeated channels and of the zero-point.

    Args:
        weights: Integers, output channel x kernel row x kernel column x input channel.

    Raises:
        Unsupported: The zero-point needs too many channels.
    """
    parts, repeated = [np.clip(weights, _LOWEST, _HIGHEST)], [np.zeros(0, np.int64)]
    rest = weights - parts[0]
    while rest.any():
        (places,) = np.nonzero(rest.any(axis=(0, 1, 2)))
        parts.append(np.clip(rest[..., places], _LOWEST, _HIGHEST))
        repeated.append(places)
        rest[..., places] -= parts[-1]
    fitted = np.concatenate(parts, axis=3)
    zeros = count_zero_weights(fitted)
    return FittedWeights(append_zero_weights(fitted, zeros), np.concatenate(repeated), zeros)


def count_zero_weights(weights: Array) -> int:
    """Return the number of weights that add up to the negative sum of the others.

    Args:
        weights: Integers, with the input channels along the last axis.

    Raises:
        Unsupported: Too many.
    """
    lowest, highest = _find_bounds(weights)
    missing = -weights.sum(axis=-1)
    count = max(-int(-missing.max(initial=0) // highest), -int(missing.min(initial=0) // -lowest))
    if count > _MOST_GROWTH * weights.shape[-1]:
        raise Unsupported("its weights have sums that are too large for their zero-points")
    return count


def append_zero_weights(weights: Array, count: int) -> Array:
    """Append channels whose weights add up to the negative sum of the others.

    Args:
        weights: Integers, output channel x kernel row x kernel column x input channel.
        count: The number of channels.
    """
    lowest, highest = _find_bounds(weights)
    missing, parts = -weights.sum(axis=3, keepdims=True), [weights]
    for _ in range(count):
        parts.append(np.clip(missing, lowest, highest))
        missing = missing - parts[-1]
    assert not missing.any(), "their number was counted"
    return np.concatenate(parts, axis=3)


def _find_bounds(weights: Array) -> tuple[int, int]:
    """Return the lowest and highest weight, so that one is negative and one positive."""
    lowest, highest = int(weights.min(initial=0)), int(weights.max(initial=0))
    return lowest or -max(highest, 1), highest or min(-lowest, 127) or 1
