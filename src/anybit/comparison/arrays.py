# SPDX-License-Identifier: Apache-2.0
"""What the arrays of a comparison may be: those of NumPy, and those of ml_dtypes."""

import math
from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


def is_number(array: Array) -> bool:
    """Whether it holds real numbers, those of ml_dtypes among them."""
    return array.dtype.kind in "fiub" or (array.dtype.kind == "V" and array.dtype.names is None)


def is_float(array: Array) -> bool:
    """Whether it holds floating-point numbers. NumPy sees the types of ml_dtypes as bytes."""
    return array.dtype.kind == "f" or "float" in array.dtype.name


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays are bit for bit one: most that are compared are."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = f"u{math.gcd(a.dtype.itemsize, 8)}"
    return bool((a.reshape(-1).view(bits) == b.reshape(-1).view(bits)).all())


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its sizes of 1."""
    return tuple(size for size in shape if size != 1)
