# SPDX-License-Identifier: Apache-2.0
"""Correlation and SQNR of outputs against exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from pass_checks import random

from anybit.metrics.arrays import is_float
from anybit.metrics.output_parts import OutputPart
from anybit.metrics.output_quality import OutputQuality, OutputSums

Y = OutputPart("y")


def quality(*samples: tuple[np.ndarray, np.ndarray]) -> OutputQuality:
    result = OutputSums(is_float(samples[0][0]))
    for a, b in samples:
        result.merge(OutputSums.compare(a, b if a.shape == b.shape else None, Y))
    return result.compute_quality("y")


def exact(a: np.ndarray, b: np.ndarray) -> float:
    """Return Pearson's r by rational arithmetic."""
    x, y = ([Fraction(float(element)) for element in of.ravel()] for of in (a, b))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    xx = sum((element - mean_x) ** 2 for element in x)
    yy = sum((element - mean_y) ** 2 for element in y)
    xy = sum((p - mean_x) * (q - mean_y) for p, q in zip(x, y, strict=True))
    sign = 1 if xy >= 0 else -1
    return sign * float(xy * xy / (xx * yy)) ** 0.5


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
@pytest.mark.parametrize("samples", [1, 2, 9])
def test_correlation_is_over_all_samples(offset: float, samples: int) -> None:
    # Also where the mean is a million times the deviation.
    a = random(samples, 30, seed=1) * np.linspace(1, 3, samples, dtype=np.float32)[:, None]
    a = (a + offset).astype(np.float32)
    b = (a + random(samples, 30, seed=2) * np.float32(0.3)).astype(np.float32)
    result = quality(*zip(a, b, strict=True)).correlation
    assert result == pytest.approx(exact(a, b), rel=1e-9)


def test_correlation_has_a_sign_and_magnitude_up_to_one() -> None:
    a = random(4, 8)
    for factor, expected in ((2.0, 1.0), (-0.5, -1.0)):
        result = quality((a, a * np.float32(factor))).correlation
        assert result == pytest.approx(expected, abs=1e-12)
        assert abs(result) <= 1


@pytest.mark.parametrize("value", [0.0, 0.1, -3e38])
def test_correlation_is_undefined_for_constants(value: float) -> None:
    # The rounded mean of many 0.1 is not 0.1, which must not count as a deviation.
    constant, other = np.full((3, 7), value, np.float32), random(3, 7)
    assert quality((constant, other)).correlation is None
    assert quality((other, constant)).correlation is None
    assert quality((constant, constant)).correlation is None
    first = quality((constant, other), (constant + np.float32(1), other))
    assert (first.correlation is None) == (value == -3e38)


def test_output_sums_skip_nan_and_infinities_of_both_models() -> None:
    a, b = random(5, 6), random(5, 6, seed=1)
    finite = exact(a[1:], b[1:])
    a[0] = b[0] = [np.nan, np.inf, -np.inf, np.nan, np.inf, np.nan]
    assert quality((a, b)).correlation == pytest.approx(finite, rel=1e-12)
    b[0, 0] = 1
    assert quality((a, b)) == OutputQuality("y", "float", -np.inf, None, None)
    b[0, 0], b[0, 1] = np.nan, -np.inf
    assert quality((a, b), (a[1:], b[1:])).correlation is None


def test_correlation_is_undefined_on_overflow() -> None:
    a = np.array([1e200, -1e200, 3e200])
    assert quality((a, a)).correlation is None
    assert quality((a, a)).sqnr == np.inf
    assert quality((a, a * 1.5)).sqnr == -np.inf


def test_correlation_is_undefined_for_different_shapes() -> None:
    a = random(4, 3)
    result = quality((a, a), (a, a[:2]))
    assert result.correlation is None
    assert result.sqnr == 10 * np.log10(2)


def test_output_sums_of_empty_arrays_have_no_figures() -> None:
    none = np.zeros((0, 4), np.float32)
    assert quality((none, none)) == OutputQuality("y", "float", np.inf, None, None)
    assert quality((none.astype(int), none.astype(int))).agreement is None


def test_agreement_of_integers_is_by_element() -> None:
    a = np.arange(12)
    b = np.where(a < 3, -1, a)
    assert quality((a, b)) == OutputQuality("y", "exact", None, None, 0.75)
    assert quality((a > 5, a > 5)).agreement == 1


def test_is_float_accepts_narrow_floats() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = random(4, 5).astype(ml_dtypes.bfloat16)
    assert quality((a, a)).sqnr == np.inf
    assert not is_float(np.zeros(3, ml_dtypes.int4))
