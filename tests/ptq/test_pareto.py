# SPDX-License-Identifier: Apache-2.0
"""Mixes of one option per part, against all that there are."""

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


def all_mixes(parts: list[list[Assignment]]) -> list[Assignment]:
    found = []
    for taken in product(*parts):
        mix = Assignment(0, 0)
        for each in taken:
            mix = mix + each
        found.append(mix)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_better_than_the_front(seed: int) -> None:
    parts = random_parts(seed)
    mixes = all_mixes(parts)
    found = compute_front(parts)
    assert found[0].cost == min(each.cost for each in mixes)
    assert found[-1].noise == min(each.noise for each in mixes)
    for each in found:
        assert each in mixes
        assert each.noise == min(other.noise for other in mixes if other.cost <= each.cost)
    slopes = [(a.noise - b.noise) / (b.cost - a.cost) for a, b in pairwise(found)]
    assert slopes == sorted(slopes, reverse=True)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_within_a_limit_is_near_the_best(seed: int) -> None:
    parts = random_parts(seed)
    mixes = all_mixes(parts)
    for limit in range(0, 140, 7):
        best = min((each.noise for each in mixes if each.cost <= limit), default=None)
        found = find_quietest(parts, limit)
        assert (found is None) == (best is None)
        if found is not None:
            assert found in mixes
            assert found.cost <= limit
            least = min(each.noise for each in compute_front(parts) if each.cost <= limit)
            assert best <= found.noise <= least
        other = find_cheapest(parts, limit)
        best = min((each.cost for each in mixes if each.noise <= limit), default=None)
        assert (other is None) == (best is None)
        if other is not None:
            assert other in mixes
            assert other.noise <= limit
            turned = compute_front([[each.swapped for each in options] for options in parts])
            least = min(each.swapped.cost for each in turned if each.swapped.noise <= limit)
            assert best <= other.cost <= least


def test_most_limits_are_met_as_well_as_can_be() -> None:
    hits = total = 0
    for seed in range(60):
        parts = random_parts(seed)
        mixes = all_mixes(parts)
        for limit in range(10, 120, 5):
            found = find_quietest(parts, limit)
            if found is not None:
                total += 1
                hits += found.noise == min(each.noise for each in mixes if each.cost <= limit)
    assert hits > 0.6 * total > 300


def test_hulls_have_no_point_that_others_beat() -> None:
    options = [Assignment(*each) for each in ((1, 10), (2, 10), (2, 9), (3, 2), (4, 3), (5, 1))]
    assert [(each.cost, each.noise) for each in compute_hull(options)] == [(1, 10), (3, 2), (5, 1)]


@pytest.mark.parametrize("seed", range(40))
def test_what_makes_a_mix_cheaper_is_found_part_by_part(seed: int) -> None:
    parts = random_parts(seed)
    for mix in all_mixes(parts)[:50]:
        found = find_savings(parts, mix, 3)
        wanted = {
            (part, each)
            for part, options in enumerate(parts)
            for own in options
            if own.widths[0] in mix.widths
            for each in options
            if each.cost <= own.cost - 3
        }
        assert {(each.group, each.option) for each in found} == wanted
        assert len(found) == len(wanted)
        saved = [mix.cost - each.assignment.cost for each in found]
        more = [max(each.assignment.noise - mix.noise, 1e-30) for each in found]
        assert all(each >= 3 for each in saved)
        worth = [a / b for a, b in zip(saved, more, strict=True)]
        assert worth == sorted(worth, reverse=True)
        for each in found:
            assert set(each.assignment.widths) - set(mix.widths) == set(each.option.widths)


class _Mixes:
    """Mixes with the noise that a function says, on what judges and on few others."""

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


def _chosen(words: str, parts: list[list[Assignment]], tried: _Mixes) -> Assignment:
    return search_cheapest(parse_budget(words), parts, tried, DEFAULT.budget)  # type: ignore[arg-type]


def _wide(count: int, noise: float = 1e-4) -> list[list[Assignment]]:
    """Parts of which each may have more bits."""
    return [
        [Assignment(1.0, noise, ((part, 8),)), Assignment(100.0, noise / 100, ((part, 16),))]
        for part in range(count)
    ]


def test_a_mix_that_is_tried_again_is_counted_once() -> None:
    parts = [[Assignment(1.0, 0.1, (("a", 8),)), Assignment(2.0, 0.05, (("a", 16),))]]
    with pytest.raises(ModelError, match=r"the best of 1 that were tried gives 3\.0 dB"):
        _chosen("40dB", parts, _Mixes(lambda option: 0.5))


def test_mixes_that_fall_short_are_followed_by_others_before_the_dearest() -> None:
    """One sample of those that judge takes 4 dB more than is expected, in all but the quietest."""
    tried = _Mixes(lambda each: 2.5 * each.noise if each.noise < 5e-4 else 1.1e-3)
    found = _chosen("30dB", _wide(20), tried)
    assert tried.measure_noise(found) <= 1e-3
    assert found.cost < 2000
    assert len(tried.tried) > 3


def test_the_cheapest_mix_between_is_found() -> None:
    """The first is too noisy and the next is not; in between some are, in no order."""
    parts = _wide(40)
    first = find_cheapest(parts, 10**-3.02)
    assert first is not None
    lucky = find_cheapest(parts, first.noise / 1.3)
    assert lucky is not None

    def noise(option: Assignment) -> float:
        enough = option.cost == lucky.cost or option.cost > lucky.cost + 300
        return 0.99e-3 if enough else 2e-3

    tried = _Mixes(noise)
    found = _chosen("30dB", parts, tried)
    assert found.cost == lucky.cost
    assert any(noise(each) <= 1e-3 for each in tried.tried if each.cost > found.cost)


def test_what_can_do_with_fewer_bits_gets_them() -> None:
    """Of what was expected of one part nothing is true."""
    parts = [
        *_wide(12),
        [Assignment(1.0, 8e-4, (("a", 8),)), Assignment(500.0, 1e-6, (("a", 16),))],
    ]

    def noise(option: Assignment) -> float:
        return option.noise - (8e-4 if ("a", 8) in option.widths else 0)

    tried = _Mixes(noise)
    found = _chosen("30dB", parts, tried)
    assert ("a", 16) in tried.tried[0].widths
    assert ("a", 8) in found.widths
    assert noise(found) <= 1e-3


def test_luck_is_no_reason_for_fewer_bits() -> None:
    """What judges would have it, and few others would not."""
    parts = [
        *_wide(12),
        [Assignment(1.0, 8e-4, (("a", 8),)), Assignment(500.0, 1e-6, (("a", 16),))],
    ]

    def noise(option: Assignment) -> float:
        return option.noise - (8e-4 if ("a", 8) in option.widths else 0)

    tried = _Mixes(noise, other=lambda option: option.noise)
    found = _chosen("30dB", parts, tried)
    assert ("a", 16) in found.widths
    assert any(("a", 8) in each.widths for each in tried.forgotten)


def test_a_mix_without_any_noise_is_found_beside_one_that_has_too_much() -> None:
    parts = [
        [Assignment(1.0, 1e-8, ((part, 8),)), Assignment(2.0, 0.0, ((part, 16),))]
        for part in range(20)
    ]
    tried = _Mixes(lambda option: 1.0 if option.noise else 0.0)
    assert tried.measure_noise(_chosen("60dB", parts, tried)) == 0
