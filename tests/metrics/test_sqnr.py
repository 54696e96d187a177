# SPDX-License-Identifier: Apache-2.0
"""Conversion between power ratios and SQNR in dB."""

import math

import pytest

from anybit.metrics.sqnr import MIN_NOISE, compute_sqnr, noise_to_sqnr, sqnr_to_noise


@pytest.mark.parametrize("sqnr", [-20.0, 0.0, 3.0, 150.0])
def test_noise_to_sqnr_inverts_sqnr_to_noise(sqnr: float) -> None:
    assert noise_to_sqnr(sqnr_to_noise(sqnr)) == pytest.approx(sqnr)


@pytest.mark.parametrize("noise", [0.0, MIN_NOISE / 10])
def test_noise_to_sqnr_is_at_most_300_db(noise: float) -> None:
    assert noise_to_sqnr(noise) == pytest.approx(300)


def test_compute_sqnr_is_infinite_without_noise() -> None:
    assert compute_sqnr(100.0, 1.0) == pytest.approx(20)
    assert compute_sqnr(0.0, 0.0) == math.inf
