# SPDX-License-Identifier: Apache-2.0
"""Tests of native histograms, extremes and sums of squares against NumPy and plain Python."""

import threading
from typing import Any

import numpy as np
import pytest
from pass_checks import random

from anybit._native import count_values, squared_difference

BINS = 1 << 15
SHAPES = [(1,), (7,), (5, 3), (2, 1, 4), (3, 33), (2, 257, 1), (4, 3, 5), (2, 3, 31), (2, 2, 100)]


def values_of(*shape: int, seed: int = 0) -> np.ndarray:
    """Return values of all magnitudes, with runs of zeros of both signs."""
    values = random(*shape, seed=seed) * np.float32(10.0 ** (seed % 70 - 35))
    values.ravel()[::3] = 0
    values.ravel()[1::5] = -0.0
    values.ravel()[len(values.ravel()) // 2 :][:9] = -3.5
    return values


def empty_extremes(channels: int) -> np.ndarray:
    return np.repeat(np.array([[np.inf], [-np.inf]], np.float32), channels, axis=1)


def expected_extremes(x: np.ndarray, axis: int) -> np.ndarray:
    others = tuple(i for i in range(x.ndim) if i != axis)
    return np.array([x.min(axis=others), x.max(axis=others)]) + np.float32(0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", [0, 11, 69])
def test_count_values_matches_numpy(shape: tuple[int, ...], seed: int) -> None:
    x = values_of(*shape, seed=seed)
    axes: list[int | None] = [None, *range(x.ndim)]
    counts = [np.zeros(BINS, np.int64) for _ in axes]
    channel_extremes = [None if axis is None else empty_extremes(x.shape[axis]) for axis in axes]
    pairs = count_values([x] * len(axes), axes, counts, channel_extremes)
    for axis, own, extremes, pair in zip(axes, counts, channel_extremes, pairs, strict=True):
        np.testing.assert_array_equal(own, np.bincount(x.view(np.uint32).ravel() >> 17, None, BINS))
        assert pair == (x.min(), x.max())
        if axis is not None:
            assert extremes is not None
            assert extremes.tobytes() == expected_extremes(x, axis).tobytes()


def test_count_values_widens_earlier_extremes() -> None:
    x, y = values_of(6, 4, seed=36), values_of(6, 4, seed=35)
    counts, extremes_so_far = np.zeros(BINS, np.int64), empty_extremes(4)
    assert count_values([x], [1], [counts], [extremes_so_far]) == [(x.min(), x.max())]
    assert count_values([y], [1], [counts], [extremes_so_far]) == [(y.min(), y.max())]
    assert extremes_so_far.tobytes() == expected_extremes(np.concatenate([x, y]), 1).tobytes()
    assert counts.sum() == x.size + y.size


def test_count_values_stores_zeros_as_positive() -> None:
    for zeros in ([0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]):
        for axis in (0, 1):
            x = np.array([zeros], np.float32)
            extremes_so_far = empty_extremes(x.shape[axis])
            ((low, high),) = count_values(
                [x], [axis], [np.zeros(BINS, np.int64)], [extremes_so_far]
            )
            assert not np.signbit([low, high, *extremes_so_far.ravel()]).any()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 30, 31, 32, 99])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_count_values_skips_arrays_that_are_not_finite(
    value: float, place: int, axis: int | None
) -> None:
    x = random(1, 100)
    x[0, place] = value
    counts, extremes_so_far = (
        np.zeros(BINS, np.int64),
        None if axis is None else empty_extremes(x.shape[axis]),
    )
    before = None if extremes_so_far is None else extremes_so_far.copy()
    ((low, high),) = count_values([x], [axis], [counts], [extremes_so_far])
    assert np.isnan([low, high]).all()
    assert not counts.any()
    assert extremes_so_far is None or extremes_so_far.tobytes() == before.tobytes()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)], ids=str)
def test_count_values_of_empty_arrays(shape: tuple[int, ...]) -> None:
    counts = np.zeros(BINS, np.int64)
    assert count_values([np.zeros(shape, np.float32)], [None], [counts], [None]) == [
        (np.inf, -np.inf)
    ]
    assert not counts.any()
    assert count_values([], [], [], []) == []


