# SPDX-License-Identifier: Apache-2.0
"""Python interface of the compiled module `_core`. Independent of the set of operators.

The package uses nothing else of `_core`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anybit.arrays import Array
from anybit.errors import DependencyError

try:
    from anybit._native import _core
except ImportError as error:  # also for a wrong ANYBIT_ISA or ANYBIT_NUM_THREADS
    raise DependencyError(str(error)) from error

FOLDER = Path(_core.__file__).parent
"""Folder of the compiled libraries. It may differ from the folder of this file."""

isa = _core.isa
num_threads = _core.num_threads
set_num_threads = _core.set_num_threads
limit_threads = _core.limit_threads

Network = _core.Network
Call = _core.Call

xla_handlers = _core.xla_handlers

plain_tensors = _core.plain_tensors
"""Builds a native check for plain tensors from PyTorch's own functions."""


def may_spin(threads: int) -> bool:
    """Return whether each of these threads has a processor of its own."""
    return _core.may_spin(threads)


def count_values(
    arrays: list[Array],
    axes: list[int | None],
    counts: list[Array],
    extremes: list[Array | None],
) -> list[tuple[float, float]]:
    """Add the values of arrays to histograms, and return the (minimum, maximum) of each array.

    An array with a value that is not finite is skipped; its result is (NaN, NaN).

    Args:
        arrays: float32 arrays.
        axes: Channel axis of each array, counted from 0; None for no per-channel extremes.
        counts: int64 histogram of each array, updated in place: 2^15 bins, indexed by the leading
            bits of a value.
        extremes: float32 array of shape (2, channels) of each array, updated in place: minimum and
            maximum of each channel. A zero is stored as +0.
    """
    return _core.count_values(arrays, axes, counts, extremes)


def squared_difference(a: Array, b: Array) -> float:
    """Return the sum of (a - b)^2 of two float32 arrays.

    Differences are rounded to float32, squares are summed in float64. The order of the sum depends
    only on the number of elements.
    """
    return _core.squared_difference(a, b)


def add_product(sums: Array, a: Array, b: Array, *, subtract: bool = False) -> None:
    """Add the product of two float64 matrices to a third one, or subtract it, on one thread.

    Each sum is added up term by term, with rounded products: bits do not depend on the processor.
    """
    _core.add_product(sums, a, b, subtract)


def round_terms(
    operator: str, weights: Array, triangles: Array, rounded: Array, arguments: Mapping[str, Any]
) -> None:
    """Round weights by an operator, term by term from the last one, which compensate the errors.

    Each term is rounded after the errors of the later ones, times the elements of a matrix, were
    added to it.

    Args:
        operator: The name of the operator.
        weights: The weights as [terms, groups, columns], in float64; receives weights - rounded.
        triangles: The unit upper triangular matrix of each group, in float64.
        rounded: A float32 array of the shape of `weights`, which receives the rounded ones.
        arguments: Parameters of the operator, which broadcast to `rounded`, and attributes.
    """
    getattr(_core, f"{operator}_in_turn")(weights, triangles, rounded, **arguments)


def get_kernel(operator: str) -> Callable[..., Any]:
    """Return the native function of an operator."""
    function: Callable[..., Any] = getattr(_core, operator)
    return function


def get_backward_kernel(operator: str) -> Callable[..., list[Any]]:
    """Return the native function that computes the gradients of the inputs named in `requested`."""
    function: Callable[..., list[Any]] = getattr(_core, f"{operator}_backward")
    return function


def get_spread_variant(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return the variant of a kernel that is called as (positional, attributes, names, *values).

    It serves callers that have a tuple of arguments and a dict of attributes: Python's unpacking
    takes longer than a kernel on few elements.
    """
    function: Callable[..., Any] = getattr(_core, f"{kernel.__name__}_spread")
    return function


def get_differentiable_inputs(operator: str) -> frozenset[str]:
    """Return the inputs that the native backward kernel differentiates, if there is one."""
    return frozenset(_core.descriptions[operator]["differentiable"])
