# SPDX-License-Identifier: Apache-2.0
"""Pareto search against exhaustive search."""

from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest

from anybit import ModelError
from anybit.ptq.budget import parse_budget
from anybit.ptq.config import DEFAULT
from anybit.ptq.mixed_precision.assignment_search import search_cheapest
from anybit.ptq.mixed_precision.pareto import (
    Assignment,
    compute_front,
    compute_hull,
    find_cheapest,
    find_quietest,
    find_savings,
)


def random_parts(seed: int) -> list[list[Assignment]]:
    numbers = np.random.default_rng(seed)
    return [
        [
            Assignment(int(numbers.integers(1, 30)), int(numbers.integers(0, 40)), ((part, at),))
            for at in range(numbers.integers(1, 6))
        ]
        for part in range(numbers.integers(1, 6))
    ]


def list_assignments(parts: list[list[Assignment]]) -> list[Assignment]:
    result = []
    for taken in product(*parts):
        assignment = Assignment(0, 0)
        for option in taken:
            assignment = assignment + option
        result.append(assignment)
    return result


@pytest.mark.parametrize("seed", range(40))
def test_compute_front_matches_exhaustive_search(seed: int) -> None:
    parts = random_parts(seed)
    assignments = list_assignments(parts)
    result = compute_front(parts)
    assert result[0].cost == min(option.cost for option in assignments)
    assert result[-1].noise == min(option.noise for option in assignments)
    for option in result:
        assert option in assignments
        assert option.noise == min(
            other.noise for other in assignments if other.cost <= option.cost
        )
    slopes = [(a.noise - b.noise) / (b.cost - a.cost) for a, b in pairwise(result)]
    assert slopes == sorted(slopes, reverse=True)


@pytest.mark.parametrize("seed", range(40))
def test_find_quietest_and_cheapest_are_near_exhaustive_search(seed: int) -> None:
    parts = random_parts(seed)
    assignments = list_assignments(parts)
    for limit in range(0, 140, 7):
        best = min((option.noise for option in assignments if option.cost <= limit), default=None)
        result = find_quietest(parts, limit)
        assert (result is None) == (best is None)
        if result is not None:
            assert result in assignments
            assert result.cost <= limit
            least = min(option.noise for option in compute_front(parts) if option.cost <= limit)
            assert best <= result.noise <= least
        other = find_cheapest(parts, limit)
        best = min((option.cost for option in assignments if option.noise <= limit), default=None)
        assert (other is None) == (best is None)
        if other is not None:
            assert other in assignments
            assert other.noise <= limit
            swapped = compute_front([[option.swapped for option in options] for options in parts])
            least = min(option.swapped.cost for option in swapped if option.swapped.noise <= limit)
            assert best <= other.cost <= least


def test_find_quietest_is_mostly_optimal() -> None:
    hits = total = 0
    for seed in range(60):
        parts = random_parts(seed)
        assignments = list_assignments(parts)
        for limit in range(10, 120, 5):
            result = find_quietest(parts, limit)
            if result is not None:
                total += 1
                hits += result.noise == min(
                    option.noise for option in assignments if option.cost <= limit
                )
    assert hits > 0.6 * total > 300


def test_compute_hull_drops_dominated_options() -> None:
    options = [Assignment(*option) for option in ((1, 10), (2, 10), (2, 9), (3, 2), (4, 3), (5, 1))]
    assert [(option.cost, option.noise) for option in compute_hull(options)] == [
        (1, 10),
        (3, 2),
        (5, 1),
    ]


@pytest.mark.parametrize("seed", range(40))
def test_find_savings_lists_all_exchanges_in_order(seed: int) -> None:
    parts = random_parts(seed)
    for assignment in list_assignments(parts)[:50]:
        result = find_savings(parts, assignment, 3)
        expected = {
            (part, option)
            for part, options in enumerate(parts)
            for own in options
            if own.widths[0] in assignment.widths
            for option in options
            if option.cost <= own.cost - 3
        }
        assert {(exchange.group, exchange.option) for exchange in result} == expected
        assert len(result) == len(expected)
        saved = [assignment.cost - exchange.assignment.cost for exchange in result]
        more = [max(exchange.assignment.noise - assignment.noise, 1e-30) for exchange in result]
        assert all(saving >= 3 for saving in saved)
        worth = [a / b for a, b in zip(saved, more, strict=True)]
        assert worth == sorted(worth, reverse=True)
        for exchange in result:
            assert set(exchange.assignment.widths) - set(assignment.widths) == set(
                exchange.option.widths
            )


