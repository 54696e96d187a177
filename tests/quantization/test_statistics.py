# SPDX-License-Identifier: Apache-2.0
"""Counts and extremes: of any split the same bits, and quantiles within one bin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from passes import random

from anybit import ModelError
from anybit.quantization.statistics import Statistics


def of(*arrays: np.ndarray) -> Statistics:
    found = Statistics("x", 1)
    for array in arrays:
        found.add(array)
    return found


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(0, 99))
def test_any_split_gives_the_same(cuts: list[int], seed: int) -> None:
    x = random(31, 3, 2, seed=seed) * np.float32(10.0 ** (seed % 60 - 30))
    whole = of(x)
    merged = Statistics("x", 1)
    for part in np.split(x, sorted(cuts)):
        merged.merge(of(part))
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert (merged.lowest, merged.highest) == (whole.lowest, whole.highest)
    assert merged.channels is not None
    assert whole.channels is not None
    np.testing.assert_array_equal(merged.channels, whole.channels)


@pytest.mark.parametrize("share", [0.0, 1e-3, 0.01, 0.2])
def test_quantiles(share: float) -> None:
    x = random(200_000, 2) * np.float32(3) + np.float32(1)
    ((low, high),) = of(x).quantiles(share)
    wanted = np.quantile(x.astype(np.float64), [share, 1 - share])
    # A bin is as wide as a 64th of its octave; the range is never narrower than that wanted.
    assert wanted[0] - abs(wanted[0]) / 32 - 1e-6 <= low <= wanted[0] + 1e-4
    assert wanted[1] - 1e-4 <= high <= wanted[1] + abs(wanted[1]) / 32 + 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_has_no_range(value: float) -> None:
    x = random(4, 3)
    x[2, 1] = value
    with pytest.raises(ModelError, match="'x' holds NaN or infinity"):
        of(x)
