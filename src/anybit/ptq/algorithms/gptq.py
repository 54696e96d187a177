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
first, and H is damped, more so where it comes of few rows.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Grid
from anybit.ptq.algorithms.hessian import TOGETHER, Factors, Moments, add_product, factors_of
from anybit.ptq.algorithms.layer_runner import LayerRunner, Sample, smoothed_weight
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight, nearest
from anybit.ptq.graph.matmul_form import MatMulForm, find_matmul_form
from anybit.ptq.specs.dynamic_grid import DynamicGrid
from anybit.ptq.specs.quantize import select_operator
from anybit.quant_types.spec import QuantSpec

# Weights of more bits are rounded to nearest.
_MOST_BITS = 8
# Sums of more terms are handled in parts, as if these had nothing to do with one another.
_MOST_TERMS = 2048

Nearest = Callable[[Array, Array], Array]


def gptq(weights: Array, factors: Factors, nearest: Nearest) -> Array:
    """Weights on a grid, for which the sums of products have a small error.

    Args:
        weights: As [groups, columns, terms].
        factors: Those of the rows that they are multiplied with.
        nearest: Rounds an array [groups, columns] to the grid of one term per group, whose numbers
            are the second argument.
    """
    order, triangle = factors.order, factors.triangle
    w = np.take_along_axis(weights.swapaxes(1, 2).astype(np.float64), order[..., None], axis=1)
    q, aim = np.zeros_like(w), w.copy()
    for end in range(w.shape[1], 0, -TOGETHER):
        start = max(0, end - TOGETHER)
        near, corner = aim[:, start:end], triangle[:, start:end, start:end]
        off = np.zeros_like(near)
        for i in range(end - start - 1, -1, -1):
            q[:, start + i] = nearest(near[:, i], order[:, start + i])
            off[:, i] = w[:, start + i] - q[:, start + i]
            near[:, :i] += corner[:, :i, i, None] * off[:, i, None]
        add_product(aim[:, :start], triangle[:, :start, start:end], off)
    found = np.empty_like(q)
    np.put_along_axis(found, order[..., None], q, axis=1)
    return found.swapaxes(1, 2)


def is_fine(scheme: QuantSpec) -> bool:
    """Whether rounding to nearest will do."""
    return scheme.bits > _MOST_BITS


class Refiner:
    """Rounds the weights of layers that read the same tensor, quantized in the same way.

    Args:
        grid: The tensor's; None if it stays as it is.
        smoothing: As for pieces.
        samples: What to learn from.
    """

    def __init__(
        self, grid: Grid | DynamicGrid | None, smoothing: Array | None, samples: Sequence[Sample]
    ) -> None:
        self._grid, self._smoothing, self._samples = grid, smoothing, samples
        self._last: tuple[Hashable, Factors] | None = None

    def refined(self, piece: LayerRunner) -> tuple[QuantizedWeight, ...]:
        """The weights of a layer on their grids; none if there is no such way."""
        if find_matmul_form(piece.layer) is None or piece.scheme is None:
            return ()
        return refined_by(piece, self._smoothing, self._factors(piece))

    def rescaled(self, piece: LayerRunner, by: Array) -> tuple[QuantizedWeight, ...]:
        """The same where channels of the tensor are divided by s, too, and nothing is rounded
        then."""
        product = find_matmul_form(piece.layer)
        if product is None or piece.scheme is None:
            return ()
        ones = np.ones(piece.layer.constants[0][1].shape)
        s = product.to_matrix(smoothed_weight(ones, product.weight, by))[:, 0]
        factors = self._factors(piece)
        return refined_by(piece, by, lambda part: factors(part).divided(s[:, part]))

    def costs(self, piece: LayerRunner) -> Array | None:
        """What an error in each element of a layer's first weight costs, once the others have made
        up for what they can; None where that is not known."""
        product = find_matmul_form(piece.layer)
        if product is None:
            return None
        return _all_costs(product, piece.layer.constants[0][1].shape, self._factors(piece))

    def _factors(self, piece: LayerRunner) -> Callable[[slice], Factors]:
        product = find_matmul_form(piece.layer)
        assert product is not None, "asked before"
        reads = product.get_rows_key(piece.layer.constants[0][1].shape)
        moments = moments_of(piece, self._grid, self._smoothing, self._samples)

        def factors(part: slice) -> Factors:
            """The last ones are kept for other layers, and no more of them, for they are large."""
            key = reads, part.start
            if self._last is None or self._last[0] != key:
                self._last = None
                self._last = key, factors_of(moments(part), piece.config.gptq)
            return self._last[1]

        return factors


