# SPDX-License-Identifier: Apache-2.0
"""Codes of formats that are not types of ONNX Runtime: indices into a table of values."""

import numpy as np

from anybit.formats import FloatFormat
from anybit.onnx.graph.constants import Array


def values_of(format: FloatFormat) -> Array:
    """Return the values in ascending order."""
    return format.values().astype(np.float32)


def encoded(values: Array, format: FloatFormat, scale: Array) -> Array:
    """Return the indices in the table whose values, times the scale, are the numbers.

    Raises:
        ValueError: The values are not on the grid.
    """
    table = values_of(format)
    with np.errstate(all="ignore"):
        numbers = np.divide(values, scale, dtype=np.float32)
        codes = np.searchsorted((table[1:] + table[:-1]) / 2, numbers).astype(np.uint8)
        if not np.array_equal(table[codes] * scale.astype(np.float32), values):
            raise ValueError("its codes times scale differ from its values in float32")
    return codes
