# SPDX-License-Identifier: Apache-2.0
"""GPTQ: weights are rounded in turn, and the remaining ones compensate the error.

Rounding to nearest is best for each weight, but not for their sums. For rows X of a layer's
input, a column w of its weight and values q of a grid, with H = X^T X,

    |X (w - q)|^2 = (w - q)^T H (w - q) = sum_i d_i^2 (w_i - q_i + sum_(j > i) t_ij (w_j - q_j))^2

where H = t^T d^2 t is Cholesky's: d is diagonal, and t unit upper triangular. From the last term to
the first, each is made as small as the grid allows, given the later ones:

    q_i = nearest(w_i + sum_(j > i) t_ij (w_j - q_j))

Frantar et al. (2022, https://arxiv.org/abs/2210.17323) compute the same from the inverse of H, from
the first term to the last. Chen et al. (2025, https://arxiv.org/abs/2507.18553) prove that both are
Babai's nearest plane algorithm. Terms with large x come last here, so they are rounded first. H is
damped, more strongly for few rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from anybit._native import round_terms
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Grid
from anybit.ptq.algorithms.hessian import FactorCache, HessianFactors, Moments, factorize
from anybit.ptq.algorithms.layer_runner import LayerInputs, LayerRunner, scale_weight
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight, round_to_nearest
from anybit.ptq.config import GptqConfig
from anybit.ptq.graph.matmul_form import MatMulForm, find_matmul_form
from anybit.ptq.specs.dynamic_grid import DynamicGrid
from anybit.ptq.specs.quantize import select_operator
from anybit.quant_types.spec import QuantSpec


@dataclass(frozen=True)
class ColumnRounding:
    """Rounding of the columns of a weight to its grid.

    Attributes:
        operator: The name of the operator.
        common: Its attributes, and its parameters that are equal for all weights.
        by_column: The other parameters, as [groups, columns, terms] or [groups, columns, 1].
    """

    operator: str
    common: Mapping[str, Any]
    by_column: Mapping[str, Array] = field(default_factory=dict)

    def slice_terms(self, part: slice) -> "ColumnRounding":
        """Return the rounding of some terms."""
        by_column = {
            name: array if array.shape[2] == 1 else array[..., part]
            for name, array in self.by_column.items()
        }
        return replace(self, by_column=by_column)


def round_columns(weights: Array, factors: HessianFactors, rounding: ColumnRounding) -> Array:
    """Round weights to a grid so that the sums of products have a small error.

    Args:
        weights: The weights as [groups, columns, terms].
        factors: The Hessian factors of the input rows.
        rounding: The rounding of these weights.

    Returns:
        The rounded weights, in float32.
    """
    turned = factors.order.T[..., None]

    def order_terms(array: Array) -> Array:
        moved = np.moveaxis(array, 2, 0)
        return moved if len(moved) == 1 else np.take_along_axis(moved, turned, axis=0)

    w = np.ascontiguousarray(order_terms(weights), np.float64)
    q = np.empty(w.shape, np.float32)
    by_column = {name: order_terms(array) for name, array in rounding.by_column.items()}
    round_terms(rounding.operator, w, factors.triangle, q, {**rounding.common, **by_column})
    result = np.empty_like(q)
    np.put_along_axis(result, turned, q, axis=0)
    return np.moveaxis(result, 0, 2)


def is_wide(spec: QuantSpec, config: GptqConfig) -> bool:
    """Return whether weights are too wide for GPTQ, so that rounding to nearest suffices."""
    return spec.bits > config.max_bits


@dataclass(frozen=True)
class GptqLayer:
    """A layer whose first weight GPTQ can round.

    Attributes:
        runner: Runs of the layer.
        product: The layer as a matrix product with its first weight.
        spec: The spec of its weights.
    """

    runner: LayerRunner
    product: MatMulForm
    spec: QuantSpec

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first weight."""
        return self.runner.layer.constants[0][1].shape


def find_gptq_layer(runner: LayerRunner) -> GptqLayer | None:
    """Return a layer for GPTQ; None if it is not a product or its weights have no spec."""
    product = find_matmul_form(runner.layer)
    if product is None or runner.spec is None:
        return None
    return GptqLayer(runner, product, runner.spec)