class _FakeEvaluator:
    """Evaluator with functions for the noise on held-out and ablation samples."""

    def __init__(
        self,
        noise: Callable[[Assignment], float],
        other: Callable[[Assignment], float] | None = None,
    ) -> None:
        self._noise, self._other = noise, other or noise
        self.tried: list[Assignment] = []
        self.forgotten: list[Assignment] = []

    def measure_noise(self, option: Assignment) -> float:
        if option not in self.tried:
            self.tried.append(option)
        return self._noise(option)

    def is_within(self, option: Assignment, most: float) -> bool:
        return max(self.measure_noise(option), self._other(option)) <= most

    def compute_correction(self, option: Assignment) -> float:
        return max(self.measure_noise(option), 1e-30) / max(option.noise, 1e-30)

    def forget(self, option: Assignment) -> None:
        self.forgotten.append(option)


def _search(words: str, parts: list[list[Assignment]], evaluator: _FakeEvaluator) -> Assignment:
    return search_cheapest(parse_budget(words), parts, evaluator, DEFAULT.budget)  # type: ignore[arg-type]


def _make_groups(count: int, noise: float = 1e-4) -> list[list[Assignment]]:
    """Return groups with two widths each."""
    return [
        [Assignment(1.0, noise, ((part, 8),)), Assignment(100.0, noise / 100, ((part, 16),))]
        for part in range(count)
    ]


def test_search_cheapest_counts_each_assignment_once() -> None:
    parts = [[Assignment(1.0, 0.1, (("a", 8),)), Assignment(2.0, 0.05, (("a", 16),))]]
    with pytest.raises(ModelError, match=r"the best of 1 evaluated gives 3\.0 dB; lower"):
        _search("40dB", parts, _FakeEvaluator(lambda option: 0.5))


def test_search_cheapest_retries_before_the_dearest_assignment() -> None:
    # The measured noise is 4 dB above the prediction, except for the quietest assignments.
    evaluator = _FakeEvaluator(lambda option: 2.5 * option.noise if option.noise < 5e-4 else 1.1e-3)
    result = _search("30dB", _make_groups(20), evaluator)
    assert evaluator.measure_noise(result) <= 1e-3
    assert result.cost < 2000
    assert len(evaluator.tried) > 3


def test_search_cheapest_searches_beyond_nonmonotonic_noise() -> None:
    # The first one is too noisy, the next one is not, and those between follow no order.
    parts = _make_groups(40)
    first = find_cheapest(parts, 10**-3.02)
    assert first is not None
    lucky = find_cheapest(parts, first.noise / 1.3)
    assert lucky is not None

    def noise(option: Assignment) -> float:
        enough = option.cost == lucky.cost or option.cost > lucky.cost + 300
        return 0.99e-3 if enough else 2e-3

    evaluator = _FakeEvaluator(noise)
    result = _search("30dB", parts, evaluator)
    assert result.cost == lucky.cost
    assert any(noise(option) <= 1e-3 for option in evaluator.tried if option.cost > result.cost)


def test_search_cheapest_trims_widths() -> None:
    # The predicted noise of one group is wrong.
    parts = [
        *_make_groups(12),
        [Assignment(1.0, 8e-4, (("a", 8),)), Assignment(500.0, 1e-6, (("a", 16),))],
    ]

    def noise(option: Assignment) -> float:
        return option.noise - (8e-4 if ("a", 8) in option.widths else 0)

    evaluator = _FakeEvaluator(noise)
    result = _search("30dB", parts, evaluator)
    assert ("a", 16) in evaluator.tried[0].widths
    assert ("a", 8) in result.widths
    assert noise(result) <= 1e-3


def test_search_cheapest_confirms_trims_on_ablation_samples() -> None:
    # The held-out samples allow fewer bits by luck, the ablation samples do not.
    parts = [
        *_make_groups(12),
        [Assignment(1.0, 8e-4, (("a", 8),)), Assignment(500.0, 1e-6, (("a", 16),))],
    ]

    def noise(option: Assignment) -> float:
        return option.noise - (8e-4 if ("a", 8) in option.widths else 0)

    evaluator = _FakeEvaluator(noise, other=lambda option: option.noise)
    result = _search("30dB", parts, evaluator)
    assert ("a", 16) in result.widths
    assert any(("a", 8) in option.widths for option in evaluator.forgotten)


def test_search_cheapest_returns_an_assignment_without_noise() -> None:
    parts = [
        [Assignment(1.0, 1e-8, ((part, 8),)), Assignment(2.0, 0.0, ((part, 16),))]
        for part in range(20)
    ]
    evaluator = _FakeEvaluator(lambda option: 1.0 if option.noise else 0.0)
    assert evaluator.measure_noise(_search("60dB", parts, evaluator)) == 0
