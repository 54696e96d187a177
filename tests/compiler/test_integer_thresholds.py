# SPDX-License-Identifier: Apache-2.0
"""Keys of float32 numbers compare like these, and quantizers of keys equal those of floats."""

import numpy as np
import pytest

from anybit.compiler.backends.integer_thresholds import (
    HIGHEST_KEY,
    order_floats,
    order_thresholds,
    unorder_floats,
)
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import run

TINY, LARGEST = np.float32(1e-45), np.finfo(np.float32).max
EDGES = np.float32([0, TINY, np.finfo(np.float32).tiny, 1, 1.5, LARGEST, np.inf])
EDGES = np.concatenate(
    [EDGES, np.nextafter(EDGES, np.float32(0)), np.nextafter(EDGES[:5], LARGEST)]
)
EDGES = np.sort(np.concatenate([EDGES, -EDGES]))
NONE = np.zeros(0, np.float32)


def test_keys_compare_as_numbers():
    random = np.random.default_rng(0).integers(0, 2**32, 500, np.uint32).view(np.float32)
    x = np.concatenate([EDGES, random[~np.isnan(random)]])
    keys = order_floats(x)
    np.testing.assert_array_equal(x[:, None] >= x, keys[:, None] >= keys)
    np.testing.assert_array_equal(unorder_floats(keys), x)
    nan = np.array([np.nan, -np.nan], np.float32)
    assert np.abs(keys).max() == HIGHEST_KEY < np.abs(order_floats(nan)).min()


def quantize(at, levels, x):
    """Return the indices that the reference gives, from a program with this quantizer."""
    channels = x.shape[1]
    port = p.Port(np.array([channels], np.int32), 1, 1, channels, 0)
    values = np.arange(levels, dtype=np.float32)
    tensor = p.Tensor(1, 1, channels, 0, 1, levels)
    return run(p.Program((port,), (port,), (tensor,), (at, p.Dequantize(0, 0, values))), [x])[0]


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("numbers", ["edges", "random", "none"])
@pytest.mark.parametrize("scaled", ["", "factors", "offsets", "factors and offsets"])
def test_ordered_thresholds_equal_thresholds_of_floats(scaled, numbers, rows):
    random = np.random.default_rng(rows)
    rows = 1 if scaled else rows
    count = {"edges": EDGES.size, "random": 15, "none": 0}[numbers]
    thresholds = np.sort(random.normal(0, 3, (rows, count)).astype(np.float32))
    if numbers == "edges":
        thresholds[:] = EDGES
    directions = random.choice([-1, 1], rows).astype(np.int32)
    ends = np.float32([1, -1, -TINY, 1e-30, LARGEST])
    factors, offsets = (np.append(ends, random.normal(0, 1, 4)).astype(np.float32) for _ in "ab")
    factors = factors if "factors" in scaled else NONE
    offsets = offsets if "offsets" in scaled else NONE
    at = p.Quantize(0, 0, directions, thresholds.ravel(), 3, factors, offsets)
    keys, signs = order_thresholds(at, count + 1)

    with np.errstate(all="ignore"):  # numbers next to thresholds
        starts = np.subtract.outer(thresholds.ravel(), offsets if offsets.size else [0])
        starts = np.divide.outer(starts, factors if factors.size else [1]).ravel()
        x = np.concatenate([EDGES, starts]).astype(np.float32).view(np.int32)
    x = (x[:, None] + np.arange(-2, 3, dtype=np.int32)).view(np.float32)
    x = np.repeat(x[~np.isnan(x)][:, None], 9, axis=1)
    reached = (order_floats(x)[..., None] >= keys).sum(axis=-1)
    index = np.where(signs > 0, reached, count - reached)
    np.testing.assert_array_equal(index, quantize(at, count + 1, x))


def test_equal_rows_of_thresholds_are_one():
    one = np.ones(3, np.int32)
    at = p.Quantize(0, 0, one, np.zeros(3, np.float32), -1)
    scaled = p.Quantize(0, 0, one[:1], np.ones(1, np.float32), -1, np.full(3, 2, np.float32))
    for quantizer in (at, scaled):
        assert [rows.shape[0] for rows in order_thresholds(quantizer, 2)] == [1, 1]