def moments_of(
    piece: LayerRunner,
    grid: Grid | DynamicGrid | None,
    smoothing: Array | None,
    samples: Sequence[Sample],
) -> Callable[[slice], Moments]:
    """X^T X of what a layer reads, for some of the terms of its product."""
    product = find_matmul_form(piece.layer)
    assert product is not None, "asked before"
    shape = piece.layer.constants[0][1].shape

    def moments(part: slice) -> Moments:
        terms = part.stop - part.start
        config = piece.config.gptq
        most = -(-max(config.least_rows, config.rows_per_term * terms) // len(samples))
        found = Moments(np.zeros((product.groups, terms, terms)))
        become = piece.reader(grid, smoothing)
        read = map(piece.read, samples)
        if isinstance(grid, DynamicGrid):  # what becomes of an element depends on its block
            rows = (few for x in read for few in product.iterate_rows(become(x), shape, most))
        else:
            rows = (few for x in read for few in product.iterate_rows(x, shape, most, become))
        found.add(few[..., part] for few in rows)
        return found

    return moments


def refined_by(
    piece: LayerRunner, smoothing: Array | None, factors: Callable[[slice], Factors]
) -> tuple[QuantizedWeight, ...]:
    """The weights of a layer with a product on their grids, by the factors for some terms."""
    product = find_matmul_form(piece.layer)
    assert product is not None, "asked before"
    assert piece.scheme is not None, "asked before"
    array = piece.smoothed(smoothing)[0]
    matrix = product.to_matrix(array)
    factors = _last_kept(factors)
    costs = _all_costs(product, array.shape, factors)
    best = nearest(array, product.weight, piece.scheme, piece.config.weights, costs)
    on_grid = _rounding(product, best)
    # Backwards: the factors of the last part are still known.
    found = [
        gptq(matrix[..., part], factors(part), partial(on_grid, part.start))
        for part in reversed(parts_of(matrix.shape[2]))
    ]
    stored = product.from_matrix(np.concatenate(found[::-1], axis=2), array.shape).astype(
        np.float32
    )
    return (QuantizedWeight(stored, best.grid, best.blocks), *piece.nearest(smoothing)[1:])


def _last_kept(factors: Callable[[slice], Factors]) -> Callable[[slice], Factors]:
    """The same, but those that are asked for again are not made again; the last alone are kept, for
    they are large."""
    known: dict[int, Factors] = {}

    def kept(part: slice) -> Factors:
        if part.start not in known:
            known.clear()
            known[part.start] = factors(part)
        return known[part.start]

    return kept


def parts_of(terms: int) -> list[slice]:
    """The terms of long sums, as many together as are handled at once."""
    count = -(-terms // _MOST_TERMS)
    return [slice(*each) for each in pairwise(terms * at // count for at in range(count + 1))]


def _all_costs(
    product: MatMulForm, shape: tuple[int, ...], factors: Callable[[slice], Factors]
) -> Array:
    """What an error in each element of a weight costs."""
    matrix = product.to_matrix(np.broadcast_to(np.zeros(()), shape))
    parts = parts_of(matrix.shape[2])
    costs = np.concatenate([_costs(factors(part)) for part in parts], axis=2)
    return product.from_matrix(np.broadcast_to(costs, matrix.shape), shape)


def _costs(factors: Factors) -> Array:
    """d^2 in the terms' own order, as [groups, 1, terms]: what an error in each costs, once the
    others have made up for what they can."""
    found = np.empty_like(factors.diagonal)
    np.put_along_axis(found, factors.order, factors.diagonal, axis=1)
    return found[:, None]


def _rounding(
    product: MatMulForm, rounded: QuantizedWeight
) -> Callable[[int, Array, Array], Array]:
    """Rounds columns of the weight's matrix to its grid, from some term on."""
    found = select_operator(rounded.grid)
    shape = rounded.array.shape
    same: dict[str, Any] = dict(found.call.attributes)
    others = {}
    for name, each in found.call.parameters.items():
        of_all = each if each.size == 1 else product.to_matrix(np.broadcast_to(each, shape))
        if each.size == 1:
            same[name] = each
        elif (of_all == of_all[..., :1]).all():
            same[name] = of_all[..., 0].copy()
        else:
            others[name] = of_all
    groups = np.arange(product.groups)

    def on_grid(start: int, x: Array, terms: Array) -> Array:
        of_terms = {name: each[groups, :, start + terms] for name, each in others.items()}
        return np.asarray(found.operator.function(x.astype(np.float32), **of_terms, **same))

    return on_grid
