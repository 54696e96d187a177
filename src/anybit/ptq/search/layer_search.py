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
from anybit.ptq.algorithms import registry
from anybit.ptq.algorithms.gptq import GptqRounder, find_gptq_layer, is_wide, make_moments
from anybit.ptq.algorithms.hessian import Moments
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.layer_runner import LayerInputs, LayerRunner, compute_noise_ratio
from anybit.ptq.algorithms.range_clipping import (
    RangeCandidate,
    clip_range,
    compute_whole_range,
    may_clip,
    select_candidate,
)
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.algorithms.shared_weights import SharedWeights
from anybit.ptq.algorithms.smoothquant import compute_scaled_range, estimate_channel_ranges
from anybit.ptq.calibration.collect import LayerSamples
from anybit.ptq.calibration.tensor_statistics import TensorStatistics
from anybit.ptq.config import QuantizeConfig
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.specs.dynamic_grid import DynamicGrid, make_dynamic_grid
from anybit.ptq.specs.spec_grid import make_grid
from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.spec import QuantSpec


class LayerSearch:
    """Search of the parameters of an activation, by the output errors of the layers that read it.

    Args:
        model: The float model.
        activation: The activation.
        weights: The specs of the weights of layers; weights of other layers stay float.
        shared: Weights that several layers share: here they are rounded to nearest.
        config: The thresholds of the search.
    """

    def __init__(
        self,
        model: ir.Model,
        activation: ActivationTensor,
        weights: Mapping[TargetNode, QuantSpec],
        shared: SharedWeights,
        config: QuantizeConfig,
    ) -> None:
        self._config = config
        self._runners = [
            LayerRunner(model, layer, index, weights.get(layer), config)
            for layer, index in activation.readers
        ]
        self._activation, self._shared = activation, shared
        self._may_scale = not any(layer in shared.apart for layer, _ in activation.readers)
        self._tried_grids: dict[int, tuple[Grid | DynamicGrid, bool, float]] = {}
        self._powers: dict[Hashable, dict[int, tuple[float, float]]] = {}

    @property
    def candidates(self) -> tuple[RangeCandidate, ...]:
        """Return the whole range, and the best of the other candidates."""
        tried = list(self._tried_grids.values())
        best = sorted(tried[1:], key=lambda candidate: candidate[2])
        name = str(self._activation.value.name)
        return tuple(
            RangeCandidate(name, *grid.ends, smoothed, error)
            for grid, smoothed, error in (*tried[:1], *best[: self._config.ranges.reported])
        )

    def choose(self, spec: QuantSpec | None, samples: LayerSamples) -> LayerParams:
        """Return the best candidate, if samples that it was not selected on confirm it.

        Args:
            spec: The spec of the activation; None leaves it float, and only weights are rounded.
            samples: The statistics and samples of the activation. Without samples, the whole range
                is taken, and weights are rounded to nearest.
        """
        statistics = samples.statistics
        widest = self._make_widest(spec, statistics)
        if not samples.confirm:
            return replace(widest, weights=self._round_shared_weights())
        # In a branch, none of the samples for comparison may have run.
        samples = replace(
            samples,
            compare=samples.compare or samples.confirm,
            rounding=samples.rounding or samples.confirm,
        )
        if spec is None:
            return self._choose_weights(widest, samples)
        if isinstance(spec.format, BlockFormat) or spec.bits >= self._config.ranges.wide_bits:
            return self._round([self._round_to_nearest(widest, samples.confirm)], samples)
        confirmed: list[LayerParams] = []

        def confirm(candidate: LayerParams) -> LayerParams:
            confirmed.append(self._round_to_nearest(candidate, samples.confirm))
            return confirmed[-1]

        best = select_candidate(
            [widest, *self._select_promising(widest, spec, statistics, samples.compare)],
            lambda candidate: self._measure(candidate, samples.compare),
            confirm,
        )
        # The whole range is the first candidate that is confirmed.
        fallbacks = [best] if best is confirmed[0] else [best, confirmed[0]]
        return self._round(fallbacks, samples)

    def compute_moments(
        self, params: LayerParams, samples: Sequence[LayerInputs]
    ) -> dict[TargetNode, list[Moments]]:
        """Return X^T X of the inputs of layers with shared weights, one per slice of terms."""
        moments: dict[TargetNode, list[Moments]] = {}
        for runner in self._runners if samples else ():
            shared, layer = self._shared.rounded.get(runner.layer), find_gptq_layer(runner)
            if shared and layer:
                compute_part = make_moments(layer, params.grid, params.smoothing, samples)
                moments[runner.layer] = [compute_part(part) for part in shared.parts]
        return moments

    def revise(
        self,
        params: LayerParams,
        weights: Mapping[TargetNode, Sequence[QuantizedWeight]],
        samples: LayerSamples,
    ) -> LayerParams:
        """Return the parameters with other weights, and their errors and bias corrections."""
        errors = dict(params.errors)
        for runner in self._runners:
            if runner.layer in weights:
                errors[runner.layer] = runner.measure_error(
                    params.grid, params.smoothing, samples.confirm, weights[runner.layer]
                )
        revised = replace(params, weights={**params.weights, **weights}, errors=errors)
        return self._correct_biases(revised, samples.compare, samples.confirm)

    def _round_shared_weights(self) -> dict[TargetNode, Sequence[QuantizedWeight]]:
        return {
            runner.layer: runner.round_to_nearest(None)
            for runner in self._runners
            if runner.layer in self._shared.rounded
        }

    def _choose_weights(self, widest: LayerParams, samples: LayerSamples) -> LayerParams:
        """Return the parameters of a float activation, with AWQ scaling if that helps."""
        nearest = self._round_to_nearest(widest, samples.confirm)
        rounders = _make_rounders(nearest, samples)
        unscaled = self._refine([nearest], [rounder.round for rounder in rounders], samples)
        if not (self._may_scale and samples.statistics.channels is not None and samples.rounding):
            return unscaled
        # The Hessian of a registered GPTQ is computed already.
        gptq = (rounder for rounder in rounders if isinstance(rounder, GptqRounder))
        rounder = next(gptq, None) or GptqRounder(None, None, samples.rounding)
        best = unscaled
        for select_factors in registry.WEIGHT_SCALINGS:
            factors = select_factors(self._runners, rounder, self._config)
            if factors is None:
                continue
            scaled = self._round_to_nearest(replace(widest, smoothing=factors), samples.confirm)
            rescale = partial(rounder.round_scaled, by=factors)
            scaled = self._refine([scaled, nearest], [rescale], samples)
            best = scaled if scaled.error < best.error else best
        return best

    def _select_promising(
        self,
        widest: LayerParams,
        spec: QuantSpec,
        statistics: TensorStatistics,
        samples: Sequence[LayerInputs],
    ) -> list[LayerParams]:
        """Return the other candidates that have little error on some of the samples.

        Successive halving (Jamieson and Talwalkar, 2016, https://arxiv.org/abs/1502.07943): a
        candidate that is bad on few samples is not tried on all. Only the ranges of the best
        scalings are clipped.
        """
        ranges, halving = self._config.ranges, self._config.ranges.halving
        few, more = (_subsample(samples, share) for share in (halving**2, halving))
        self._measure(widest, few)
        channels = estimate_channel_ranges(statistics, self._config.scaling)
        scaled = [
            self._scale(spec, statistics, channels, factors)
            for factors in self._generate_factors(statistics)
            if channels is not None
        ]
        clips = not spec.dynamic and may_clip(spec.bits, statistics.values_per_channel)
        candidates = [
            LayerParams(_make_scalar_grid(spec, *ends))
            for generate in (registry.RANGE_GENERATORS if clips else ())
            for ends in generate(statistics, ranges)
        ]
        for candidate in self._select_best(scaled, few, halving):
            candidates.append(candidate)
            if clips and channels is not None:
                candidates += self._clip_scaled(candidate, spec, statistics, channels)
        return self._select_best(self._select_best(candidates, few, halving), more, 2)

    def _scale(
        self, spec: QuantSpec, statistics: TensorStatistics, channels: Array, factors: Array
    ) -> LayerParams:
        if spec.dynamic:
            return LayerParams(make_dynamic_grid(self._activation, spec), factors)
        ends = compute_scaled_range(spec.bits, statistics, channels, factors, self._config.ranges)
        return LayerParams(_make_scalar_grid(spec, *ends), factors)

    def _clip_scaled(
        self,
        scaled: LayerParams,
        spec: QuantSpec,
        statistics: TensorStatistics,
        channels: Array,
    ) -> Iterator[LayerParams]:
        """Yield a candidate with scaled channels at several clipped ranges."""
        if scaled.smoothing is None:
            return
        low, high = compute_scaled_range(
            spec.bits, statistics, channels, scaled.smoothing, self._config.ranges
        )
        for fraction in self._config.ranges.scaled_fractions:
            grid = _make_scalar_grid(spec, *clip_range(fraction, low, high))
            yield LayerParams(grid, scaled.smoothing)

    def _select_best(
        self, candidates: Sequence[LayerParams], samples: Sequence[LayerInputs], share: int
    ) -> list[LayerParams]:
        """Return one of `share` candidates, those with the least error."""
        errors = [self._measure(candidate, samples).error for candidate in candidates]
        lowest = sorted(errors)[: math.ceil(len(errors) / share)]
        return [
            candidate
            for candidate, error in zip(candidates, errors, strict=True)
            if error <= max(lowest)
        ]

    def _make_widest(self, spec: QuantSpec | None, statistics: TensorStatistics) -> LayerParams:
        """Return the whole range; float without a spec or values."""
        if spec is None:
            return LayerParams(None)
        if spec.dynamic:
            return LayerParams(make_dynamic_grid(self._activation, spec))
        if not statistics.count:
            return LayerParams(None)
        ends = compute_whole_range(spec.bits, statistics, self._config.ranges)
        return LayerParams(_make_scalar_grid(spec, *ends))

    def _round(self, fallbacks: Sequence[LayerParams], samples: LayerSamples) -> LayerParams:
        """Return the first of some parameters with rounded weights and corrected biases."""
        rounders = _make_rounders(fallbacks[0], samples)
        return self._refine(fallbacks, [rounder.round for rounder in rounders], samples)

    def _refine(
        self,
        fallbacks: Sequence[LayerParams],
        rounders: Sequence[Callable[[LayerRunner], Sequence[QuantizedWeight]]],
        samples: LayerSamples,
    ) -> LayerParams:
        """Return the first of some parameters with weights rounded by functions.

        Rounded weights are kept where they lower the error. Biases are corrected.
        """
        params = replace(fallbacks[0], fallbacks=tuple(fallbacks))
        weights, errors = dict(params.weights), dict(params.errors)
        for runner in self._runners:
            if not runner.spec or is_wide(runner.spec, self._config.gptq):
                continue
            if runner.layer in self._shared.rounded:
                continue
            for round_weights in rounders:
                rounded = round_weights(runner)
                error = runner.measure_error(
                    params.grid, params.smoothing, samples.confirm, rounded
                )
                if error < errors[runner.layer]:
                    weights[runner.layer], errors[runner.layer] = rounded, error
        params = replace(params, weights=weights, errors=errors)
        return self._correct_biases(params, samples.compare, samples.confirm)

    def _correct_biases(
        self, params: LayerParams, compare: Sequence[LayerInputs], confirm: Sequence[LayerInputs]
    ) -> LayerParams:
        """Return the parameters with biases that cancel the mean error."""
        errors, corrections = dict(params.errors), {}
        for runner in self._runners:
            weights = params.weights.get(runner.layer, ())
            arguments = runner, params.grid, params.smoothing, weights, compare, confirm
            results = [correct(*arguments) for correct in registry.BIAS_CORRECTIONS]
            lower = [result for result in results if result is not None]
            if lower:
                best = min(lower, key=lambda result: result[1])
                corrections[runner.layer], errors[runner.layer] = best
        return replace(params, errors=errors, corrections=corrections)

    def _generate_factors(self, statistics: TensorStatistics) -> Iterator[Array]:
        """Yield the SmoothQuant factors of the channels to try."""
        weights = [runner.weight for runner in self._runners if runner.weight is not None]
        if self._may_scale and len(weights) == len(self._runners):
            magnitudes = np.max([weight.magnitudes for weight in weights], axis=0)
            for generate in registry.FACTOR_GENERATORS:
                yield from generate(statistics, magnitudes, self._config.scaling)

    def _round_to_nearest(
        self, candidate: LayerParams, samples: Sequence[LayerInputs]
    ) -> LayerParams:
        """Return a candidate with its errors, and weights rounded to nearest."""
        weights = {
            runner.layer: runner.round_to_nearest(candidate.smoothing)
            for runner in self._runners
            if runner.spec
        }
        return replace(self._measure(candidate, samples), weights=weights)

    def _measure(self, candidate: LayerParams, samples: Sequence[LayerInputs]) -> LayerParams:
        """Return a candidate with its errors on samples."""
        errors = {
            runner.layer: compute_noise_ratio(self._compute_powers(runner, candidate, samples))
            for runner in self._runners
        }
        measured, grid = replace(candidate, errors=errors), candidate.grid
        # The first errors of a candidate are the ones that are reported.
        if grid is not None and id(grid) not in self._tried_grids:
            # An entry keeps its grid alive, so that its id stays unique.
            self._tried_grids[id(grid)] = grid, candidate.smoothing is not None, measured.error
        return measured

    def _compute_powers(
        self, runner: LayerRunner, candidate: LayerParams, samples: Sequence[LayerInputs]
    ) -> Iterator[tuple[float, float]]:
        """Return the powers of noise and signal of each sample, computed once.

        Candidates with the same numbers share them: scalings by powers of two often coincide.
        """
        powers = self._powers.setdefault((runner.layer, *candidate.numbers), {})
        new = [sample for sample in samples if id(sample) not in powers]
        if new:
            pairs = runner.measure_powers(candidate.grid, candidate.smoothing, new)
            powers.update(zip(map(id, new), pairs, strict=True))
        return (powers[id(sample)] for sample in samples)


def _subsample(samples: Sequence[LayerInputs], share: int) -> Sequence[LayerInputs]:
    """Return one of `share` samples, and the last one, which has the largest magnitudes."""
    return [*samples[:-1][: max(len(samples) // share, 1)], samples[-1]]


def _make_rounders(params: LayerParams, samples: LayerSamples) -> list[registry.WeightRounder]:
    """Return the registered algorithms for weight rounding, for the parameters of an activation."""
    return [
        make(params.grid, params.smoothing, samples.rounding) for make in registry.WEIGHT_ROUNDERS
    ]


def _make_scalar_grid(spec: QuantSpec, low: float, high: float) -> Grid:
    return make_grid(spec, np.asarray(low, np.float64), np.asarray(high, np.float64))
