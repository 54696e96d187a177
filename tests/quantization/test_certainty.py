# SPDX-License-Identifier: Apache-2.0
"""What samples prove of other data: bounds that hold as often as they say."""

import math

import numpy as np
import pytest

from anybit.quantization.certainty import FEWEST, Spread, upper_bound


def pairs(noise: np.ndarray, signal: np.ndarray) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in zip(noise, signal, strict=True)]


@pytest.mark.parametrize("count", [12, 24, 50, 200])
@pytest.mark.parametrize(("deviation", "least"), [(0.0, 0.9), (0.3, 0.9), (0.7, 0.88), (1.2, 0.82)])
def test_bounds_hold_in_nearly_as_many_cases_as_they_say(
    count: int, deviation: float, least: float
) -> None:
    """Of skewed noise, of a normal logarithm for a part."""
    generator = np.random.default_rng(count)
    mean = math.exp(deviation**2 / 2) + 1.0
    held = []
    for _ in range(2000):
        noise = generator.lognormal(0.0, deviation, count) + generator.exponential(1.0, count)
        bound = upper_bound(pairs(noise, np.ones(count)))
        assert bound is not None
        held.append(bound >= mean)
    assert least <= np.mean(held) <= 0.99


def test_it_is_students_where_nothing_is_skewed() -> None:
    """For 8 samples one in twenty is beyond 1.8946 of their deviation."""
    noise = np.array([1.0, 3.0] * 4)
    expected = 2 + 1.8946 * noise.std(ddof=1) / math.sqrt(8)
    assert upper_bound(pairs(noise, np.ones(8))) == pytest.approx(expected, rel=1e-4)


def test_less_confidence_asks_for_less() -> None:
    generator = np.random.default_rng(1)
    noise = pairs(generator.exponential(1.0, 24), np.ones(24))
    bounds = [upper_bound(noise, each) for each in (0.6, 0.75, 0.95)]
    assert bounds == sorted(bounds)
    assert bounds[0] > np.mean([each[0] for each in noise])


def test_what_is_loud_where_the_signal_is_does_not_differ() -> None:
    signal = np.arange(1.0, 20.0)
    assert upper_bound(pairs(0.01 * signal, signal)) == pytest.approx(0.01)


def test_too_few_or_nothing_finite_prove_nothing() -> None:
    enough = np.arange(1.0, FEWEST + 1)
    assert upper_bound(pairs(enough, enough)) is not None
    assert upper_bound(pairs(enough[1:], enough[1:])) is None
    assert upper_bound(pairs(enough, 0 * enough)) is None
    assert upper_bound(pairs(enough * np.inf, enough)) is None


@pytest.mark.parametrize("count", [8, 511, 512, 513, 5000])
def test_many_samples_are_added_up_in_groups(count: int) -> None:
    generator = np.random.default_rng(count)
    noise, signal = generator.exponential(1.0, count), 1 + generator.random(count)
    spread = Spread()
    for each in pairs(noise, signal):
        spread.add(*each)
    exact = upper_bound(pairs(noise, signal))
    assert spread.most() == pytest.approx(exact, rel=0.02)
    if count < 512:
        assert spread.most() == exact
    assert len(spread._pairs) <= 512
