# SPDX-License-Identifier: Apache-2.0
"""Second moments of the inputs of layers (the Hessian of GPTQ), and their Cholesky factors."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]

from anybit._native import add_product
from anybit.onnx.graph.constants import Array
from anybit.onnx.runtime import make_session, run_session
from anybit.ptq.config import GptqConfig

# Columns of a factor that are computed together.
_BLOCK_TERMS, _PANEL_TERMS = 32, 128
# The powers of two that float32 and their squares float64 hold, at least.
_MAX_EXPONENT = 126
# Rows whose squares are added up in float32.
_BLOCK_ROWS = 2048
# The fewest columns of a block of X^T X, and rows of X to compute it in blocks: smaller ones take
# longer, and below 128 columns the runtime adds up in another order.
_LEAST_COLUMNS = 256
_PRODUCT = """
<ir_version: 8, opset_import: ["" : 13]>
multiply (float[groups, m, k] a, float[groups, k, n] b) => (float[groups, m, n] y) {
    y = MatMul(a, b)
}
"""


@dataclass(frozen=True)
class HessianFactors:
    """Cholesky factors of the second moments H = X^T X, as t^T d^2 t; for several groups.

    A share of the mean of H's diagonal is added to that before.

    Attributes:
        order: The numbers of the terms in the order of the factors, as [groups, terms].
        triangle: t, unit upper triangular, as [groups, terms, terms].
        diagonal: d^2, as [groups, terms].
    """

    order: Array
    triangle: Array
    diagonal: Array

    def divide(self, by: Array) -> "HessianFactors":
        """Return the factors of X / s, in the same order.

        With S = diag s, S^-1 H S^-1 is (S t S^-1)^T (S^-2 d^2) (S t S^-1).

        Args:
            by: s, as [groups, terms].
        """
        s = np.take_along_axis(by, self.order, axis=1)
        triangle = self.triangle * (s[:, :, None] / s[:, None])
        return HessianFactors(self.order, triangle, self.diagonal / np.square(s))


class FactorCache:
    """The Hessian factors that were computed last. Factors are large, so others are dropped."""

    def __init__(self) -> None:
        self._last: tuple[Hashable, HessianFactors] | None = None

    def get(self, key: Hashable, compute: Callable[[], HessianFactors]) -> HessianFactors:
        """Return the factors of a key; compute them if another key was the last."""
        if self._last is None or self._last[0] != key:
            self._last = None  # before others take memory
            self._last = key, compute()
        return self._last[1]


@dataclass
class Moments:
    """X^T X for several groups.

    Attributes:
        sums: As [groups, terms, terms].
        rows: The number of rows of X, the same for all groups.
    """

    sums: Array
    rows: int = 0

    def add(self, rows: Iterable[Array]) -> None:
        """Add the moments of rows, in blocks of [groups, rows, terms].

        A session with one thread adds the products of a block in float32. A library for matrices
        would divide sums among its threads, which changes their last bits.
        """
        for block in _join_blocks(rows):
            reach = _find_largest(block)
            if math.isinf(reach):
                # The end of a grid may lie beyond float32: no weights make up for such rows.
                block[~np.isfinite(block).all(axis=-1)] = 0
                reach = _find_largest(block)
            # Squares of values far from 1 overflow float32.
            exponent = min(max(math.frexp(reach)[1], -_MAX_EXPONENT), _MAX_EXPONENT)
            block *= np.float32(2.0**-exponent)
            self.sums += np.multiply(_square(block), 4.0**exponent, dtype=np.float64)
            self.rows += block.shape[1]

    def compute_damping(self, config: GptqConfig) -> float:
        """Return the share of the diagonal's mean that is added to it: more for fewer rows.

        Few rows underestimate the cost of errors in some directions. Shrinking
        covariances to a multiple of the identity (Ledoit and
        Wolf, 2004, https://doi.org/10.1016/S0047-259X(03)00096-4) adds as much where the variance
        of the eigenvalues is ten times the square of their mean.
        """
        terms_per_row = float(self.sums.shape[1]) / max(self.rows, 1)
        return max(config.damping, config.damping_per_term * terms_per_row)

    def merge(self, other: "Moments") -> None:
        """Add the moments of other rows."""
        self.sums += other.sums
        self.rows += other.rows


def _find_largest(block: Array) -> float:
    return max(float(block.max(initial=0.0)), -float(block.min(initial=0.0)))


def _join_blocks(rows: Iterable[Array]) -> Iterator[Array]:
    """Yield the same rows in larger blocks."""
    waiting: list[Array] = []
    for few in rows:
        waiting.append(few)
        if sum(block.shape[1] for block in waiting) >= _BLOCK_ROWS:
            yield np.concatenate(waiting, axis=1, dtype=np.float32)
            waiting = []
    if waiting:
        yield np.concatenate(waiting, axis=1, dtype=np.float32)


def _square(rows: Array) -> Array:
    """Return X^T X of rows [groups, rows, terms]; blocks below the diagonal are mirrored."""
    turned = np.ascontiguousarray(rows.swapaxes(1, 2))
    groups, terms, length = turned.shape
    count = terms // _LEAST_COLUMNS
    if count < 2 or length < _LEAST_COLUMNS:
        return _multiply(turned, rows)
    squares = np.empty((groups, terms, terms), np.float32)
    for start, end in pairwise(terms * at // count for at in range(count + 1)):
        block = _multiply(turned[:, :end], np.ascontiguousarray(rows[..., start:end]))
        squares[:, :end, start:end] = block
        squares[:, start:end, :start] = block[:, :start].swapaxes(1, 2)
    return squares


def _multiply(a: Array, b: Array) -> Array:
    """Return the products of matrices, one per group."""
    return run_session(_make_product_session(), {"a": a, "b": b}, kept=False)["y"]


@cache
def _make_product_session() -> onnxruntime.InferenceSession:
    return make_session(ir.from_onnx_text(_PRODUCT), threads=1)


def factorize(moments: Moments, config: GptqConfig) -> HessianFactors:
    """Return the factors of X^T X, damped; zeros are allowed."""
    sizes = np.diagonal(moments.sums, axis1=1, axis2=2).copy()
    order = np.argsort(sizes, axis=1, kind="stable")
    turned = np.empty_like(moments.sums)
    for target, matrix, terms in zip(turned, moments.sums, order, strict=True):
        np.take(matrix[terms], terms, axis=1, out=target, mode="clip")
    share = moments.compute_damping(config)
    del moments  # as large as what follows
    damping = share * sizes.mean(axis=1, keepdims=True)
    # Where there is nothing but zeros any rounding is as good as nearest.
    np.einsum("gii->gi", turned)[...] += np.where(damping > 0, damping, 1.0)
    factorize_in_place(turned)
    diagonal = np.diagonal(turned, axis1=1, axis2=2).copy()
    turned /= diagonal[:, None]
    return HessianFactors(order, turned.swapaxes(1, 2), np.square(diagonal))


def factorize_in_place(matrices: Array) -> None:
    """Replace A by L, lower triangular, with A = L L^T; for several, as [groups, terms, terms].

    A few columns of L at a time follow from those before them.
    """
    terms = matrices.shape[1]
    for start in range(0, terms, _BLOCK_TERMS):
        end = min(start + _BLOCK_TERMS, terms)
        # All columns before a panel are subtracted from all of its columns, then those inside.
        panel = start // _PANEL_TERMS * _PANEL_TERMS
        first, last = (panel, end) if panel < start else (0, min(panel + _PANEL_TERMS, terms))
        for matrix in matrices if start else ():
            before = matrix[:, first:start]
            columns = matrix[start:, start:last]
            add_product(columns, before[start:], before[start:last].T, subtract=True)
        corner = np.linalg.cholesky(matrices[:, start:end, start:end])
        matrices[:, start:end, start:end], matrices[:, start:end, end:] = corner, 0
        inverse = np.linalg.inv(corner).swapaxes(1, 2) if end < terms else ()
        for matrix, factor in zip(matrices, inverse, strict=False):
            below = np.zeros((terms - end, end - start))
            add_product(below, matrix[end:, start:end], factor)
            matrix[end:, start:end] = below
