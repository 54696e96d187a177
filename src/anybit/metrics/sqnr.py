# SPDX-License-Identifier: Apache-2.0
"""Noise over signal as a power, and signal over noise in decibels."""

import math

MIN_NOISE = 1e-30
"""Less noise than this is none: 300 dB."""


def noise_to_sqnr(noise: float) -> float:
    """Signal over noise in dB, of noise over signal as a power."""
    return -10 * math.log10(max(noise, MIN_NOISE))


def sqnr_to_noise(sqnr: float) -> float:
    """Noise over signal as a power, of signal over noise in dB."""
    return float(10 ** (-sqnr / 10))
