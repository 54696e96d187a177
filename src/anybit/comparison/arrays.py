# SPDX-License-Identifier: Apache-2.0
"""What the arrays of a comparison may be: those of NumPy, and those of ml_dtypes."""

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


def is_number(array: Array) -> bool:
    """Whether it holds real numbers, those of ml_dtypes among them."""
    return array.dtype.kind in "fiub" or (array.dtype.kind == "V" and array.dtype.names is None)


def is_float(array: Array) -> bool:
    """Whether it holds floating-point numbers. NumPy sees the types of ml_dtypes as bytes."""
    return array.dtype.kind == "f" or "float" in array.dtype.name


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its sizes of 1."""
    return tuple(size for size in shape if size != 1)
