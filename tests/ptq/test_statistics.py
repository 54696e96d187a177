# SPDX-License-Identifier: Apache-2.0
"""Counts and extremes: any split of the data gives the same bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pass_checks import random

from anybit import ModelError
from anybit.ptq.calibration.tensor_statistics import BINS, TensorStatistics, add_arrays


def of(*arrays: np.ndarray) -> TensorStatistics:
    found = TensorStatistics("x", 1)
    for array in arrays:
        found.add(array)
    return found


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(0, 99))
def test_any_split_gives_the_same(cuts: list[int], seed: int) -> None:
    x = random(31, 3, 2, seed=seed) * np.float32(10.0 ** (seed % 60 - 30))
    whole = of(x)
    merged = TensorStatistics("x", 1)
    for part in np.split(x, sorted(cuts)):
        merged.merge(of(part))
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert (merged.lowest, merged.highest) == (whole.lowest, whole.highest)
    assert merged.channels is not None
    assert whole.channels is not None
    np.testing.assert_array_equal(merged.channels, whole.channels)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_has_no_range(value: float) -> None:
    x = random(4, 3)
    x[2, 1] = value
    with pytest.raises(ModelError, match="'x' holds NaN or infinity"):
        of(x)


@pytest.mark.parametrize("merged", [False, True])
def test_channels_are_as_many_in_all_samples(merged: bool) -> None:
    some, more = random(4, 3), random(4, 5)
    with pytest.raises(ModelError, match="'x' has 3 channels in one sample and 5 in another: keep"):
        of(some).merge(of(more)) if merged else of(some, more)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_has_no_range_is_named_first_among_several(value: float) -> None:
    several = [TensorStatistics(name) for name in ("a", "b", "c")]
    arrays = [random(4), random(4), random(4)]
    arrays[1][3] = arrays[2][0] = value
    with pytest.raises(ModelError, match="'b' holds NaN or infinity"):
        add_arrays(several, arrays)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, -2])
def test_any_array_is_counted(dtype: type, axis: int | None) -> None:
    x = random(6, 4, 10).astype(dtype)
    every_other, turned = x[:, :, ::2], x.swapaxes(0, 2)
    for array in (x, every_other, turned, np.asfortranarray(x), np.broadcast_to(x[:1], x.shape)):
        found, plain = TensorStatistics("x", axis), np.ascontiguousarray(array, np.float32)
        assert found.add(array) == np.abs(plain).max()
        bins = plain.view(np.uint32).ravel() >> 17
        np.testing.assert_array_equal(found.counts, np.bincount(bins, minlength=BINS))
        assert (found.count, found.lowest, found.highest) == (
            plain.size,
            plain.min(),
            plain.max(),
        )
        if axis is None:
            assert found.channels is None
            continue
        others = tuple(each for each in range(3) if each != axis % 3)
        np.testing.assert_array_equal(found.channels, [plain.min(others), plain.max(others)])


@pytest.mark.filterwarnings("error")
def test_what_float32_does_not_hold_is_refused() -> None:
    with pytest.raises(ModelError, match="NaN or infinity"):
        TensorStatistics("x").add(np.array([1e300]))


def test_nothing_is_counted_of_nothing() -> None:
    found = TensorStatistics("x", 1)
    assert found.add(np.zeros((0, 3), np.float32)) == 0
    assert found.add(np.zeros((3, 0), np.float32)) == 0
    assert (found.count, found.channels) == (0, None)
    assert found.add(np.full((2, 3), -2, np.float32)) == 2
    assert found.channels is not None
    assert found.channels.shape == (2, 3)


def test_a_number_is_counted() -> None:
    found = TensorStatistics("x")
    assert found.add(np.asarray(-1.5, np.float32)) == 1.5
    assert (found.count, found.lowest, found.highest) == (1, -1.5, -1.5)


def test_merging_leaves_the_other_as_it_was() -> None:
    one, other = TensorStatistics("x", 1), of(random(4, 3))
    assert other.channels is not None
    before = other.channels.copy()
    one.merge(other)
    one.add(random(4, 3) * np.float32(100))
    np.testing.assert_array_equal(other.channels, before)
