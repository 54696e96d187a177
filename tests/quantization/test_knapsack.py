# SPDX-License-Identifier: Apache-2.0
"""Mixes of one option per part, against all that there are."""

from itertools import pairwise, product

import numpy as np
import pytest

from anybit import ModelError
from anybit.quantization.knapsack import Option, cheapest, front, hull, quietest
from anybit.quantization.trials import quiet_enough
from anybit.words.budgets import budget


def random_parts(seed: int) -> list[list[Option]]:
    numbers = np.random.default_rng(seed)
    return [
        [
            Option(int(numbers.integers(1, 30)), int(numbers.integers(0, 40)), ((part, at),))
            for at in range(numbers.integers(1, 6))
        ]
        for part in range(numbers.integers(1, 6))
    ]


def all_mixes(parts: list[list[Option]]) -> list[Option]:
    found = []
    for taken in product(*parts):
        mix = Option(0, 0)
        for each in taken:
            mix = mix + each
        found.append(mix)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_better_than_the_front(seed: int) -> None:
    parts = random_parts(seed)
    mixes = all_mixes(parts)
    found = front(parts)
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
        found = quietest(parts, limit)
        assert (found is None) == (best is None)
        if found is not None:
            assert found in mixes
            assert found.cost <= limit
            least = min(each.noise for each in front(parts) if each.cost <= limit)
            assert best <= found.noise <= least
        other = cheapest(parts, limit)
        best = min((each.cost for each in mixes if each.noise <= limit), default=None)
        assert (other is None) == (best is None)
        if other is not None:
            assert other in mixes
            assert other.noise <= limit
            turned = front([[each.turned for each in options] for options in parts])
            least = min(each.turned.cost for each in turned if each.turned.noise <= limit)
            assert best <= other.cost <= least


def test_most_limits_are_met_as_well_as_can_be() -> None:
    hits = total = 0
    for seed in range(60):
        parts = random_parts(seed)
        mixes = all_mixes(parts)
        for limit in range(10, 120, 5):
            found = quietest(parts, limit)
            if found is not None:
                total += 1
                hits += found.noise == min(each.noise for each in mixes if each.cost <= limit)
    assert hits > 0.6 * total > 300


def test_hulls_have_no_point_that_others_beat() -> None:
    options = [Option(*each) for each in ((1, 10), (2, 10), (2, 9), (3, 2), (4, 3), (5, 1))]
    assert [(each.cost, each.noise) for each in hull(options)] == [(1, 10), (3, 2), (5, 1)]


class _Noisy:
    """Mixes that all have the same noise."""

    def noise(self, option: Option) -> float:
        return 0.5

    def factor(self, option: Option) -> float:
        return 0.5 / option.noise


def test_a_mix_that_is_tried_again_is_counted_once() -> None:
    parts = [[Option(1.0, 0.1, (("a", 8),)), Option(2.0, 0.05, (("a", 16),))]]
    with pytest.raises(ModelError, match=r"the best of 1 that were tried gives 3\.0 dB"):
        quiet_enough(budget("40dB"), parts, _Noisy())  # type: ignore[arg-type]


class _Unlucky:
    """Mixes with one sample among those that judge that takes 4 dB more than is expected."""

    def __init__(self) -> None:
        self.costs: list[float] = []

    def noise(self, option: Option) -> float:
        self.costs.append(option.cost)
        # Corrections by what was seen come near, and fall short.
        return 2.5 * option.noise if option.noise < 5e-4 else 1.1e-3

    def factor(self, option: Option) -> float:
        return 1.05


def test_mixes_that_fall_short_are_followed_by_others_before_the_dearest() -> None:
    """Of many parts, of which each may have more bits."""
    parts = [
        [Option(1.0, 1e-4, ((part, 8),)), Option(2.0, 1e-6, ((part, 16),))] for part in range(20)
    ]
    tried = _Unlucky()
    found = quiet_enough(budget("30dB"), parts, tried)  # type: ignore[arg-type]
    assert tried.noise(found) <= 1e-3
    assert found.cost < 40
    assert len(set(tried.costs)) > 3