def test_count_values_runs_in_threads() -> None:
    x = [values_of(64, 500, seed=seed) for seed in range(8)]
    counts = [np.zeros(BINS, np.int64) for _ in x]
    tasks = [
        threading.Thread(
            target=count_values, args=([values] * 20, [None] * 20, [own] * 20, [None] * 20)
        )
        for values, own in zip(x, counts, strict=True)
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    for values, own in zip(x, counts, strict=True):
        once = np.bincount(values.view(np.uint32).ravel() >> 17, None, BINS)
        np.testing.assert_array_equal(own, 20 * once)


def valid_arguments() -> list[Any]:
    return [[random(2, 3)], [1], [np.zeros(BINS, np.int64)], [empty_extremes(3)]]


@pytest.mark.parametrize(
    ("place", "item", "message"),
    [
        (0, random(4, 3).astype(np.float64), "an array must be a contiguous array of float32"),
        (0, random(4, 3).astype(np.float16), "an array must be a contiguous array of float32"),
        (0, random(3, 2).T, "must be contiguous"),
        (0, "text", "must be contiguous"),
        (1, 2, "an axis must be one of the array"),
        (1, -1, "an axis must be one of the array"),
        (1, 2**70, "too large|too big|OverflowError"),
        (1, "1", "integer"),
        (2, np.zeros(BINS - 1, np.int64), "counts must be of every bin"),
        (2, np.zeros(BINS, np.int32), "counts must be a contiguous array of int64"),
        (2, np.zeros(2 * BINS, np.int64)[::2], "must be contiguous"),
        (2, np.frombuffer(bytes(8 * BINS), np.int64), "counts writable"),
        (3, empty_extremes(2), "extremes must be two of each channel"),
        (3, None, "extremes must be contiguous"),
        (3, empty_extremes(3).astype(np.float64), "extremes must be a contiguous array of float32"),
    ],
)
def test_count_values_rejects_bad_arguments(place: int, item: object, message: str) -> None:
    lists = valid_arguments()
    count_values(*lists)
    lists[place][0] = item
    with pytest.raises((TypeError, ValueError, OverflowError), match=message):
        count_values(*lists)


def test_count_values_rejects_lists_of_other_lengths() -> None:
    lists = valid_arguments()
    lists[2] = []
    with pytest.raises(ValueError, match="as many items"):
        count_values(*lists)
    with pytest.raises(TypeError, match="four lists"):
        count_values((), [], [], [])  # type: ignore[arg-type]


def pairwise_sum(terms: list[float]) -> float:
    """Return the sum in the order that `squared_difference` documents."""
    size = len(terms)
    if size > 128:
        half = size // 2 // 8 * 8
        return pairwise_sum(terms[:half]) + pairwise_sum(terms[half:])
    whole = size // 8 * 8
    lanes = [0.0] * 8
    for at in range(0, whole, 8):
        lanes = [lane + term for lane, term in zip(lanes, terms[at : at + 8], strict=True)]
    a, b, c, d, e, f, g, h = lanes
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for term in terms[whole:]:
        total += term
    return total


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 127, 128, 129, 136, 257, 1000, 12_345])
def test_squared_difference_matches_pairwise_sum(size: int) -> None:
    a, b = random(size) * np.float32(1e3), random(size, seed=1)
    difference = (a - b).astype(np.float64)
    assert squared_difference(a, b) == pairwise_sum((difference * difference).tolist())
    np.testing.assert_allclose(squared_difference(a, b), np.square(difference).sum(), rtol=1e-13)


def test_squared_difference_of_infinities_and_nan() -> None:
    a, b = np.array([1, np.inf], np.float32), np.array([1, 2], np.float32)
    assert squared_difference(a, b) == np.inf
    assert np.isnan(squared_difference(a, a))


@pytest.mark.parametrize(
    "other", [random(5), random(4).astype(np.float64), random(8)[::2], [1.0] * 4]
)
def test_squared_difference_rejects_bad_arguments(other: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"arrays must|the second must"):
        squared_difference(random(4), other)
