# SPDX-License-Identifier: Apache-2.0
"""Mixes of widths that are run, to correct the prediction of their noise."""

import math
from collections.abc import Callable, Sequence

from anybit.errors import ModelError
from anybit.metrics.sqnr import MIN_NOISE, noise_to_sqnr, sqnr_to_noise
from anybit.ptq.budget import Budget
from anybit.ptq.config import BudgetConfig
from anybit.ptq.context import Progress
from anybit.ptq.mixed_precision.noise_model import changed
from anybit.ptq.mixed_precision.pareto import Assignment, Widths, cheaper, cheapest, front
from anybit.ptq.plan import QuantPlan
from anybit.ptq.search.candidates import CandidateBuilder, MeasuredCandidate


class MixEvaluator:
    """The mixes that were tried: each once.

    Args:
        base: What they differ from in widths.
        attempts: What quantizes the model.
        progress: Called with the share that is done.
    """

    def __init__(self, base: QuantPlan, attempts: CandidateBuilder, progress: Progress) -> None:
        self._base, self._attempts, self._progress = base, attempts, progress
        self._tried: dict[Widths, MeasuredCandidate] = {}
        self._count = 0

    def __call__(self, option: Assignment) -> MeasuredCandidate:
        if option.picks not in self._tried:
            plan = changed(self._base, option.picks)
            self._tried[option.picks] = self._attempts.build(plan, self._advance)
            self._count += 1
        return self._tried[option.picks]

    def _advance(self, share: float) -> None:
        # How many there will be is not known; what is shown never falls.
        done = self._count + share
        self._progress(done / (done + 1))

    def noise(self, option: Assignment) -> float:
        """Noise over signal of the worst output, on held-out samples."""
        verdict = self(option).verdict
        assert verdict.sqnr is not None, "asked before"
        return sqnr_to_noise(verdict.sqnr)

    def quiet(self, option: Assignment, most: float) -> bool:
        """Return whether the noise is at most that, also on the ablation samples.

        Of several mixes, luck may help one on the samples of the verdict.
        """
        ablation = self(option).ablation
        other = 0.0 if ablation is None or ablation.sqnr is None else sqnr_to_noise(ablation.sqnr)
        return max(self.noise(option), other) <= most

    def forget(self, option: Assignment) -> None:
        """Drop the model of a mix, to free its memory."""
        self._tried.pop(option.picks, None)

    def factor(self, option: Assignment) -> float:
        """Return the measured noise over the predicted noise."""
        return max(self.noise(option), MIN_NOISE) / max(option.noise, MIN_NOISE)


def quiet_enough(
    budget: Budget,
    options: Sequence[Sequence[Assignment]],
    try_it: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """Return the cheapest mix that was tried and has no more noise than that.

    Predictions are corrected by the measured noise, until a mix is quiet enough. Then mixes between
    it and the cheapest one that is too noisy are tried, cheapest first: on few samples more bits
    are not always better. Last, parts of it get fewer bits where the budget allows.
    """
    assert budget.noise is not None, "asked before"
    aim, best = config.aim * budget.noise, None
    tried: dict[Widths, float] = {}
    loudest = 0.0
    for number in range(1, config.most_rounds + 1):
        option = cheapest(options, aim) or front(options)[-1]
        tried[option.picks] = noise = try_it.noise(option)
        if noise > budget.noise:
            loudest = max(loudest, option.noise)
        elif best is None or option.cost < best.cost:
            best = option
        near = noise >= budget.noise * config.near
        if best is not None and (loudest or number >= config.rounds or near):
            break
        aim = config.aim * budget.noise / try_it.factor(option)
        if best is None:
            aim = min(aim, config.quieter * option.noise)
    if best is None:
        quietest_of_all = front(options)[-1]
        tried[quietest_of_all.picks] = noise = try_it.noise(quietest_of_all)
        best = quietest_of_all if noise <= budget.noise else None
    if best is None:
        reached = noise_to_sqnr(min(tried.values()))
        raise ModelError(
            f"budget {budget.words}: not reached; the best of {len(tried)} that were tried gives "
            f"{reached:.1f} dB"
        )
    if loudest > best.noise:
        best = _mix_between(budget.noise, options, loudest, best, try_it, config)
    return _trimmed(budget.noise, options, best, try_it, config)


def _mix_between(
    most: float,
    options: Sequence[Sequence[Assignment]],
    loudest: float,
    best: Assignment,
    try_it: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """Return the cheapest quiet mix between one that is too noisy and one that is quiet."""
    ratio = max(best.noise, MIN_NOISE) / loudest
    count = min(config.mixes_between, int(math.log(ratio) / math.log(config.apart)))
    for at in range(1, count + 1):
        option = cheapest(options, loudest * ratio ** (at / (count + 1)))
        if option is None or option.cost >= best.cost:
            break
        if try_it.quiet(option, most):
            try_it.forget(best)
            return option
        try_it.forget(option)
    return best


def _trimmed(
    most: float,
    options: Sequence[Sequence[Assignment]],
    best: Assignment,
    try_it: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """Take bits away from parts of a mix as long as it stays quiet enough.

    Luck may help a part on the held-out samples, so the ablation samples have to agree.
    """
    refused: dict[int, float] = {}
    for _ in range(config.trims):
        steps = cheaper(options, best, config.least_saving * best.cost)
        # What was refused once is not tried with more noise.
        new = (step for step in steps if step.option.noise < refused.get(step.part, math.inf))
        step = next(new, None)
        if step is None:
            break
        if try_it.quiet(step.mix, most):
            try_it.forget(best)
            best = step.mix
        else:
            try_it.forget(step.mix)
            refused[step.part] = step.option.noise
    return best


def or_even(
    option: Assignment,
    evenly: Sequence[Assignment],
    keeps: Callable[[Assignment], bool],
    try_it: MixEvaluator,
) -> Assignment:
    """Return the mix, or the dearest uniform width within the budget if that has less noise.

    Predictions are those of rounding to nearest, and at times too high for few bits.
    """
    dearest_first = sorted(evenly, key=lambda even: (-even.cost, even.noise))
    return min(option, next(filter(keeps, dearest_first), option), key=try_it.noise)


def or_cheaper(
    most: float,
    option: Assignment,
    evenly: Sequence[Assignment],
    try_it: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """Return the mix, or a uniform width if that is cheaper and quiet enough."""
    dearest_first = sorted(evenly, key=lambda even: -even.cost)
    for even in [even for even in dearest_first if even.cost < option.cost][: config.rounds]:
        if try_it.noise(even) > most:
            break
        option = even
    return option
