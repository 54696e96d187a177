# SPDX-License-Identifier: Apache-2.0
"""Tables of two tensors as integer arithmetic, for targets with little memory.

A `Combine` has up to 64 KiB. If its function is a rounded sum or product, least squares give the
slopes, but too coarsely. A grid that narrows down then finds those with the
widest interval of terms, a concave function of the slopes.
"""

import numpy as np

from anybit.compiler.backends.integer_pairs import IntegerPair, fit_indices
from anybit.compiler.program import program as p
from anybit.onnx.graph.constants import Array

_MOST_RESIDUAL = 0.75
"""Rounded values differ from a line by a half; more than a half allows for errors of the fit."""

_ROUNDS, _POINTS, _SHRINKAGE = 30, 7, 0.6
_TIGHTEST = 512
"""Number of pairs by which slopes are chosen: those nearest to a step."""

_MARGIN = 8.0
"""Ratio of searched slopes to the standard error of least squares."""

_MOST_ZERO = 2.0**20


def fit_table(table: p.Bytes, levels: tuple[int, int]) -> IntegerPair | None:
    """Return integer arithmetic that equals a table of pairs; None if it is not much smaller.

    Args:
        table: The index of every pair, the second tensor running fastest.
        levels: Number of indices of both tensors.
    """
    index = table.astype(np.int64)
    inside = (index > index.min()) & (index < index.max())
    if not inside.any():
        inside[:] = True
    first, second = np.indices(levels).reshape(2, -1).astype(np.float64)
    fit = _fit_sum(first, second, index, inside) or _fit_product(first, second, index, inside)
    if fit is None:
        return None
    slopes, zeros, operands = fit
    error = _MARGIN * 0.3 / np.sqrt(inside.sum()) / np.maximum(operands[:, inside].std(axis=1), 1)
    pair = fit_indices(index, levels, _widen(slopes, error, operands, index), zeros)
    return pair if not pair.table.size and 2 * pair.size < table.size else None


_Fit = tuple[Array, tuple[int, int], Array]
"""Slopes, zeros of a product, and what the slopes multiply, one row for each."""


def _fit_sum(first: Array, second: Array, index: Array, inside: Array) -> _Fit | None:
    slopes = _fit_plane(np.stack([first, second]), index, inside)
    return None if slopes is None else (slopes, (0, 0), np.stack([first, second]))


def _fit_product(first: Array, second: Array, index: Array, inside: Array) -> _Fit | None:
    slopes = _fit_plane(np.stack([first * second, first, second]), index, inside)
    if slopes is None or np.abs(slopes[1:]).max() >= _MOST_ZERO * abs(slopes[0]):
        return None
    zeros = -round(slopes[2] / slopes[0]), -round(slopes[1] / slopes[0])
    operands = ((first - zeros[0]) * (second - zeros[1]))[None]
    slopes = _fit_plane(operands, index, inside)
    return None if slopes is None else (slopes, zeros, operands)


def _fit_plane(operands: Array, index: Array, inside: Array) -> Array | None:
    """Return the slopes of the plane through indices that are not saturated, if they are on it."""
    matrix = np.vstack([operands, np.ones(index.size)])[:, inside].T
    weights = np.linalg.lstsq(matrix, index[inside], rcond=None)[0]
    if np.abs(matrix @ weights - index[inside]).max() > _MOST_RESIDUAL:
        return None
    return np.asarray(weights[:-1])


def _widen(slopes: Array, error: Array, operands: Array, index: Array) -> Array:
    """Return the slopes within an error for which most terms fit."""
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, _POINTS)] * slopes.size), -1)
    grid = grid.reshape(-1, slopes.size)
    reached, avoided = index > index.min(), index < index.max()
    for _ in range(_ROUNDS):
        rest = index - slopes @ operands
        low = _find_largest(np.where(reached, rest, -np.inf))
        high = _find_largest(np.where(avoided, -rest, -np.inf))
        candidates = slopes + error * grid
        least = (index[low] - candidates @ operands[:, low]).max(axis=1, initial=-1e9)
        most = (index[high] - candidates @ operands[:, high]).min(axis=1, initial=1e9)
        slopes = candidates[np.argmax(most - least)]
        error = error * _SHRINKAGE
    return slopes


def _find_largest(numbers: Array) -> Array:
    """Return the places of the largest numbers that are finite."""
    count = min(_TIGHTEST, numbers.size)
    places = np.argpartition(-numbers, count - 1)[:count]
    return np.asarray(places[np.isfinite(numbers[places])])
