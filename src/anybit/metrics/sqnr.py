# SPDX-License-Identifier: Apache-2.0
"""Signal-to-quantization-noise ratio (SQNR): conversion between power ratios and dB."""

import math

import numpy as np

MIN_NOISE = 1e-30
"""The least noise-to-signal power ratio that counts as noise; 300 dB."""


def compute_sqnr(signal: float, noise: float) -> float:
    """Return the SQNR in dB of the powers of signal and noise; infinite without noise."""
    return 10 * float(np.log10(signal / noise)) if noise else math.inf


def noise_to_sqnr(noise: float) -> float:
    """Return the SQNR in dB of a noise-to-signal power ratio; 300 dB at most."""
    return -10 * math.log10(max(noise, MIN_NOISE))


def sqnr_to_noise(sqnr: float) -> float:
    """Return the noise-to-signal power ratio of an SQNR in dB."""
    return float(10 ** (-sqnr / 10))
