# SPDX-License-Identifier: Apache-2.0
"""GPTQ: weights are rounded one after the other, and those that are left make up for the error.

Rounding to nearest is best for each weight and not for their sums. For rows X of what a layer
reads, a column w of its weight and values q of a grid, with H = X^T X,

    |X (w - q)|^2 = (w - q)^T H (w - q) = sum_i d_i^2 (w_i - q_i + sum_(j > i) t_ij (w_j - q_j))^2

where H = t^T d^2 t is Cholesky's: d is diagonal, and t unit upper triangular. From the last term to
the first, each is made as small as the grid allows, given the ones behind it:

    q_i = nearest(w_i + sum_(j > i) t_ij (w_j - q_j))

Frantar et al. (2022, https://arxiv.org/abs/2210.17323) compute the same from the inverse of H, from
the first term to the last. That it is the same, and Babai's nearest plane, was shown by Chen et al.
(2025, https://arxiv.org/abs/2507.18553). Terms with large x come last here, and so are rounded
first, and H is damped: a hundredth of the mean of its diagonal is added to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Grid
from anybit.quantization.dynamic import DynamicGrid
from anybit.quantization.pieces import Piece, Sample
from anybit.quantization.products import Product, product_of
from anybit.quantization.ranges import WIDE
from anybit.quantization.schemes import Scheme, operator_for
from anybit.quantization.weights import Rounded, nearest
from anybit.words.grammar import Integers

_DAMPING = 0.01
# Terms that are handled with one product of matrices.
_TOGETHER = 64
# Sums of more terms are handled in parts, as if these had nothing to do with one another.
_MOST_TERMS = 2048
# Rows that are looked at: so many per term, and so many in any case.
_ROWS_PER_TERM, _ROWS = 16, 4096

Nearest = Callable[[Array, Array], Array]
Moments = Callable[[slice], Array]


@dataclass(frozen=True)
class Factors:
    """The second moments of what is multiplied, taken apart; for several groups.

    Attributes:
        order: The numbers of the terms in the order of the factors, as [groups, terms].
        triangle: t, unit upper triangular, as [groups, terms, terms].
        diagonal: d^2, as [groups, terms].
    """

    order: Array
    triangle: Array
    diagonal: Array


def factors_of(moments: Array) -> Factors:
    """The factors of X^T X, as [groups, terms, terms] in float64; zeros are allowed."""
    sizes = np.diagonal(moments, axis1=1, axis2=2).copy()
    order = np.argsort(sizes, axis=1, kind="stable")
    groups = np.arange(len(moments))[:, None, None]
    turned = moments[groups, order[:, :, None], order[:, None]]
    del moments  # as large as what follows
    damping = _DAMPING * sizes.mean(axis=1, keepdims=True)
    # Where there is nothing but zeros any rounding is as good as nearest.
    np.einsum("gii->gi", turned)[...] += np.where(damping > 0, damping, 1.0)
    upper = np.linalg.cholesky(turned).swapaxes(1, 2)
    diagonal = np.diagonal(upper, axis1=1, axis2=2).copy()
    upper /= diagonal[..., None]
    return Factors(order, upper, np.square(diagonal))


def gptq(weights: Array, factors: Factors, nearest: Nearest) -> Array:
    """Weights on a grid, for which the sums of products have a small error.

    Args:
        weights: As [groups, columns, terms].
        factors: Those of the rows that they are multiplied with.
        nearest: Rounds an array [groups, columns] to the grid of one term per group, whose numbers
            are the second argument.
    """
    order, triangle = factors.order, factors.triangle
    w = np.take_along_axis(weights.astype(np.float64), order[:, None], axis=2)
    q, off = np.zeros_like(w), np.zeros_like(w)
    for end in range(w.shape[2], 0, -_TOGETHER):
        start = max(0, end - _TOGETHER)
        aim = w[..., start:end] + off[..., end:] @ triangle[:, start:end, end:].swapaxes(1, 2)
        for i in range(end - 1, start - 1, -1):
            behind = off[..., i + 1 : end] @ triangle[:, i, i + 1 : end, None]
            q[..., i] = nearest(aim[..., i - start] + behind[..., 0], order[:, i])
            off[..., i] = w[..., i] - q[..., i]
    found = np.empty_like(q)
    np.put_along_axis(found, order[:, None], q, axis=2)
    return found


def is_fine(scheme: Scheme) -> bool:
    """Whether rounding to nearest will do: integers of 8 bits and more, and what is wider."""
    return scheme.bits >= (8 if isinstance(scheme.kind, Integers) else WIDE)


def refined(
    piece: Piece,
    grid: Grid | DynamicGrid | None,
    smoothing: Array | None,
    samples: Sequence[Sample],
) -> tuple[Rounded, ...]:
    """The weights of a layer on their grids, by what it reads; none if there is no such way.

    Args:
        piece: The layer.
        grid: That of what it reads; None if that stays as it is.
        smoothing: As for the piece.
        samples: What to learn from.
    """
    if product_of(piece.layer) is None or piece.scheme is None:
        return ()
    return refined_by(piece, smoothing, moments_of(piece, grid, smoothing, samples))


def moments_of(
    piece: Piece,
    grid: Grid | DynamicGrid | None,
    smoothing: Array | None,
    samples: Sequence[Sample],
) -> Moments:
    """X^T X of what a layer reads, for some of the terms of its product."""
    product = product_of(piece.layer)
    assert product is not None, "asked before"
    read = [piece.read(grid, smoothing, sample) for sample in samples]
    return partial(_moments, product, read, piece.layer.constants[0][1].shape)


def refined_by(piece: Piece, smoothing: Array | None, moments: Moments) -> tuple[Rounded, ...]:
    """The weights of a layer with a product on their grids, by the moments of what is read."""
    product = product_of(piece.layer)
    assert product is not None, "asked before"
    assert piece.scheme is not None, "asked before"
    array = piece.smoothed(smoothing)[0]
    matrix = product.matrix(array)
    parts = parts_of(matrix.shape[2])
    costs, factors = [], None
    for part in parts:
        factors = None  # no more than one part's are kept, which are large
        factors = factors_of(moments(part))
        costs.append(_costs(factors))
    all_costs = np.broadcast_to(np.concatenate(costs, axis=2), matrix.shape)
    best = nearest(array, product.weight, piece.scheme, product.array(all_costs, array.shape))
    on_grid = _rounding(product, best)
    found: list[Array] = []
    for part in reversed(parts):
        factors = factors or factors_of(moments(part))
        found.insert(0, gptq(matrix[..., part], factors, partial(on_grid, part.start)))
        factors = None
    stored = product.array(np.concatenate(found, axis=2), array.shape).astype(np.float32)
    return (Rounded(stored, best.grid, best.blocks), *piece.nearest(smoothing)[1:])


def parts_of(terms: int) -> list[slice]:
    """The terms of long sums, as many together as are handled at once."""
    count = -(-terms // _MOST_TERMS)
    return [slice(*each) for each in pairwise(terms * at // count for at in range(count + 1))]


def _moments(product: Product, read: Sequence[Array], shape: tuple[int, ...], part: slice) -> Array:
    """X^T X, for some of the terms, in float64."""
    terms = part.stop - part.start
    most = -(-max(_ROWS, _ROWS_PER_TERM * terms) // len(read))
    found = np.zeros((product.groups, terms, terms))
    for x in read:
        for few in product.rows(x, shape, most):
            rows = few[..., part].astype(np.float64)
            found += rows.swapaxes(1, 2) @ rows
    return found


def _costs(factors: Factors) -> Array:
    """d^2 in the terms' own order, as [groups, 1, terms]: what an error in each costs, once the
    others have made up for what they can."""
    found = np.empty_like(factors.diagonal)
    np.put_along_axis(found, factors.order, factors.diagonal, axis=1)
    return found[:, None]


def _rounding(product: Product, rounded: Rounded) -> Callable[[int, Array, Array], Array]:
    """Rounds columns of the weight's matrix to its grid, from some term on."""
    found = operator_for(rounded.grid)
    shape = rounded.array.shape
    parameters = {
        name: each if each.size == 1 else product.matrix(np.broadcast_to(each, shape))
        for name, each in found.call.parameters.items()
    }
    groups = np.arange(product.groups)

    def on_grid(start: int, x: Array, terms: Array) -> Array:
        of_terms = {
            name: each if each.size == 1 else each[groups, :, start + terms]
            for name, each in parameters.items()
        }
        x = x.astype(np.float32)
        return np.asarray(found.operator.function(x, **of_terms, **found.call.attributes))

    return on_grid
