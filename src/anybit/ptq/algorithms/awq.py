# SPDX-License-Identifier: Apache-2.0
"""By what channels of weights are multiplied, and what layers read is divided: (x / s) and s * W.

Where x stays in floats, s costs it nothing, and decides which values of its grid a weight falls
next to. Lin et al. (2023, https://arxiv.org/abs/2306.00978) take s = r^a, with r how large x is in
a channel and one a for all, so that what is multiplied with much is rounded finer. Here the search
begins with that, r^2 being what an error in the channel costs GPTQ. Then each channel gets the s
with which the errors of its own weights cost least on the grids that they have, and grids are found
anew for what became of them:

    s_k <- argmin over s of sum_j c_kj (round(s W_kj) / s - W_kj)^2

The blocks of MX have scales that are powers of two, and s gives back what lies between these. Where
scales are floats there is little to gain.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ptq.algorithms.gptq import GptqRounder
from anybit.ptq.algorithms.layer_runner import LayerRunner, scale_weight
from anybit.ptq.algorithms.round_to_nearest import round_to_nearest
from anybit.ptq.config import AwqConfig
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.quant_types.block_formats import BlockFormat


def select_awq_factors(
    runners: Sequence[LayerRunner], rounder: GptqRounder, config: AwqConfig
) -> Array | None:
    """Return the factors of a tensor's channels, in float32; None if none help.

    None is below 1, so that no x / s is infinite. A common power of two is nothing to the scales.

    Args:
        runners: The layers that read a tensor.
        rounder: What knows what errors of weights cost, by some samples.
        config: The thresholds.
    """
    if not all(_can_gain(runner, config) for runner in runners):
        return None
    costs = [each for each in map(rounder.compute_costs, runners) if each is not None]
    if len(costs) < len(runners):
        return None
    if not all(np.isfinite(each).all() and each.any() for each in costs):
        return None
    search = _FactorSearch(runners, costs, config)
    starts = [(search.error(each), each) for each in search.starts()]
    least, factors = min(starts, key=lambda each: each[0])
    for _ in range(config.rounds):
        others = search.better(factors)
        error = search.error(others)
        if not error < least:
            break
        least, factors = error, others
    if not math.isfinite(least) or (factors == factors[0]).all():
        return None
    factors = factors * np.exp2(np.ceil(-np.log2(factors.min())))
    return factors if math.isfinite(search.error(factors)) else None


def _can_gain(runner: LayerRunner, config: AwqConfig) -> bool:
    """Whether a layer has a weight of few bits in blocks whose scales are powers of two."""
    spec = runner.spec if runner.weight is not None else None
    if spec is None or not isinstance(spec.format, BlockFormat):
        return False
    return spec.bits < config.fine_bits and not spec.format.second_scale


class _FactorSearch:
    """What factors do to weights.

    Args:
        runners: The layers.
        costs: What an error in each element of their weights costs.
        config: The thresholds.
    """

    def __init__(
        self, runners: Sequence[LayerRunner], costs: Sequence[Array], config: AwqConfig
    ) -> None:
        self._runners = list(zip(runners, costs, strict=True))
        self._config, octave = config, config.steps_per_octave
        self._steps = np.exp2(np.arange(-octave, octave + 1) / octave).astype(np.float32)

    def starts(self) -> Iterator[Array]:
        """Factors that follow from what errors cost in a channel."""
        of_all = sum(runner.to_channel_rows(costs).mean(axis=1) for runner, costs in self._runners)
        power = np.maximum(of_all, np.max(of_all) * self._config.faintest**2)
        logarithms = np.log2(power) / 2
        for strength in self._config.strengths:
            yield np.exp2(strength * (logarithms - logarithms.mean())).astype(np.float32)

    def error(self, factors: Array) -> float:
        """What the errors of all weights cost."""
        return float(self._errors(factors, np.ones(1, np.float32)).sum())

    def better(self, factors: Array) -> Array:
        """Factors with less error on the grids of those."""
        errors, as_is = self._errors(factors, self._steps), len(self._steps) // 2
        gains = errors.min(axis=0) < errors[as_is] * (1 - self._config.least_gain)
        return np.asarray(factors * self._steps[np.where(gains, errors.argmin(axis=0), as_is)])

    def _errors(self, factors: Array, steps: Array) -> Array:
        """What the errors of each channel of weights cost, for factors times each of the steps, on
        the grids of the factors; infinite where float32 ends."""
        found = np.zeros((len(steps), len(factors)))
        with np.errstate(all="ignore"):
            squares = np.square(factors, dtype=np.float64)
            for runner, costs in self._runners:
                assert runner.weight is not None, "asked before"
                assert runner.spec is not None, "it has a weight"
                (array,) = runner.scale_weights(factors)
                costs = scale_weight(costs, runner.weight, 1 / squares)
                grid = round_to_nearest(
                    array, runner.weight, runner.spec, runner.config.weights, costs
                ).grid
                for at, step in enumerate(steps):
                    noise = quantize_to_grid(array * step, grid) / step - array
                    square = np.square(noise, dtype=np.float64) * costs
                    found[at] += runner.to_channel_rows(square).sum(axis=1)
        return np.where(np.isfinite(found), found, np.inf)
