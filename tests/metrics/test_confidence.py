# SPDX-License-Identifier: Apache-2.0
"""What samples say of other data: how often bounds hold, of noise with tails of several kinds."""

import math

import numpy as np
import pytest

from anybit.metrics.confidence import MIN_SAMPLES, NoiseSpread, bound_noise_ratio


def pairs(noise: np.ndarray, signal: np.ndarray) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in zip(noise, signal, strict=True)]


@pytest.mark.parametrize("count", [24, 50, 200])
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
        bound = bound_noise_ratio(pairs(noise, np.ones(count)))
        assert bound is not None
        held.append(bound >= mean)
    assert least <= np.mean(held) <= 0.99


@pytest.mark.parametrize(
    ("count", "expected"),
    [(8, None), (10, None), (23, None), (24, 0.59), (50, 0.75), (200, 0.90)],
)
def test_with_heavy_tails_bounds_hold_in_far_fewer(count: int, expected: float | None) -> None:
    """One of twenty samples is a hundred times as loud: with few, none of these may be there."""
    generator = np.random.default_rng(count)
    mean, held = 0.95 + 0.05 * 100, []
    for _ in range(2000):
        times = np.where(generator.random(count) < 0.05, 100.0, 1.0)
        noise = times * generator.exponential(1.0, count)
        bound = bound_noise_ratio(pairs(noise, np.ones(count)))
        assert (bound is None) == (expected is None)
        held.append(bound is not None and bound >= mean)
    assert np.mean(held) == pytest.approx(expected or 0, abs=0.03)


def test_it_is_students_where_nothing_is_skewed() -> None:
    """For 24 samples one in twenty is beyond 1.7139 of their deviation."""
    noise = np.array([1.0, 3.0] * 12)
    expected = 2 + 1.7139 * noise.std(ddof=1) / math.sqrt(24)
    assert bound_noise_ratio(pairs(noise, np.ones(24))) == pytest.approx(expected, rel=1e-4)


def test_less_confidence_asks_for_less() -> None:
    generator = np.random.default_rng(1)
    noise = pairs(generator.exponential(1.0, 24), np.ones(24))
    bounds = [bound_noise_ratio(noise, each) for each in (0.6, 0.75, 0.95)]
    assert bounds == sorted(bounds)
    assert bounds[0] > np.mean([each[0] for each in noise])


def test_what_is_loud_where_the_signal_is_does_not_differ() -> None:
    signal = np.arange(1.0, 30.0)
    assert bound_noise_ratio(pairs(0.01 * signal, signal)) == pytest.approx(0.01)


def test_of_nothing_the_bound_is_zero() -> None:
    """Even where there is no signal; not of too few."""
    for signal in (np.zeros(MIN_SAMPLES), np.ones(MIN_SAMPLES), np.arange(MIN_SAMPLES) == 3):
        assert bound_noise_ratio(pairs(np.zeros(MIN_SAMPLES), signal)) == 0.0
        assert bound_noise_ratio(pairs(np.zeros(MIN_SAMPLES), signal)[1:]) is None


def test_too_few_or_nothing_finite_have_no_bound() -> None:
    enough = np.arange(1.0, MIN_SAMPLES + 1)
    assert bound_noise_ratio(pairs(enough, enough)) is not None
    assert bound_noise_ratio(pairs(enough[1:], enough[1:])) is None
    assert bound_noise_ratio(pairs(enough, 0 * enough)) is None
    assert bound_noise_ratio(pairs(enough, enough == 1)) is None
    assert bound_noise_ratio(pairs(enough, enough * np.inf)) is None
    assert bound_noise_ratio(pairs(enough * np.inf, enough)) is None


@pytest.mark.parametrize("count", [24, 511, 512, 513, 5000])
def test_many_samples_are_added_up_in_groups(count: int) -> None:
    generator = np.random.default_rng(count)
    noise, signal = generator.exponential(1.0, count), 1 + generator.random(count)
    spread = NoiseSpread()
    for each in pairs(noise, signal):
        spread.add(*each)
    exact = bound_noise_ratio(pairs(noise, signal))
    assert spread.bound_noise() == pytest.approx(exact, rel=0.02)
    if count < 512:
        assert spread.bound_noise() == exact
    assert len(spread._pairs) <= 512
