# SPDX-License-Identifier: Apache-2.0
"""Which range and which smoothing a tensor gets: those with the least error of what reads it.

The error of a tensor itself misleads: a range that is good for most of its values can be the one
that ruins a sum. So every candidate is tried in the layers that read the tensor, with quantized
weights, on samples of the data, and compared with what the layers give in floats.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Grid
from anybit.quantization.bias import correction
from anybit.quantization.choices import LayerParams
from anybit.quantization.common import SharedWeights
from anybit.quantization.config import QuantizeConfig
from anybit.quantization.dynamic import DynamicGrid, dynamic_grid
from anybit.quantization.factors import Moments
from anybit.quantization.gptq import Refiner, is_fine, moments_of
from anybit.quantization.pieces import LayerRunner, Sample, over
from anybit.quantization.placement import Layer, Source
from anybit.quantization.ranges import RangeCandidate, cut_off, least, may_cut, whole, within
from anybit.quantization.rescaling import rescaling
from anybit.quantization.schemes import Scheme
from anybit.quantization.smoothing import smoothed_range, smoothings
from anybit.quantization.statistics import Statistics
from anybit.quantization.weights import QuantizedWeight
from anybit.words.block_formats import BlockFormat


class LayerSearch:
    """The layers that read a tensor, ready to be run with candidates.

    Args:
        model: The float model.
        source: The tensor.
        weights: The schemes of the weights of layers; those of others stay as they are.
        common: What is known of constants that several layers read: here they are rounded to
            nearest.
        config: The thresholds.
    """

    def __init__(
        self,
        model: ir.Model,
        source: Source,
        weights: Mapping[Layer, Scheme],
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
        self._told: dict[int, tuple[Grid | DynamicGrid, bool, float]] = {}
        self._known: dict[Hashable, dict[int, tuple[float, float]]] = {}

    @property
    def candidates(self) -> tuple[RangeCandidate, ...]:
        """What was tried: the first one, which is the whole range, and the best of the others."""
        told = list(self._told.values())
        best = sorted(told[1:], key=lambda each: each[2])[: self._config.ranges.reported]
        return tuple(
            RangeCandidate(self._name, *grid.ends, smoothed, error)
            for grid, smoothed, error in (*told[:1], *best)
        )

    def choice(
        self,
        scheme: Scheme | None,
        statistics: Statistics,
        first: Sequence[Sample],
        second: Sequence[Sample],
        many: Sequence[Sample],
    ) -> LayerParams:
        """The best of the candidates on some samples, if it is better on others, too.

        Weights are rounded by what many samples say. With no scheme the tensor stays as it is, and
        only they are chosen. With no samples it is the first candidate, and nothing is tried.
        """
        widest = self._widest(scheme, statistics)
        if not second:
            common = (piece for piece in self._pieces if piece.layer in self._common.rounded)
            return replace(widest, weights={piece.layer: piece.nearest(None) for piece in common})
        # A branch may have run for none of those to choose by.
        first, many = first or second, many or second
        if scheme is None:
            return self._in_floats(widest, statistics, first, second, many)
        if isinstance(scheme.kind, BlockFormat) or scheme.bits >= self._config.ranges.wide_bits:
            return self._finished([self._plain(widest, second)], first, second, many)
        decided: list[LayerParams] = []

        def on_others(each: LayerParams) -> LayerParams:
            decided.append(self._plain(each, second))
            return decided[-1]

        chosen = least(
            [widest, *self._promising(widest, scheme, statistics, first)],
            lambda each: self._tried(each, first),
            on_others,
            self._config.ranges.kept_ratio,
        )
        # The whole range is the first that is tried on others.
        fallbacks = [chosen] if chosen is decided[0] else [chosen, decided[0]]
        return self._finished(fallbacks, first, second, many)

    def _in_floats(
        self,
        widest: LayerParams,
        statistics: Statistics,
        first: Sequence[Sample],
        second: Sequence[Sample],
        many: Sequence[Sample],
    ) -> LayerParams:
        """What stays as it is, or with channels divided so that its weights are rounded better."""
        plain = self._plain(widest, second)
        refiner = Refiner(None, None, many)
        found = self._refined([plain], refiner.refined, first, second)
        known = self._smooth and statistics.channels is not None
        factors = rescaling(self._pieces, refiner, self._config.awq) if known and many else None
        if factors is None:
            return found
        fallbacks = [self._plain(replace(widest, smoothing=factors), second), plain]
        rescaled = partial(refiner.rescaled, by=factors)
        other = self._refined(fallbacks, rescaled, first, second)
        return other if other.error < found.error * self._config.ranges.kept_ratio else found

    def _promising(
        self, widest: LayerParams, scheme: Scheme, statistics: Statistics, samples: Sequence[Sample]
    ) -> list[LayerParams]:
        """Other candidates than the first one, with little error on some of the samples.

        Successive halving (Jamieson and Talwalkar, 2016, https://arxiv.org/abs/1502.07943): what is
        bad everywhere need not be tried everywhere. The ranges of few smoothings are cut off.
        """
        ranges, halving = self._config.ranges, self._config.ranges.halving
        few, more = (_some(samples, share) for share in (halving**2, halving))
        self._tried(widest, few)
        smoothed = [
            LayerParams(self._smoothed_grid(scheme, statistics, each), each)
            for each in self._smoothings(statistics)
        ]
        cuts = may_cut(scheme.bits, statistics.per_channel)
        others = [LayerParams(_grid(scheme, *each)) for each in cut_off(statistics, ranges) if cuts]
        fractions = ranges.scaled_fractions if cuts else ()
        for each in self._best(smoothed, few, halving):
            assert each.smoothing is not None, "just given"
            low, high = smoothed_range(scheme.bits, statistics, each.smoothing, self._config)
            parts = (within(fraction, low, high) for fraction in fractions)
            others += [each, *(LayerParams(_grid(scheme, *part), each.smoothing) for part in parts)]
        return self._best(self._best(others, few, halving), more, 2)

    def _smoothed_grid(self, scheme: Scheme, statistics: Statistics, smoothing: Array) -> Grid:
        ends = smoothed_range(scheme.bits, statistics, smoothing, self._config)
        return _grid(scheme, *ends)

    def _best(
        self, candidates: Sequence[LayerParams], samples: Sequence[Sample], share: int
    ) -> list[LayerParams]:
        """One of so many candidates, those with the least error."""
        errors = [self._tried(each, samples).error for each in candidates]
        most = sorted(errors)[: math.ceil(len(errors) / share)]
        return [each for each, error in zip(candidates, errors, strict=True) if error <= max(most)]

    def _widest(self, scheme: Scheme | None, statistics: Statistics) -> LayerParams:
        if scheme is None:
            return LayerParams(None)
        if isinstance(scheme.kind, BlockFormat):
            return LayerParams(dynamic_grid(self._source, scheme.kind))
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
        """The first of them with the weights and biases that belong to it."""
        refiner = Refiner(fallbacks[0].grid, fallbacks[0].smoothing, many)
        return self._refined(fallbacks, refiner.refined, first, second)

    def _refined(
        self,
        fallbacks: Sequence[LayerParams],
        refined: Callable[[LayerRunner], Sequence[QuantizedWeight]],
        first: Sequence[Sample],
        second: Sequence[Sample],
    ) -> LayerParams:
        """The first of them with weights rounded in that way, and biases that belong to it."""
        choice = replace(fallbacks[0], fallbacks=tuple(fallbacks))
        weights, errors = dict(choice.weights), dict(choice.errors)
        for piece in self._pieces:
            if not piece.scheme:
                continue
            if is_fine(piece.scheme) or piece.layer in self._common.rounded:
                continue
            found = refined(piece)
            error = piece.error(choice.grid, choice.smoothing, second, found)
            if error < errors[piece.layer]:
                weights[piece.layer], errors[piece.layer] = found, error
        return self._corrected(replace(choice, weights=weights, errors=errors), first, second)

    def moments(self, choice: LayerParams, many: Sequence[Sample]) -> dict[Layer, list[Moments]]:
        """Those of what each layer reads whose weights are common, part by part."""
        found: dict[Layer, list[Moments]] = {}
        for piece in self._pieces if many else ():
            if shared := self._common.rounded.get(piece.layer):
                of = moments_of(piece, choice.grid, choice.smoothing, many)
                found[piece.layer] = [of(part) for part in shared.parts]
        return found

    def revised(
        self,
        choice: LayerParams,
        weights: Mapping[Layer, Sequence[QuantizedWeight]],
        first: Sequence[Sample],
        second: Sequence[Sample],
    ) -> LayerParams:
        """A choice with other weights, and with the errors and biases that belong to them."""
        errors = dict(choice.errors)
        for piece in self._pieces:
            if piece.layer in weights:
                given = weights[piece.layer]
                errors[piece.layer] = piece.error(choice.grid, choice.smoothing, second, given)
        weights = {**choice.weights, **weights}
        return self._corrected(replace(choice, weights=weights, errors=errors), first, second)

    def _corrected(
        self, choice: LayerParams, first: Sequence[Sample], second: Sequence[Sample]
    ) -> LayerParams:
        """The choice with biases that make up for the mean of what it adds."""
        errors, corrections = dict(choice.errors), {}
        for piece in self._pieces:
            weights = choice.weights.get(piece.layer, ())
            found = correction(piece, choice.grid, choice.smoothing, weights, first, second)
            if found is not None:
                corrections[piece.layer], errors[piece.layer] = found
        return replace(choice, errors=errors, corrections=corrections)

    def _smoothings(self, statistics: Statistics) -> Iterator[Array]:
        if self._smooth and all(piece.weight is not None for piece in self._pieces):
            weights = np.max([piece.reach for piece in self._pieces], axis=0)
            yield from smoothings(statistics, weights, self._config.scaling)

    def _plain(self, candidate: LayerParams, samples: Sequence[Sample]) -> LayerParams:
        """A candidate that was tried, with weights rounded to nearest."""
        found = self._tried(candidate, samples)
        pieces = [piece for piece in self._pieces if piece.scheme]
        return replace(
            found, weights={each.layer: each.nearest(candidate.smoothing) for each in pieces}
        )

    def _tried(self, candidate: LayerParams, samples: Sequence[Sample]) -> LayerParams:
        errors = {
            piece.layer: over(self._powers(piece, candidate, samples)) for piece in self._pieces
        }
        found = replace(candidate, errors=errors)
        # Those that are tried again on other samples have been told.
        if candidate.grid is not None and id(candidate.grid) not in self._told:
            told = candidate.grid, candidate.smoothing is not None, found.error
            self._told[id(candidate.grid)] = told  # which keeps its number
        return found

    def _powers(
        self, piece: LayerRunner, candidate: LayerParams, samples: Sequence[Sample]
    ) -> Iterator[tuple[float, float]]:
        """Those of noise and signal for each sample. What was tried on some of them is known, and
        so is what has the same numbers: rounded to powers of two, smoothings often have."""
        known = self._known.setdefault((piece.layer, *candidate.numbers), {})
        new = [each for each in samples if id(each) not in known]
        if new:
            found = piece.powers(candidate.grid, candidate.smoothing, new)
            known.update(zip(map(id, new), found, strict=True))
        return (known[id(each)] for each in samples)


def _some(samples: Sequence[Sample], share: int) -> Sequence[Sample]:
    """One of so many samples, and the last one, which has the largest magnitudes."""
    return [*samples[:-1][: max(len(samples) // share, 1)], samples[-1]]


def _grid(scheme: Scheme, low: float, high: float) -> Grid:
    return scheme.grid(np.asarray(low, np.float64), np.asarray(high, np.float64))
