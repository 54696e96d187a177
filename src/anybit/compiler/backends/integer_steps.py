# SPDX-License-Identifier: Apache-2.0
"""Ascending thresholds of keys at equal steps as a line, for targets that have no floats."""

from dataclasses import dataclass

import numpy as np

from anybit.onnx.graph.constants import Array

_MANTISSA = 23
_DROPPED = 8
"""Lower bits of a mantissa of 24 bits that the line leaves out."""
_MOST = 2**30


@dataclass(frozen=True)
class EqualSteps:
    """A line whose floor is the number of thresholds that a key reaches, or one less.

    It holds from the first threshold to below the last one. The line is
    `(number * multiplier + term) >> shift`, not negative and in 32 bits. `number` is the float
    as an integer: its mantissa, shifted right by `exponent` less its own exponent, and by 8.

    Attributes:
        exponent: The largest exponent of a threshold, biased.
    """

    exponent: int
    multiplier: int
    term: int
    shift: int

    def align(self, keys: Array) -> Array:
        """Return the numbers of keys; they ascend with the keys."""
        magnitudes = np.abs(keys)
        right = self.exponent - (magnitudes >> _MANTISSA)
        mantissas = magnitudes & (2**_MANTISSA - 1) | 2**_MANTISSA
        numbers = mantissas >> np.minimum(right + _DROPPED, _MANTISSA + 1)
        return np.asarray(np.where(keys < 0, -numbers, numbers))

    def evaluate(self, keys: Array) -> Array:
        """Return the line at keys, before the shift."""
        return self.align(keys) * self.multiplier + self.term


def fit_equal_steps(thresholds: Array) -> EqualSteps | None:
    """Return the line of ascending int64 keys; None if there is none.

    The line ascends, so the least and the largest key between two thresholds prove it for all.
    """
    last = len(thresholds) - 1
    if last < 1:
        return None
    exponent = int(np.abs(thresholds).max()) >> _MANTISSA
    first, end = EqualSteps(exponent, 0, 0, 0).align(thresholds[[0, last]]).tolist()
    if end <= first:
        return None
    slope, shift = last / (end - first), 0
    while (last + 2) << (shift + 1) <= _MOST and slope * 2**16 * 2 ** (shift + 1) <= _MOST:
        shift += 1
    multiplier, half = round(slope * 2**shift), 2**shift // 2
    line = EqualSteps(exponent, multiplier, half - first * multiplier, shift)
    return line if _is_proven(line, thresholds) else None


def _is_proven(line: EqualSteps, thresholds: Array) -> bool:
    """Return whether the line fits between all thresholds, without an overflow of 32 bits."""
    ends = np.stack([thresholds[:-1], thresholds[1:] - 1], axis=1)
    used = ends[:, 0] <= ends[:, 1]
    values = line.evaluate(ends[used])
    missing = np.arange(1, len(thresholds))[used, None] - (values >> line.shift)
    largest = max(np.abs(part).max(initial=0) for part in (values, values - line.term))
    positive = bool((values >= 0).all() and (missing >= 0).all())
    return positive and bool((missing <= 1).all()) and max(largest, abs(line.term)) < 2**31