class GptqRounder:
    """Rounds the weights of layers whose inputs are quantized in the same way.

    Args:
        grid: The grid of the tensor; None if it stays float.
        smoothing: The scaling factors of its channels; None without scaling.
        samples: The samples from which the Hessian is computed.
    """

    def __init__(
        self,
        grid: Grid | DynamicGrid | None,
        smoothing: Array | None,
        samples: Sequence[LayerInputs],
    ) -> None:
        self._grid, self._smoothing, self._samples = grid, smoothing, samples
        self._cache = FactorCache()

    def round(self, runner: LayerRunner) -> tuple[QuantizedWeight, ...]:
        """Return the weights of a layer, rounded by GPTQ; none if the layer is not a product."""
        layer = find_gptq_layer(runner)
        return (
            ()
            if layer is None
            else round_weights(layer, self._smoothing, self._make_factors(layer))
        )

    def round_scaled(self, runner: LayerRunner, by: Array) -> tuple[QuantizedWeight, ...]:
        """Return the rounded weights of a layer whose float input is divided by factors."""
        layer = find_gptq_layer(runner)
        if layer is None:
            return ()
        weight = layer.product.weight
        s = layer.product.to_matrix(scale_weight(np.ones(layer.shape), weight, by))[:, 0]
        factors = self._make_factors(layer)
        return round_weights(layer, by, lambda part: factors(part).divide(s[:, part]))

    def compute_costs(self, runner: LayerRunner) -> Array | None:
        """Return the cost of an error in each element of a first weight.

        Return None if GPTQ does not apply to the layer.
        """
        layer = find_gptq_layer(runner)
        return None if layer is None else _compute_element_costs(layer, self._make_factors(layer))

    def _make_factors(self, layer: GptqLayer) -> Callable[[slice], HessianFactors]:
        rows_key = layer.product.get_rows_key(layer.shape)
        compute_moments = make_moments(layer, self._grid, self._smoothing, self._samples)

        def get_factors(part: slice) -> HessianFactors:
            return self._cache.get(
                (layer.runner.input_name, rows_key, part.start),
                lambda: factorize(compute_moments(part), layer.runner.config.gptq),
            )

        return get_factors


def make_moments(
    layer: GptqLayer,
    grid: Grid | DynamicGrid | None,
    smoothing: Array | None,
    samples: Sequence[LayerInputs],
) -> Callable[[slice], Moments]:
    """Return a function that computes X^T X of the input of a layer, for a slice of terms."""
    runner, product, shape = layer.runner, layer.product, layer.shape

    def compute_moments(part: slice) -> Moments:
        terms = part.stop - part.start
        config = runner.config.gptq
        most = -(-max(config.least_rows, config.rows_per_term * terms) // len(samples))
        result = Moments(np.zeros((product.groups, terms, terms)))
        round_input = runner.make_input_rounding(grid, smoothing)
        inputs = map(runner.get_input, samples)
        if isinstance(grid, DynamicGrid):  # the rounding of an element depends on its block
            batches = (
                rows for x in inputs for rows in product.iterate_rows(round_input(x), shape, most)
            )
        else:
            batches = (
                rows for x in inputs for rows in product.iterate_rows(x, shape, most, round_input)
            )
        result.add(rows[..., part] for rows in batches)
        return result

    return compute_moments


def round_weights(
    layer: GptqLayer, smoothing: Array | None, compute_factors: Callable[[slice], HessianFactors]
) -> tuple[QuantizedWeight, ...]:
    """Round the weights of a layer by GPTQ, with Hessian factors per slice of terms."""
    runner, product = layer.runner, layer.product
    array = runner.scale_weights(smoothing)[0]
    matrix = product.to_matrix(array)
    cache = FactorCache()

    def factors(part: slice) -> HessianFactors:
        return cache.get(part.start, lambda: compute_factors(part))

    compute_costs = partial(_compute_element_costs, layer, factors)
    best = round_to_nearest(array, product.weight, layer.spec, runner.config.weights, compute_costs)
    rounding = make_column_rounding(product, best)
    # Backwards: the factors of the last part are still cached.
    result = [
        round_columns(matrix[..., part], factors(part), rounding.slice_terms(part))
        for part in reversed(split_terms(matrix.shape[2], runner.config.gptq))
    ]
    stored = product.from_matrix(np.concatenate(result[::-1], axis=2), array.shape)
    return (
        QuantizedWeight(stored, best.grid, best.blocks),
        *runner.round_to_nearest(smoothing)[1:],
    )


def split_terms(terms: int, config: GptqConfig) -> list[slice]:
    """Split the terms of long sums into slices that are rounded independently."""
    count = -(-terms // config.max_terms)
    return [slice(*ends) for ends in pairwise(terms * at // count for at in range(count + 1))]


def _compute_element_costs(layer: GptqLayer, factors: Callable[[slice], HessianFactors]) -> Array:
    """Return the cost of an error in each element of a weight."""
    product, shape = layer.product, layer.shape
    matrix = product.to_matrix(np.broadcast_to(np.zeros(()), shape))
    parts = split_terms(matrix.shape[2], layer.runner.config.gptq)
    costs = np.concatenate([_compute_term_costs(factors(part)) for part in parts], axis=2)
    return product.from_matrix(np.broadcast_to(costs, matrix.shape), shape)


def _compute_term_costs(factors: HessianFactors) -> Array:
    """Return d^2 in the original order of terms, as [groups, 1, terms]: the cost of an error."""
    result = np.empty_like(factors.diagonal)
    np.put_along_axis(result, factors.order, factors.diagonal, axis=1)
    return result[:, None]


def make_column_rounding(product: MatMulForm, rounded: QuantizedWeight) -> ColumnRounding:
    """Return the rounding of the columns of a weight's matrix to its grid."""
    selected = select_operator(rounded.grid)
    common: dict[str, Any] = dict(selected.call.attributes)
    by_column = {}
    for name, parameter in selected.call.parameters.items():
        if parameter.size == 1:
            common[name] = parameter
            continue
        matrix = product.to_matrix(np.broadcast_to(parameter, rounded.array.shape))
        is_same = (matrix == matrix[..., :1]).all()
        by_column[name] = matrix[..., :1] if is_same else matrix
    return ColumnRounding(selected.operator.name, common, by_column)
