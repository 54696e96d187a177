# SPDX-License-Identifier: Apache-2.0
"""Search of the best assignment of widths within a budget of noise, bytes or bit operations.

Assignments are predicted by the noise and cost models, evaluated, and compared with uniform widths.
Predictions assume rounding to nearest, which is sometimes too pessimistic for few bits.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from anybit.errors import ModelError
from anybit.metrics.sqnr import MIN_NOISE, noise_to_sqnr
from anybit.ptq.budget import Budget, BudgetKind
from anybit.ptq.config import BudgetConfig
from anybit.ptq.mixed_precision.cost_model import CostModel, list_options
from anybit.ptq.mixed_precision.mix_evaluator import MixEvaluator
from anybit.ptq.mixed_precision.noise_model import NoiseTable
from anybit.ptq.mixed_precision.pareto import (
    Assignment,
    Widths,
    compute_front,
    find_cheapest,
    find_quietest,
    find_savings,
)
from anybit.ptq.mixed_precision.widths import select_variable_specs, set_widths
from anybit.ptq.plan import QuantPlan

CountBytes: TypeAlias = Callable[[QuantPlan], int]
"""Returns the size of all constants of a plan in bytes."""
_Groups: TypeAlias = Sequence[Sequence[Assignment]]
_Predicate: TypeAlias = Callable[[Assignment], bool]


@dataclass(frozen=True)
class SearchState:
    """Predictions of cost and noise, which the search starts from.

    Attributes:
        budget: The budget.
        requested: The plan with the requested widths.
        base: The plan at the base widths, which assignments change.
        least_bits: The fewest bits of activations.
        costs: The cost of widths.
        noises: The noise of widths.
        count_bytes: Returns the size of the constants of a plan.
        config: The thresholds.
    """

    budget: Budget
    requested: QuantPlan
    base: QuantPlan
    least_bits: int
    costs: CostModel
    noises: NoiseTable
    count_bytes: CountBytes
    config: BudgetConfig

    @cached_property
    def groups(self) -> list[list[Assignment]]:
        """The options of each group of layers."""
        return self.list_options(self.least_bits)

    def list_options(self, least_bits: int) -> list[list[Assignment]]:
        """Return the options of each group, with at least `least_bits` for activations."""
        return list_options(self.base, self.noises, self.costs, least_bits)

    def list_uniform(self, least_bits: int) -> list[Assignment]:
        """Return the assignments of one width to all weights and activations.

        Activations get at least `least_bits`. They are not changed for a budget of bytes.
        """
        weights, activations = select_variable_specs(self.requested)
        tensors = () if self.costs.by_bytes else activations
        return [
            self.costs.evaluate(
                self.base,
                (
                    *((layer, bits) for layer in weights),
                    *((tensor, max(bits, least_bits)) for tensor in tensors),
                ),
                self.noises,
            )
            for bits in self.config.weight_widths
        ]

    def make_plan(self, assignment: Assignment) -> QuantPlan:
        """Return the plan with the widths of an assignment."""
        return set_widths(self.base, assignment.widths)


def choose_least_width(share: float, config: BudgetConfig) -> int:
    """Return the fewest bits of activations for a budget of bit operations.

    Bit operations are products of two widths, and each bit less multiplies the noise power by 4.
    With 2-bit weights and 8-bit activations the weights alone make eight times the noise of both at
    4 bits. So activations get fewer bits, down to the width that all would have if uniform.

    Args:
        share: The budget over the bit operations at the base width.
        config: The thresholds.
    """
    if share >= 1:
        return config.base_bits
    uniform = config.base_bits * math.sqrt(share)
    return config.exact_bits if uniform >= config.exact_bits else config.least_activation_bits


def search_assignment(state: SearchState, evaluator: MixEvaluator) -> Assignment:
    """Return the best assignment within the budget.

    Raises:
        ModelError: There is none; the message has the least value that is possible.
    """
    if state.budget.kind is BudgetKind.NOISE:
        return _search_within_noise(state, evaluator)
    if state.budget.kind is BudgetKind.BYTES:
        return _search_within_bytes(state, evaluator)
    return _search_within_bit_operations(state, evaluator)


def _search_within_noise(state: SearchState, evaluator: MixEvaluator) -> Assignment:
    assignment = search_cheapest(state.budget, state.groups, evaluator, state.config)
    uniform = _drop_infinite(state.list_uniform(state.config.base_bits))
    return _prefer_cheaper_uniform(state.budget.limit, assignment, uniform, evaluator, state.config)


def _search_within_bytes(state: SearchState, evaluator: MixEvaluator) -> Assignment:
    least = compute_front(state.groups)[0]
    size = state.count_bytes(state.make_plan(least))
    assignment = find_quietest(state.groups, state.budget.limit - (size - least.cost))
    if assignment is None:
        raise _make_error(state, f"{size} bytes of constants")

    def is_within(option: Assignment) -> bool:
        return state.count_bytes(state.make_plan(option)) <= state.budget.limit

    uniform = _drop_infinite(state.list_uniform(state.config.base_bits))
    assignment = _prefer_quieter_uniform(assignment, uniform, is_within, evaluator)
    size = state.count_bytes(evaluator.build(assignment).plan)
    if size > state.budget.limit:
        raise ModelError(
            f"budget {state.budget.text}: the constants still take {size} bytes, because some "
            "weights are read as floats, too"
        )
    return assignment


def _search_within_bit_operations(state: SearchState, evaluator: MixEvaluator) -> Assignment:
    costs, base_bits = state.costs, state.config.base_bits
    requested = costs.count_bit_operations(state.requested)
    max_operations = state.budget.limit * requested
    assignment = find_quietest(state.groups, max_operations)
    if assignment is None:
        least = costs.count_bit_operations(state.make_plan(compute_front(state.groups)[0]))
        share = least / requested if requested else 1
        raise _make_error(state, f"{100 * share:.3g} % of the operations")

    def is_within(option: Assignment) -> bool:
        return costs.count_bit_operations(state.make_plan(option)) <= max_operations

    uniform = _drop_infinite(state.list_uniform(base_bits))
    if state.least_bits == base_bits:
        return _prefer_quieter_uniform(assignment, uniform, is_within, evaluator)
    # Activations at the base width come first: cached parameters make the order matter a little.
    wide = find_quietest(state.list_options(base_bits), max_operations)
    first = _prefer_quieter_uniform(wide or assignment, uniform, is_within, evaluator)
    narrow_uniform = _drop_infinite(state.list_uniform(state.least_bits))
    return _select_quietest([first, assignment], narrow_uniform, is_within, evaluator)


def search_cheapest(
    budget: Budget, groups: _Groups, evaluator: MixEvaluator, config: BudgetConfig
) -> Assignment:
    """Return the cheapest evaluated assignment within a budget of noise.

    Predictions are corrected by the measured noise until an assignment is within the budget.
    Assignments between that one and the cheapest one beyond the budget follow, because more bits
    are not always better on few samples. At last, single groups get fewer bits.

    Raises:
        ModelError: None is within the budget.
    """
    best, max_beyond, evaluated = _correct_predictions(budget.limit, groups, evaluator, config)
    if best is None:
        quietest = compute_front(groups)[-1]
        evaluated[quietest.widths] = noise = evaluator.measure_noise(quietest)
        if noise > budget.limit:
            reached = noise_to_sqnr(min(evaluated.values()))
            raise ModelError(
                f"budget={budget.text!r}: not reached; the best of {len(evaluated)} evaluated "
                f"gives {reached:.1f} dB; lower the budget"
            )
        best = quietest
    if max_beyond > best.noise:
        best = _search_between(budget.limit, groups, max_beyond, best, evaluator, config)
    return _trim_widths(budget.limit, groups, best, evaluator, config)


def _correct_predictions(
    max_noise: float, groups: _Groups, evaluator: MixEvaluator, config: BudgetConfig
) -> tuple[Assignment | None, float, dict[Widths, float]]:
    """Evaluate assignments of increasing accuracy until one is within a limit of noise.

    Returns:
        The cheapest one within the limit; the largest predicted noise of those beyond it; and the
        measured noise of all.
    """
    aim, best = config.aim * max_noise, None
    evaluated: dict[Widths, float] = {}
    max_beyond = 0.0
    for number in range(1, config.max_rounds + 1):
        assignment = find_cheapest(groups, aim) or compute_front(groups)[-1]
        evaluated[assignment.widths] = noise = evaluator.measure_noise(assignment)
        if noise > max_noise:
            max_beyond = max(max_beyond, assignment.noise)
        elif best is None or assignment.cost < best.cost:
            best = assignment
        is_near = noise >= max_noise * config.near
        if best is not None and (max_beyond or number >= config.rounds or is_near):
            break
        aim = config.aim * max_noise / evaluator.compute_correction(assignment)
        if best is None:
            aim = min(aim, config.retry_ratio * assignment.noise)
    return best, max_beyond, evaluated


def _search_between(
    max_noise: float,
    groups: _Groups,
    max_beyond: float,
    best: Assignment,
    evaluator: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """Return the cheapest assignment within a limit of noise and of less predicted noise.

    Args:
        max_noise: The limit.
        groups: The options of each group.
        max_beyond: The predicted noise of an assignment beyond the limit.
        best: An assignment within the limit.
        evaluator: Evaluates assignments.
        config: The thresholds.
    """
    ratio = max(best.noise, MIN_NOISE) / max_beyond
    count = min(config.max_between, int(math.log(ratio) / math.log(config.min_ratio)))
    for step in range(1, count + 1):
        assignment = find_cheapest(groups, max_beyond * ratio ** (step / (count + 1)))
        if assignment is None or assignment.cost >= best.cost:
            break
        if evaluator.is_within(assignment, max_noise):
            evaluator.forget(best)
            return assignment
        evaluator.forget(assignment)
    return best


def _trim_widths(
    max_noise: float,
    groups: _Groups,
    best: Assignment,
    evaluator: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """Lower the widths of single groups as long as the noise stays within a limit.

    Luck may help a group on the held-out samples, so the ablation samples have to agree.
    """
    rejected: dict[int, float] = {}
    for _ in range(config.max_trims):
        savings = find_savings(groups, best, config.min_saving * best.cost)
        # A group is not tried again with more noise than was rejected.
        candidates = (
            exchange
            for exchange in savings
            if exchange.option.noise < rejected.get(exchange.group, math.inf)
        )
        exchange = next(candidates, None)
        if exchange is None:
            break
        if evaluator.is_within(exchange.assignment, max_noise):
            evaluator.forget(best)
            best = exchange.assignment
        else:
            evaluator.forget(exchange.assignment)
            rejected[exchange.group] = exchange.option.noise
    return best


def _prefer_quieter_uniform(
    assignment: Assignment,
    uniform: Iterable[Assignment],
    is_within: _Predicate,
    evaluator: MixEvaluator,
) -> Assignment:
    """Return the assignment, or the dearest uniform one within the budget if it has less noise."""
    dearest_first = sorted(uniform, key=lambda option: (-option.cost, option.noise))
    dearest = next(filter(is_within, dearest_first), assignment)
    return min(assignment, dearest, key=evaluator.measure_noise)


def _prefer_cheaper_uniform(
    max_noise: float,
    assignment: Assignment,
    uniform: Iterable[Assignment],
    evaluator: MixEvaluator,
    config: BudgetConfig,
) -> Assignment:
    """Return the assignment, or a cheaper uniform one within a limit of noise."""
    dearest_first = sorted(uniform, key=lambda option: -option.cost)
    cheaper = [option for option in dearest_first if option.cost < assignment.cost]
    for option in cheaper[: config.rounds]:
        if evaluator.measure_noise(option) > max_noise:
            break
        assignment = option
    return assignment


def _select_quietest(
    assignments: Sequence[Assignment],
    uniform: Iterable[Assignment],
    is_within: _Predicate,
    evaluator: MixEvaluator,
) -> Assignment:
    """Return the assignment of least noise, out of some and the dearest uniform one in the budget.

    They are evaluated in order.
    """
    dearest_first = sorted(uniform, key=lambda option: (-option.cost, option.noise))
    best, *others = (*assignments, *list(filter(is_within, dearest_first))[:1])
    for option in others:
        least = evaluator.measure_noise(best)
        worse = best if evaluator.measure_noise(option) < least else option
        best = option if worse is best else best
        if worse.widths != best.widths:
            evaluator.forget(worse)
    return best


def _drop_infinite(options: Iterable[Assignment]) -> list[Assignment]:
    return [option for option in options if option.noise < math.inf]


def _make_error(state: SearchState, reached: str) -> ModelError:
    budget = state.budget.text
    return ModelError(f"budget={budget!r}: the least possible is {reached}; raise the budget")
