# SPDX-License-Identifier: Apache-2.0
"""The native module, and the C++ behind it. Names no operator.

What is here is what the package uses of `_core`, the compiled module itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from anybit.errors import DependencyError

try:
    from anybit._native import _core
except ImportError as error:  # also for a wrong ANYBIT_ISA or ANYBIT_NUM_THREADS
    raise DependencyError(str(error)) from error

Array: TypeAlias = npt.NDArray[Any]

FOLDER = Path(_core.__file__).parent
"""Where the compiled libraries are, which need not be beside this file."""

isa = _core.isa
num_threads = _core.num_threads
set_num_threads = _core.set_num_threads
limit_threads = _core.limit_threads

Network = _core.Network
Call = _core.Call

xla_handlers = _core.xla_handlers

plain_tensors = _core.plain_tensors
"""Makes the question whether tensors are plain of PyTorch's functions for that."""


def count_values(
    arrays: list[Array],
    axes: list[int | None],
    counts: list[Array],
    extremes: list[Array | None],
) -> list[tuple[float, float]]:
    """Count the values of arrays, and give the least and the largest of each; NaN for both, and
    nothing is counted, if one is not finite.

    Args:
        arrays: Of float32.
        axes: Those of their channels, from 0 on; None where nobody asks for these.
        counts: For each an array of int64 that becomes larger, with 2^15 bins: the first bits of
            the values.
        extremes: Two rows of float32, which become wider: the least and the largest value of each
            channel so far; of zeros the positive.
    """
    return _core.count_values(arrays, axes, counts, extremes)


def squared_difference(a: Array, b: Array) -> float:
    """The sum of the squares of what two arrays of float32 differ in: differences of float32, added
    up in float64 in an order that depends on their number alone."""
    return _core.squared_difference(a, b)


def kernel(operator: str) -> Callable[..., Any]:
    """An operator, by its name, on arrays."""
    found: Callable[..., Any] = getattr(_core, operator)
    return found


def backward_kernel(operator: str) -> Callable[..., list[Any]]:
    """The gradients of those of its inputs that are `wanted`."""
    found: Callable[..., list[Any]] = getattr(_core, f"{operator}_backward")
    return found


def spread(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The same kernel on (positional, attributes, names, *values).

    For callers who have a tuple of arguments and a dict of attributes: Python's own way of
    unpacking them takes longer than a kernel on few elements.
    """
    found: Callable[..., Any] = getattr(_core, f"{kernel.__name__}_spread")
    return found


def differentiable(operator: str) -> frozenset[str]:
    """The inputs that its `backward_kernel` gives gradients of; where there are none, no kernel."""
    return frozenset(_core.descriptions[operator]["differentiable"])
