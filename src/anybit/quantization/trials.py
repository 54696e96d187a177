# SPDX-License-Identifier: Apache-2.0
"""Mixes of widths, run to see what they do, and corrected by what was seen."""

import math
from collections.abc import Callable, Sequence

from anybit.errors import ModelError
from anybit.quantization.attempts import CandidateBuilder, Progress, QuantizedCandidate
from anybit.quantization.config import BudgetConfig
from anybit.quantization.decibels import LEAST, decibels, noise_of
from anybit.quantization.knapsack import Assignment, Widths, cheaper, cheapest, front
from anybit.quantization.mixing import changed
from anybit.quantization.plan import Plan
from anybit.words.budgets import Budget


class MixEvaluator:
    """The mixes that were tried: each once.

    Args:
        base: What they differ from in widths.
        attempts: What quantizes the model.
        progress: Called with the share that is done.
    """

    def __init__(self, base: Plan, attempts: CandidateBuilder, progress: Progress) -> None:
        self._base, self._attempts, self._progress = base, attempts, progress
        self._tried: dict[Widths, QuantizedCandidate] = {}
        self._count = 0

    def __call__(self, option: Assignment) -> QuantizedCandidate:
        if option.picks not in self._tried:
            wanted = changed(self._base, option.picks)
            self._tried[option.picks] = self._attempts.attempt(wanted, self._advance)
            self._count += 1
        return self._tried[option.picks]

    def _advance(self, share: float) -> None:
        # How many there will be is not known; what is shown never falls.
        done = self._count + share
        self._progress(done / (done + 1))

    def noise(self, option: Assignment) -> float:
        """Noise over signal of the worst output, on samples that are held back."""
        verdict = self(option).verdict
        assert verdict is not None, "there are data"
        assert verdict.sqnr is not None, "asked before"
        return noise_of(verdict.sqnr)

    def quiet(self, option: Assignment, most: float) -> bool:
        """Return whether the noise is at most that, also on the ablation samples.

        Of several mixes, luck may help one on the samples of the verdict.
        """
        ablation = self(option).ablation
        other = 0.0 if ablation is None or ablation.sqnr is None else noise_of(ablation.sqnr)
        return max(self.noise(option), other) <= most

    def forget(self, option: Assignment) -> None:
        """A model that is not wanted any more takes no memory."""
        self._tried.pop(option.picks, None)

    def factor(self, option: Assignment) -> float:
        """How much more noise there is than was predicted."""
        return max(self.noise(option), LEAST) / max(option.noise, LEAST)


def quiet_enough(
    budget: Budget,
    options: Sequence[Sequence[Assignment]],
    try_it: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """Return the cheapest mix that was tried and has no more noise than that.

    What is expected is corrected by what is found, until a mix is quiet enough. Then those between
    it and the cheapest that is not are tried, cheapest first: with few samples to judge by more
    bits are not always better. What then can have fewer bits, part by part, gets them.
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
        reached = decibels(min(tried.values()))
        raise ModelError(
            f"budget {budget.words}: not reached; the best of {len(tried)} that were tried gives "
            f"{reached:.1f} dB"
        )
    if loudest > best.noise:
        best = _between(budget.noise, options, loudest, best, try_it, config)
    return _trimmed(budget.noise, options, best, try_it, config)


def _between(
    most: float,
    options: Sequence[Sequence[Assignment]],
    loudest: float,
    best: Assignment,
    try_it: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """The cheapest of some mixes between one that is too noisy and one that is not."""
    ratio = max(best.noise, LEAST) / loudest
    count = min(config.between, int(math.log(ratio) / math.log(config.apart)))
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
    """A mix with less of what turns out not to be needed, part by part.

    Luck may help a part through on those that judge; what was not held back has to agree.
    """
    refused: dict[int, float] = {}
    for _ in range(config.trims):
        steps = cheaper(options, best, config.least_saving * best.cost)
        # What was refused once is not tried with more noise.
        new = (each for each in steps if each.option.noise < refused.get(each.part, math.inf))
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
    """The mix, or the dearest of one width for all layers that is kept, if it has less noise.

    What few bits are expected to lose is what rounding to nearest would, and too much at times.
    """
    dearest_first = sorted(evenly, key=lambda each: (-each.cost, each.noise))
    return min(option, next(filter(keeps, dearest_first), option), key=try_it.noise)


def or_cheaper(
    most: float,
    option: Assignment,
    evenly: Sequence[Assignment],
    try_it: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """The mix, or one width for all layers if that is cheaper and has no more noise than that."""
    dearest_first = sorted(evenly, key=lambda each: -each.cost)
    for each in [each for each in dearest_first if each.cost < option.cost][: config.rounds]:
        if try_it.noise(each) > most:
            break
        option = each
    return option
