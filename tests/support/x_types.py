# SPDX-License-Identifier: Apache-2.0
"""Arrays of a type that an operator takes for x: floats, or the codes that a dequantizer reads."""

import numpy as np

from anybit.ops import Operator


def reads_codes(operator: Operator) -> bool:
    """Return whether x holds integers."""
    return operator.inputs[0].domain.integer


def x_dtypes(operator: Operator) -> tuple[str, ...]:
    """Return all dtypes that x may have."""
    return operator.inputs[0].domain.dtypes


def as_x(operator: Operator, array: np.ndarray) -> np.ndarray:
    """Return an array of floats as it is, or rounded to the first type of codes."""
    if not reads_codes(operator):
        return array
    dtype = np.dtype(x_dtypes(operator)[0])
    limits = np.iinfo(dtype)
    return np.clip(np.rint(array), limits.min, limits.max).astype(dtype)


def moves_x(operator: Operator) -> bool:
    """Return whether x has a gradient."""
    return operator.inputs[0].name in operator.differentiable
