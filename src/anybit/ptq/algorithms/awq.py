# SPDX-License-Identifier: Apache-2.0
"""Activation-aware weight scaling (AWQ): per-channel factors s for (x / s) @ (s * W).

Where x is float, s costs nothing, and moves weights relative to their grid. Lin et al. (2023,
https://arxiv.org/abs/2306.00978) take s = r^a, where r is the magnitude of x per channel and a is
one exponent for all channels. The search starts with these factors, with r_k^2 the mean of c_kj
over the weights j of channel k; c_kj is d^2 of GPTQ, the cost of an error in W_kj. Then it selects
the s of each channel that costs least on the current grids, and fits the grids again:

    s_k <- argmin over s of sum_j c_kj (round(s W_kj) / s - W_kj)^2

The blocks of MX have scales that are powers of two, and s gives back what lies between these. Where
scales are floats there is little to gain.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ptq.algorithms.gptq import GptqRounder
from anybit.ptq.algorithms.layer_runner import ChannelWeight, LayerRunner, scale_weight
from anybit.ptq.algorithms.round_to_nearest import round_to_nearest
from anybit.ptq.config import AwqConfig, QuantizeConfig
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.spec import QuantSpec


def select_awq_factors(
    runners: Sequence[LayerRunner], rounder: GptqRounder, config: QuantizeConfig
) -> Array | None:
    """Return the factors of a tensor's channels, in float32; None if none help.

    None is below 1, so that no x / s is infinite. A common power of two is nothing to the scales.

    Args:
        runners: The layers that read a tensor.
        rounder: The rounder that computes the costs of errors in weights.
        config: The thresholds.
    """
    thresholds = config.awq
    weights = [weight for runner in runners if (weight := _find_block_weight(runner, thresholds))]
    if len(weights) < len(runners):
        return None
    costs = [cost for cost in map(rounder.compute_costs, runners) if cost is not None]
    if len(costs) < len(runners):
        return None
    if not all(np.isfinite(cost).all() and cost.any() for cost in costs):
        return None
    search = _FactorSearch(weights, costs, thresholds)
    starts = [(search.compute_error(start), start) for start in search.generate_starts()]
    least, factors = min(starts, key=lambda start: start[0])
    for _ in range(thresholds.rounds):
        others = search.improve(factors)
        error = search.compute_error(others)
        if not error < least:
            break
        least, factors = error, others
    if not math.isfinite(least) or (factors == factors[0]).all():
        return None
    factors = factors * np.exp2(np.ceil(-np.log2(factors.min())))
    return factors if math.isfinite(search.compute_error(factors)) else None


@dataclass(frozen=True)
class _BlockWeight:
    """A weight of few bits in blocks with power-of-two scales.

    Attributes:
        runner: Runs of its layer, which has no other weight.
        weight: The weight.
        spec: The spec of the weight.
    """

    runner: LayerRunner
    weight: ChannelWeight
    spec: QuantSpec


def _find_block_weight(runner: LayerRunner, config: AwqConfig) -> _BlockWeight | None:
    """Return the weight of a layer that can gain from factors; None without any."""
    weight, spec = runner.weight, runner.spec
    if weight is None or spec is None or not isinstance(spec.format, BlockFormat):
        return None
    if spec.bits >= config.fine_bits or spec.format.second_scale:
        return None
    return _BlockWeight(runner, weight, spec)


class _FactorSearch:
    """Search of factors, by the cost of the rounding errors of weights.

    Args:
        weights: The weights that are scaled.
        costs: The cost of an error in each of their elements.
        config: The thresholds.
    """

    def __init__(
        self, weights: Sequence[_BlockWeight], costs: Sequence[Array], config: AwqConfig
    ) -> None:
        self._weights = list(zip(weights, costs, strict=True))
        self._config, octave = config, config.steps_per_octave
        self._steps = np.exp2(np.arange(-octave, octave + 1) / octave).astype(np.float32)

    def generate_starts(self) -> Iterator[Array]:
        """Yield factors that follow from the cost of errors in each channel."""
        total = sum(
            weight.weight.to_channel_rows(costs).mean(axis=1) for weight, costs in self._weights
        )
        power = np.maximum(total, np.max(total) * self._config.faintest**2)
        logarithms = np.log2(power) / 2
        for strength in self._config.strengths:
            yield np.exp2(strength * (logarithms - logarithms.mean())).astype(np.float32)

    def compute_error(self, factors: Array) -> float:
        """Return the cost of the errors of all weights."""
        return float(self._compute_errors(factors, np.ones(1, np.float32)).sum())

    def improve(self, factors: Array) -> Array:
        """Return factors with less error on the grids of the current ones."""
        errors, as_is = self._compute_errors(factors, self._steps), len(self._steps) // 2
        gains = errors.min(axis=0) < errors[as_is] * (1 - self._config.least_gain)
        return np.asarray(factors * self._steps[np.where(gains, errors.argmin(axis=0), as_is)])

    def _compute_errors(self, factors: Array, steps: Array) -> Array:
        """Return the cost per channel of the errors of weights, for factors times each step.

        The grids are those of the factors. The cost is infinite where float32 overflows.
        """
        totals = np.zeros((len(steps), len(factors)))
        with np.errstate(all="ignore"):
            squares = np.square(factors, dtype=np.float64)
            for weight, costs in self._weights:
                runner, source = weight.runner, weight.weight.weight
                (array,) = runner.scale_weights(factors)
                costs = scale_weight(costs, source, 1 / squares)
                grid = round_to_nearest(
                    array, source, weight.spec, runner.config.weights, partial(np.asarray, costs)
                ).grid
                for at, step in enumerate(steps):
                    noise = quantize_to_grid(array * step, grid) / step - array
                    square = np.square(noise, dtype=np.float64) * costs
                    totals[at] += weight.weight.to_channel_rows(square).sum(axis=1)
        return np.where(np.isfinite(totals), totals, np.inf)
