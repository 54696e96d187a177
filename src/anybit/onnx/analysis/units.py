# SPDX-License-Identifier: Apache-2.0
"""Of which power of two numbers are multiples."""

import numpy as np

from anybit.onnx.graph.constants import Array

EXACT = 2.0**24
"""Up to so many units float32 holds every integer."""

LOWEST_EXPONENT = -149
"""The smallest float32 above 0 is 2 to this power."""


NO_EXPONENT = 2**10
"""More than any: that of what is a multiple of every power of two."""

# So many numbers at a time stay in the nearest cache.
_BLOCK = 2**14
_FRACTION = 2**52


def exponents_of(values: Array, of_zero: int = 0) -> Array:
    """For each number the largest p with which it is a multiple of 2^p, in int16.

    0, NaN and infinities get `of_zero`.
    """
    flat = np.ravel(values)
    found = np.empty(flat.size, np.int16)
    with np.errstate(all="ignore"):  # signalling NaN
        for at in range(0, flat.size, _BLOCK):
            found[at : at + _BLOCK] = _exponents(flat[at : at + _BLOCK].astype(np.float64), of_zero)
    return found.reshape(np.shape(values))


def _exponents(values: Array, of_zero: int) -> Array:
    """By their bits: the exponent field, and the lowest bit of the fraction that is set."""
    bits = values.view(np.int64)
    field = (bits >> 52) & 0x7FF
    whole = (bits & (_FRACTION - 1)) | np.where(field > 0, _FRACTION, 0)
    lowest = (whole & -whole).astype(np.float64).view(np.int64) >> 52
    exponents = np.maximum(field, 1) + lowest - (1023 + 1075)
    return np.where((whole == 0) | (field == 0x7FF), of_zero, exponents)


def exponent_of(values: Array) -> int:
    """The largest p with which all finite numbers are multiples of 2^p; 0 if all are 0."""
    found = int(exponents_of(values, NO_EXPONENT).min(initial=NO_EXPONENT))
    return 0 if found == NO_EXPONENT else found
