# SPDX-License-Identifier: Apache-2.0
"""Stored parameters in the compute types of operators."""

from functools import lru_cache

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ops import Input
from anybit.ops.arrays import parameter

# Parameters are converted to the compute type of this x.
_FLOAT32 = np.zeros((), np.float32)


def in_compute_type(declared: Input, array: Array) -> Array:
    """Return a parameter in the compute type of its operator; read-only.

    Raises:
        TypeError: The array does not hold real numbers.
        ValueError: A value is outside the domain.
    """
    if array.size == 1 and array.dtype.isbuiltin == 1:
        return _number(declared, array.dtype, array.shape, array.tobytes())
    return _converted(declared, array)


@lru_cache(2**14)
def _number(declared: Input, dtype: np.dtype, shape: tuple[int, ...], data: bytes) -> Array:
    """Return one element: the same few widths and zero-points occur again and again in a model."""
    return _converted(declared, np.frombuffer(data, dtype).reshape(shape))


def _converted(declared: Input, array: Array) -> Array:
    with np.errstate(all="ignore"):  # a float64 scale may overflow
        return np.asarray(parameter(array, declared.domain, _FLOAT32, declared.name))
