# SPDX-License-Identifier: Apache-2.0
"""Properties of arrays: floats, and equality of bits."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from anybit.metrics.arrays import same_bits

TYPES = [np.float32, np.float64, np.longdouble, np.int8, np.bool_, ml_dtypes.bfloat16, np.uint64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 4)])
def test_same_bits_is_true_for_copies(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    assert same_bits(array, array.copy())
    if array.size:
        other = array.copy()
        other.reshape(-1)[-1] = 0
        assert not same_bits(array, other)


def test_same_bits_compares_bits_not_values() -> None:
    assert not same_bits(np.array([0.0]), np.array([-0.0]))
    nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert same_bits(nan, nan.copy())
    assert not same_bits(nan, nan[::-1])


def test_same_bits_is_false_for_other_shapes_and_dtypes() -> None:
    assert not same_bits(np.zeros((1, 4)), np.zeros(4))
    assert not same_bits(np.zeros(4, np.float32), np.zeros(4, np.int32))


def test_same_bits_ignores_the_memory_layout() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert same_bits(array, np.asfortranarray(array))
    assert same_bits(array[:, ::2], array[:, ::2].copy())
