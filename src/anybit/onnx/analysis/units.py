# SPDX-License-Identifier: Apache-2.0
"""Powers of two that numbers are multiples of."""

import numpy as np

from anybit.onnx.graph.constants import Array

EXACT = 2.0**24
"""float32 holds every integer up to this magnitude."""

LOWEST_EXPONENT = -149
"""The smallest float32 above 0 is 2 to this power."""


NO_EXPONENT = 2**10
"""The exponent of 0, which is a multiple of every power of two: more than any other."""

# This many numbers fit in the L1 cache.
_BLOCK = 2**14
_FRACTION = 2**52


def find_exponents(values: Array, of_zero: int = 0) -> Array:
    """Return the largest p per number, as int16, such that it is a multiple of 2^p.

    0, NaN and infinities have `of_zero`.
    """
    flat = np.ravel(values)
    exponents = np.empty(flat.size, np.int16)
    with np.errstate(all="ignore"):  # signalling NaN
        for at in range(0, flat.size, _BLOCK):
            exponents[at : at + _BLOCK] = _compute_exponents(
                flat[at : at + _BLOCK].astype(np.float64), of_zero
            )
    return exponents.reshape(np.shape(values))


def _compute_exponents(values: Array, of_zero: int) -> Array:
    """Compute the exponents from the bits: exponent field and lowest set bit of the fraction."""
    bits = values.view(np.int64)
    field = (bits >> 52) & 0x7FF
    whole = (bits & (_FRACTION - 1)) | np.where(field > 0, _FRACTION, 0)
    lowest = (whole & -whole).astype(np.float64).view(np.int64) >> 52
    exponents = np.maximum(field, 1) + lowest - (1023 + 1075)
    return np.where((whole == 0) | (field == 0x7FF), of_zero, exponents)


def find_exponent(values: Array) -> int:
    """Return the largest p such that all finite numbers are multiples of 2^p; 0 if all are 0."""
    exponent = int(find_exponents(values, NO_EXPONENT).min(initial=NO_EXPONENT))
    return 0 if exponent == NO_EXPONENT else exponent
