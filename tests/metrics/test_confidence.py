# SPDX-License-Identifier: Apache-2.0
"""Coverage of the confidence bound for noise of several distributions."""

import math

import numpy as np
import pytest

from anybit.metrics.confidence import MIN_SAMPLES, NoiseSpread, bound_noise_ratio


def pairs(noise: np.ndarray, signal: np.ndarray) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in zip(noise, signal, strict=True)]


@pytest.mark.parametrize("count", [24, 50, 200])
@pytest.mark.parametrize(("deviation", "least"), [(0.0, 0.9), (0.3, 0.9), (0.7, 0.88), (1.2, 0.82)])
def test_bound_noise_ratio_has_nearly_the_intended_coverage(
    count: int, deviation: float, least: float
) -> None:
    # The noise is skewed; its logarithm is normal in some cases.
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
def test_bound_noise_ratio_has_less_coverage_for_heavy_tails(
    count: int, expected: float | None
) -> None:
    # One of twenty samples has a hundredfold noise. Few samples may contain none of these.
    generator = np.random.default_rng(count)
    mean, held = 0.95 + 0.05 * 100, []
    for _ in range(2000):
        times = np.where(generator.random(count) < 0.05, 100.0, 1.0)
        noise = times * generator.exponential(1.0, count)
        bound = bound_noise_ratio(pairs(noise, np.ones(count)))
        assert (bound is None) == (expected is None)
        held.append(bound is not None and bound >= mean)
    assert np.mean(held) == pytest.approx(expected or 0, abs=0.03)


def test_bound_noise_ratio_matches_student_without_skewness() -> None:
    # The 95 % quantile for 24 samples is 1.7139.
    noise = np.array([1.0, 3.0] * 12)
    expected = 2 + 1.7139 * noise.std(ddof=1) / math.sqrt(24)
    assert bound_noise_ratio(pairs(noise, np.ones(24))) == pytest.approx(expected, rel=1e-4)


def test_bound_noise_ratio_increases_with_confidence() -> None:
    generator = np.random.default_rng(1)
    noise = pairs(generator.exponential(1.0, 24), np.ones(24))
    bounds = [bound_noise_ratio(noise, confidence) for confidence in (0.6, 0.75, 0.95)]
    assert bounds == sorted(bounds)
    assert bounds[0] > np.mean([pair[0] for pair in noise])


def test_bound_noise_ratio_equals_the_ratio_of_proportional_noise() -> None:
    signal = np.arange(1.0, 30.0)
    assert bound_noise_ratio(pairs(0.01 * signal, signal)) == pytest.approx(0.01)


def test_bound_noise_ratio_is_zero_without_noise() -> None:
    # Also without a signal, but not for too few samples.
    for signal in (np.zeros(MIN_SAMPLES), np.ones(MIN_SAMPLES), np.arange(MIN_SAMPLES) == 3):
        assert bound_noise_ratio(pairs(np.zeros(MIN_SAMPLES), signal)) == 0.0
        assert bound_noise_ratio(pairs(np.zeros(MIN_SAMPLES), signal)[1:]) is None


def test_bound_noise_ratio_is_undefined_for_few_or_infinite_samples() -> None:
    enough = np.arange(1.0, MIN_SAMPLES + 1)
    assert bound_noise_ratio(pairs(enough, enough)) is not None
    assert bound_noise_ratio(pairs(enough[1:], enough[1:])) is None
    assert bound_noise_ratio(pairs(enough, 0 * enough)) is None
    assert bound_noise_ratio(pairs(enough, enough == 1)) is None
    assert bound_noise_ratio(pairs(enough, enough * np.inf)) is None
    assert bound_noise_ratio(pairs(enough * np.inf, enough)) is None


@pytest.mark.parametrize("count", [24, 511, 512, 513, 5000])
def test_noise_spread_groups_many_samples(count: int) -> None:
    generator = np.random.default_rng(count)
    noise, signal = generator.exponential(1.0, count), 1 + generator.random(count)
    spread = NoiseSpread()
    for pair in pairs(noise, signal):
        spread.add(*pair)
    exact = bound_noise_ratio(pairs(noise, signal))
    assert spread.bound_noise() == pytest.approx(exact, rel=0.02)
    if count < 512:
        assert spread.bound_noise() == exact
    assert len(spread._pairs) <= 512


@pytest.mark.parametrize(
    ("one", "other", "noisier"),
    [
        ([2.0, 2.2, 1.9], [1.0, 1.1, 0.9], True),
        ([1.0, 1.1, 0.9], [2.0, 2.2, 1.9], False),
        ([1.0, 1.1, 0.9], [1.0, 1.1, 0.9], False),
        # All the difference is that of one sample.
        ([1.0, 1.0, 9.0], [1.5, 1.5, 1.5], False),
        ([0.0, 0.0, 1.0], [0.0, 1e-9, 0.0], False),
        ([2.0], [1.0], True),
        ([1.0], [2.0], False),
        ([], [], False),
        ([0.0, 1e-9], [0.0, 0.0], True),
        ([0.0, 0.0], [0.0, 0.0], False),
        ([math.inf, 1.0], [1.0, 1.0], True),
        ([1.0, 1.0], [math.inf, 1.0], False),
        ([math.inf, 1.0], [math.inf, 1.0], False),
    ],
)
def test_noise_spreads_differ_by_more_than_the_standard_error(
    one: list[float], other: list[float], noisier: bool
) -> None:
    spreads = NoiseSpread(), NoiseSpread()
    for spread, noises in zip(spreads, (one, other), strict=True):
        for noise in noises:
            spread.add(noise, 1.0)
    assert spreads[0].is_noisier_than(spreads[1]) is noisier


def test_noise_is_compared_relative_to_the_signal() -> None:
    quiet, loud = NoiseSpread(), NoiseSpread()
    for noise in (1.0, 1.2, 0.8):
        quiet.add(noise, 1.0)
        loud.add(5 * noise, 100.0)
    assert quiet.is_noisier_than(loud)
    assert not loud.is_noisier_than(quiet)
