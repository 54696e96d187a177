# SPDX-License-Identifier: Apache-2.0
"""Of which power of two numbers are multiples."""

import numpy as np

from anybit.onnx.graph.constants import Array

EXACT = 2.0**24
"""Up to so many units float32 holds every integer."""

LOWEST_EXPONENT = -149
"""The smallest float32 above 0 is 2 to this power."""


def exponents_of(values: Array) -> Array:
    """For each number the largest p with which it is a multiple of 2^p; 0 for 0.

    NaN and infinities count as 0.
    """
    finite = np.where(np.isfinite(values), values, 0.0).astype(np.float64)
    fraction, exponent = np.frexp(finite)
    whole = (fraction * 2.0**53).astype(np.int64)
    lowest_bit = (whole & -whole).astype(np.float64)
    trailing = np.frexp(lowest_bit)[1] - 1
    return np.where(whole == 0, 0, exponent - 53 + trailing)


def exponent_of(values: Array) -> int:
    """The largest p with which all of the numbers are multiples of 2^p; 0 if all are 0."""
    nonzero = values[values != 0]
    return int(exponents_of(nonzero).min(initial=2**10)) if nonzero.size else 0
