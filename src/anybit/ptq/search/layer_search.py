# SPDX-License-Identifier: Apache-2.0
"""Search of the range and the scaling of one activation, by the error of the layers that read it.

The error of the activation itself misleads: a range that is good for most of its values can be the
one that ruins a sum. So every candidate is tried in the layers, with quantized weights, on samples
of the data, and compared with the outputs of the float layers.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Grid
from anybit.ptq.algorithms.awq import rescaling
from anybit.ptq.algorithms.bias_correction import correction
from anybit.ptq.algorithms.gptq import Refiner, is_fine, moments_of
from anybit.ptq.algorithms.hessian import Moments
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.layer_runner import LayerRunner, Sample, over
from anybit.ptq.algorithms.range_clipping import (
    RangeCandidate,
    cut_off,
    least,
    may_cut,
    whole,
    within,
)
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.algorithms.shared_weights import SharedWeights
from anybit.ptq.algorithms.smoothquant import smoothed_range, smoothings
from anybit.ptq.calibration.statistics import Statistics
from anybit.ptq.config import QuantizeConfig
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.specs.dynamic_grid import DynamicGrid, make_dynamic_grid
from anybit.ptq.specs.spec_grid import make_grid
from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.spec import QuantSpec


class LayerSearch:
    """The layers that read an activation, ready to be run with candidates.

    Args:
        model: The float model.
        source: The activation.
        weights: The specs of the weights of layers; weights of other layers stay float.
        common: Weights that several layers share: here they are rounded to nearest.
        config: The thresholds.
    """

    def __init__(
        self,
        model: ir.Model,
        source: ActivationTensor,
        weights: Mapping[TargetNode, QuantSpec],
        common: SharedWeights,
        config: QuantizeConfig,
    ) -> None:
        self._config = config
        self._pieces = [
            LayerRunner(model, layer, index, weights.get(layer), config)
            for layer, index in source.readers
        ]
        self._source, self._name = source, str(source.value.name)
        self._common = common
        self._smooth = not any(layer in common.apart for layer, _ in source.readers)
        self._tried_grids: dict[int, tuple[Grid | DynamicGrid, bool, float]] = {}
        self._powers_of: dict[Hashable, dict[int, tuple[float, float]]] = {}

    @property
    def candidates(self) -> tuple[RangeCandidate, ...]:
        """Return the whole range, and the best of the other candidates."""
        tried = list(self._tried_grids.values())
        best = sorted(tried[1:], key=lambda candidate: candidate[2])
        return tuple(
            RangeCandidate(self._name, *grid.ends, smoothed, error)
            for grid, smoothed, error in (*tried[:1], *best[: self._config.ranges.reported])
        )

    def choice(
        self,
        scheme: QuantSpec | None,
        statistics: Statistics,
        first: Sequence[Sample],
        second: Sequence[Sample],
        many: Sequence[Sample],
    ) -> LayerParams:
        """Return the best candidate, if samples that it was not selected on confirm it.

        Args:
            scheme: The spec of the activation; None leaves it float, and only weights are rounded.
            statistics: The activation's.
            first: Samples that candidates are compared on.
            second: Samples that confirm the best; without them the whole range is taken.
            many: Samples for weight rounding.
        """
        widest = self._widest(scheme, statistics)
        if not second:
            shared = (piece for piece in self._pieces if piece.layer in self._common.rounded)
            return replace(widest, weights={piece.layer: piece.nearest(None) for piece in shared})
        # A branch need not have run for any of the first samples.
        first, many = first or second, many or second
        if scheme is None:
            return self._in_floats(widest, statistics, first, second, many)
        if isinstance(scheme.format, BlockFormat) or scheme.bits >= self._config.ranges.wide_bits:
            return self._finished([self._with_nearest_weights(widest, second)], first, second, many)
        confirmed: list[LayerParams] = []

        def confirm(candidate: LayerParams) -> LayerParams:
            confirmed.append(self._with_nearest_weights(candidate, second))
            return confirmed[-1]

        best = least(
            [widest, *self._promising(widest, scheme, statistics, first)],
            lambda candidate: self._tried(candidate, first),
            confirm,
            self._config.ranges.kept_ratio,
        )
        # The whole range is the first candidate that is confirmed.
        fallbacks = [best] if best is confirmed[0] else [best, confirmed[0]]
        return self._finished(fallbacks, first, second, many)

    def _in_floats(
        self,
        widest: LayerParams,
        statistics: Statistics,
        first: Sequence[Sample],
        second: Sequence[Sample],
        many: Sequence[Sample],
    ) -> LayerParams:
        """Return the parameters of a float activation, with AWQ scaling if that helps."""
        nearest = self._with_nearest_weights(widest, second)
        refiner = Refiner(None, None, many)
        unscaled = self._refined([nearest], refiner.refined, first, second)
        scalable = self._smooth and statistics.channels is not None
        factors = rescaling(self._pieces, refiner, self._config.awq) if scalable and many else None
        if factors is None:
            return unscaled
        scaled_nearest = self._with_nearest_weights(replace(widest, smoothing=factors), second)
        rescaled = partial(refiner.rescaled, by=factors)
        scaled = self._refined([scaled_nearest, nearest], rescaled, first, second)
        return (
            scaled if scaled.error < unscaled.error * self._config.ranges.kept_ratio else unscaled
        )

    def _promising(
        self,
        widest: LayerParams,
        scheme: QuantSpec,
        statistics: Statistics,
        samples: Sequence[Sample],
    ) -> list[LayerParams]:
        """Return the other candidates that have little error on some of the samples.

        Successive halving (Jamieson and Talwalkar, 2016, https://arxiv.org/abs/1502.07943): a
        candidate that is bad on few samples is not tried on all. Only the ranges of the best
        scalings are clipped.
        """
        ranges, halving = self._config.ranges, self._config.ranges.halving
        few, more = (_some(samples, share) for share in (halving**2, halving))
        self._tried(widest, few)
        scaled = [
            LayerParams(self._smoothed_grid(scheme, statistics, factors), factors)
            for factors in self._smoothings(statistics)
        ]
        cuts = may_cut(scheme.bits, statistics.per_channel)
        clipped = cut_off(statistics, ranges) if cuts else ()
        candidates = [LayerParams(_grid(scheme, *ends)) for ends in clipped]
        for candidate in self._best(scaled, few, halving):
            factors = candidate.smoothing
            assert factors is not None, "it was just set"
            low, high = smoothed_range(scheme.bits, statistics, factors, self._config)
            candidates.append(candidate)
            for fraction in ranges.scaled_fractions if cuts else ():
                grid = _grid(scheme, *within(fraction, low, high))
                candidates.append(LayerParams(grid, factors))
        return self._best(self._best(candidates, few, halving), more, 2)

    def _smoothed_grid(self, scheme: QuantSpec, statistics: Statistics, smoothing: Array) -> Grid:
        ends = smoothed_range(scheme.bits, statistics, smoothing, self._config)
        return _grid(scheme, *ends)

    def _best(
        self, candidates: Sequence[LayerParams], samples: Sequence[Sample], share: int
    ) -> list[LayerParams]:
        """Return the share of the candidates with the least error: one of `share`."""
        errors = [self._tried(candidate, samples).error for candidate in candidates]
        lowest = sorted(errors)[: math.ceil(len(errors) / share)]
        return [
            candidate
            for candidate, error in zip(candidates, errors, strict=True)
            if error <= max(lowest)
        ]

    def _widest(self, scheme: QuantSpec | None, statistics: Statistics) -> LayerParams:
        if scheme is None:
            return LayerParams(None)
        if isinstance(scheme.format, BlockFormat):
            return LayerParams(make_dynamic_grid(self._source, scheme.format))
        if not statistics.count:
            return LayerParams(None)
        return LayerParams(_grid(scheme, *whole(scheme.bits, statistics, self._config.ranges)))

    def _finished(
        self,
        fallbacks: Sequence[LayerParams],
        first: Sequence[Sample],
        second: Sequence[Sample],
        many: Sequence[Sample],
    ) -> LayerParams:
        """Return the first of them with rounded weights and corrected biases."""
        refiner = Refiner(fallbacks[0].grid, fallbacks[0].smoothing, many)
        return self._refined(fallbacks, refiner.refined, first, second)

    def _refined(
        self,
        fallbacks: Sequence[LayerParams],
        refined: Callable[[LayerRunner], Sequence[QuantizedWeight]],
        first: Sequence[Sample],
        second: Sequence[Sample],
    ) -> LayerParams:
        """Return the first of them with weights rounded by a function, and corrected biases."""
        choice = replace(fallbacks[0], fallbacks=tuple(fallbacks))
        weights, errors = dict(choice.weights), dict(choice.errors)
        for piece in self._pieces:
            if not piece.scheme:
                continue
            if is_fine(piece.scheme) or piece.layer in self._common.rounded:
                continue
            rounded = refined(piece)
            error = piece.error(choice.grid, choice.smoothing, second, rounded)
            if error < errors[piece.layer]:
                weights[piece.layer], errors[piece.layer] = rounded, error
        return self._corrected(replace(choice, weights=weights, errors=errors), first, second)

    def moments(
        self, choice: LayerParams, many: Sequence[Sample]
    ) -> dict[TargetNode, list[Moments]]:
        """Return X^T X of the input of each layer with shared weights, one per slice of terms."""
        moments: dict[TargetNode, list[Moments]] = {}
        for piece in self._pieces if many else ():
            if shared := self._common.rounded.get(piece.layer):
                of_terms = moments_of(piece, choice.grid, choice.smoothing, many)
                moments[piece.layer] = [of_terms(part) for part in shared.parts]
        return moments

    def revised(
        self,
        choice: LayerParams,
        weights: Mapping[TargetNode, Sequence[QuantizedWeight]],
        first: Sequence[Sample],
        second: Sequence[Sample],
    ) -> LayerParams:
        """Return the parameters with other weights, and their errors and bias corrections."""
        errors = dict(choice.errors)
        for piece in self._pieces:
            if piece.layer in weights:
                rounded = weights[piece.layer]
                errors[piece.layer] = piece.error(choice.grid, choice.smoothing, second, rounded)
        weights = {**choice.weights, **weights}
        return self._corrected(replace(choice, weights=weights, errors=errors), first, second)

    def _corrected(
        self, choice: LayerParams, first: Sequence[Sample], second: Sequence[Sample]
    ) -> LayerParams:
        """Return the parameters with biases that cancel the mean error."""
        errors, corrections = dict(choice.errors), {}
        for piece in self._pieces:
            weights = choice.weights.get(piece.layer, ())
            corrected = correction(piece, choice.grid, choice.smoothing, weights, first, second)
            if corrected is not None:
                corrections[piece.layer], errors[piece.layer] = corrected
        return replace(choice, errors=errors, corrections=corrections)

    def _smoothings(self, statistics: Statistics) -> Iterator[Array]:
        if self._smooth and all(piece.weight is not None for piece in self._pieces):
            weights = np.max([piece.reach for piece in self._pieces], axis=0)
            yield from smoothings(statistics, weights, self._config.scaling)

    def _with_nearest_weights(
        self, candidate: LayerParams, samples: Sequence[Sample]
    ) -> LayerParams:
        """Return a candidate with its errors, and weights rounded to nearest."""
        tried = self._tried(candidate, samples)
        weights = {
            piece.layer: piece.nearest(candidate.smoothing)
            for piece in self._pieces
            if piece.scheme
        }
        return replace(tried, weights=weights)

    def _tried(self, candidate: LayerParams, samples: Sequence[Sample]) -> LayerParams:
        """Return a candidate with its errors on samples."""
        errors = {
            piece.layer: over(self._powers(piece, candidate, samples)) for piece in self._pieces
        }
        tried, grid = replace(candidate, errors=errors), candidate.grid
        # The first errors of a candidate are the ones that are reported.
        if grid is not None and id(grid) not in self._tried_grids:
            # An entry keeps its grid alive, so that its id stays unique.
            self._tried_grids[id(grid)] = grid, candidate.smoothing is not None, tried.error
        return tried

    def _powers(
        self, piece: LayerRunner, candidate: LayerParams, samples: Sequence[Sample]
    ) -> Iterator[tuple[float, float]]:
        """Return the powers of noise and signal for each sample, computed once each.

        Candidates with the same numbers share them: scalings by powers of two often coincide.
        """
        powers = self._powers_of.setdefault((piece.layer, *candidate.numbers), {})
        new = [sample for sample in samples if id(sample) not in powers]
        if new:
            pairs = piece.powers(candidate.grid, candidate.smoothing, new)
            powers.update(zip(map(id, new), pairs, strict=True))
        return (powers[id(sample)] for sample in samples)


def _some(samples: Sequence[Sample], share: int) -> Sequence[Sample]:
    """Return one of `share` samples, and the last one, which has the largest magnitudes."""
    return [*samples[:-1][: max(len(samples) // share, 1)], samples[-1]]


def _grid(scheme: QuantSpec, low: float, high: float) -> Grid:
    return make_grid(scheme, np.asarray(low, np.float64), np.asarray(high, np.float64))
