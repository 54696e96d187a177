# SPDX-License-Identifier: Apache-2.0
"""Counts and extremes: any split of the data gives the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pass_checks import random

from anybit import ModelError
from anybit.ptq.calibration.tensor_statistics import BINS, TensorStatistics, add_arrays


def collect(*arrays: np.ndarray) -> TensorStatistics:
    statistics = TensorStatistics("x", 1)
    for array in arrays:
        statistics.add(array)
    return statistics


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(0, 99))
def test_tensor_statistics_do_not_depend_on_the_split(cuts: list[int], seed: int) -> None:
    x = random(31, 3, 2, seed=seed) * np.float32(10.0 ** (seed % 60 - 30))
    whole = collect(x)
    merged = TensorStatistics("x", 1)
    for part in np.split(x, sorted(cuts)):
        merged.merge(collect(part))
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert (merged.lowest, merged.highest) == (whole.lowest, whole.highest)
    assert merged.channels is not None
    assert whole.channels is not None
    np.testing.assert_array_equal(merged.channels, whole.channels)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_tensor_statistics_reject_values_that_are_not_finite(value: float) -> None:
    x = random(4, 3)
    x[2, 1] = value
    with pytest.raises(ModelError, match="'x' holds NaN or infinity"):
        collect(x)


@pytest.mark.parametrize("merged", [False, True])
def test_tensor_statistics_reject_another_number_of_channels(merged: bool) -> None:
    some, more = random(4, 3), random(4, 5)
    with pytest.raises(ModelError, match="'x' has 3 channels in one sample and 5 in another: keep"):
        collect(some).merge(collect(more)) if merged else collect(some, more)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_add_arrays_names_the_first_tensor_that_is_not_finite(value: float) -> None:
    several = [TensorStatistics(name) for name in ("a", "b", "c")]
    arrays = [random(4), random(4), random(4)]
    arrays[1][3] = arrays[2][0] = value
    with pytest.raises(ModelError, match="'b' holds NaN or infinity"):
        add_arrays(several, arrays)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, -2])
def test_tensor_statistics_count_any_array(dtype: type, axis: int | None) -> None:
    x = random(6, 4, 10).astype(dtype)
    every_other, turned = x[:, :, ::2], x.swapaxes(0, 2)
    for array in (x, every_other, turned, np.asfortranarray(x), np.broadcast_to(x[:1], x.shape)):
        statistics, plain = TensorStatistics("x", axis), np.ascontiguousarray(array, np.float32)
        assert statistics.add(array) == np.abs(plain).max()
        bins = plain.view(np.uint32).ravel() >> 17
        np.testing.assert_array_equal(statistics.counts, np.bincount(bins, minlength=BINS))
        assert (statistics.count, statistics.lowest, statistics.highest) == (
            plain.size,
            plain.min(),
            plain.max(),
        )
        if axis is None:
            assert statistics.channels is None
            continue
        others = tuple(other for other in range(3) if other != axis % 3)
        np.testing.assert_array_equal(statistics.channels, [plain.min(others), plain.max(others)])


@pytest.mark.filterwarnings("error")
def test_tensor_statistics_reject_values_beyond_float32() -> None:
    with pytest.raises(ModelError, match="NaN or infinity"):
        TensorStatistics("x").add(np.array([1e300]))


def test_tensor_statistics_ignore_empty_arrays() -> None:
    statistics = TensorStatistics("x", 1)
    assert statistics.add(np.zeros((0, 3), np.float32)) == 0
    assert statistics.add(np.zeros((3, 0), np.float32)) == 0
    assert (statistics.count, statistics.channels) == (0, None)
    assert statistics.add(np.full((2, 3), -2, np.float32)) == 2
    assert statistics.channels is not None
    assert statistics.channels.shape == (2, 3)


def test_tensor_statistics_count_scalars() -> None:
    statistics = TensorStatistics("x")
    assert statistics.add(np.asarray(-1.5, np.float32)) == 1.5
    assert (statistics.count, statistics.lowest, statistics.highest) == (1, -1.5, -1.5)


def test_merge_does_not_change_its_argument() -> None:
    one, other = TensorStatistics("x", 1), collect(random(4, 3))
    assert other.channels is not None
    before = other.channels.copy()
    one.merge(other)
    one.add(random(4, 3) * np.float32(100))
    np.testing.assert_array_equal(other.channels, before)
