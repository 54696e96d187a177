# SPDX-License-Identifier: Apache-2.0
"""What the best mix of widths is within each kind of budget: noise, bytes, operations."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from anybit.errors import ModelError
from anybit.ptq.budget import Budget
from anybit.ptq.config import BudgetConfig
from anybit.ptq.mixed_precision.bit_operations import evenly, quieter
from anybit.ptq.mixed_precision.cost_model import Costs, parts
from anybit.ptq.mixed_precision.mix_evaluator import MixEvaluator, or_cheaper, or_even, quiet_enough
from anybit.ptq.mixed_precision.noise_model import BASE, NoiseTable, changed, varied
from anybit.ptq.mixed_precision.pareto import Assignment, front, quietest
from anybit.ptq.plan import QuantPlan

Size = Callable[[QuantPlan], int]


@dataclass(frozen=True)
class SearchState:
    """What is known of mixes before any of them is tried.

    Attributes:
        budget: What a mix may take, or what has to come out of it.
        wanted: The plan that was asked for.
        base: The same with 8 bits wherever they may differ: what mixes are told by.
        least: The fewest bits that tensors get.
        costs: What widths cost.
        noises: What they do to the outputs.
        size: The bytes of all constants, by a plan.
        config: The thresholds.
    """

    budget: Budget
    wanted: QuantPlan
    base: QuantPlan
    least: int
    costs: Costs
    noises: NoiseTable
    size: Size
    config: BudgetConfig

    @cached_property
    def options(self) -> list[list[Assignment]]:
        """What can be chosen, part by part."""
        return self.parts(self.least)

    def parts(self, least: int) -> list[list[Assignment]]:
        """Return what can be chosen, part by part, if tensors get so many bits at least."""
        return parts(self.base, self.noises, self.costs, self.config.own_widths, least)

    def even(self, least: int) -> list[Assignment]:
        """All weights in one width, and all tensors in the same, but in so many bits at least."""
        weights, activations = varied(self.wanted)
        tensors = () if self.costs.by_bytes else activations
        all_picks = evenly(weights, tensors, least)
        return [self.costs.option(self.base, picks, self.noises) for picks in all_picks]

    def plan(self, option: Assignment) -> QuantPlan:
        """A mix as a plan."""
        return changed(self.base, option.picks)


def best_within(known: SearchState, try_it: MixEvaluator) -> Assignment:
    """The best mix that keeps the budget.

    Raises:
        ModelError: There is none; the message says what was reached.
    """
    budget = known.budget
    if budget.noise is not None:
        return _within_noise(known, budget.noise, try_it)
    if budget.bytes is not None:
        return _within_bytes(known, budget.bytes, try_it)
    assert budget.bops is not None, "one of the three"
    return _within_operations(known, budget.bops * known.costs.bops(known.wanted), try_it)


def _within_noise(known: SearchState, most: float, try_it: MixEvaluator) -> Assignment:
    option = quiet_enough(known.budget, known.options, try_it, known.config)
    return or_cheaper(most, option, _possible(known.even(BASE)), try_it, known.config)


def _within_bytes(known: SearchState, most: float, try_it: MixEvaluator) -> Assignment:
    least = front(known.options)[0]
    taken = known.size(known.plan(least))
    option = quietest(known.options, most - (taken - least.cost))
    if option is None:
        raise _impossible(known, f"{taken} bytes of constants")

    def keeps(option: Assignment) -> bool:
        return known.size(known.plan(option)) <= most

    option = or_even(option, _possible(known.even(BASE)), keeps, try_it)
    taken = known.size(try_it(option).plan)
    if taken > most:
        raise ModelError(
            f"budget {known.budget.words}: the constants still take {taken} bytes, since "
            "some weights are read as floats, too"
        )
    return option


def _within_operations(known: SearchState, most: float, try_it: MixEvaluator) -> Assignment:
    option = quietest(known.options, most)
    if option is None:
        costs, least = known.costs, front(known.options)[0]
        whole = costs.bops(known.wanted)
        share = costs.bops(known.plan(least)) / whole if whole else 1
        raise _impossible(known, f"{100 * share:.3g} % of the operations")

    def keeps(option: Assignment) -> bool:
        return known.costs.bops(known.plan(option)) <= most

    if known.least == BASE:
        return or_even(option, _possible(known.even(BASE)), keeps, try_it)
    # First without fewer bits of tensors: what is tried before may change a choice a bit.
    wide = quietest(known.parts(BASE), most)
    first = or_even(wide or option, _possible(known.even(BASE)), keeps, try_it)
    return quieter([first, option], _possible(known.even(known.least)), keeps, try_it)


def _impossible(known: SearchState, reached: str) -> ModelError:
    return ModelError(f"budget {known.budget.words}: the least possible is {reached}")


def _possible(options: Sequence[Assignment]) -> list[Assignment]:
    return [each for each in options if each.noise < math.inf]
