# SPDX-License-Identifier: Apache-2.0
"""Properties of arrays with the dtypes of NumPy and of ml_dtypes."""

import math

from anybit.onnx.graph.constants import Array


def is_number(array: Array) -> bool:
    """Return whether an array holds real numbers, in a dtype of NumPy or ml_dtypes."""
    return array.dtype.kind in "fiub" or (array.dtype.kind == "V" and array.dtype.names is None)


def is_float(array: Array) -> bool:
    """Return whether an array holds floats. NumPy takes the dtypes of ml_dtypes for bytes."""
    return array.dtype.kind == "f" or "float" in array.dtype.name


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two arrays have the same shape, dtype and bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = f"u{math.gcd(a.dtype.itemsize, 8)}"
    return bool((a.reshape(-1).view(bits) == b.reshape(-1).view(bits)).all())


def squeeze_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its sizes of 1."""
    return tuple(size for size in shape if size != 1)
