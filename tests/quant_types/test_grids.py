# SPDX-License-Identifier: Apache-2.0
"""Grids of tensors: codes, values and rounding."""

import numpy as np
import pytest

from anybit.quant_types.grids import OffGridError, TensorGrid

GRID = TensorGrid(0.1, -6, 3, 5)


def test_tensor_grid_lists_codes_and_values() -> None:
    assert GRID.codes.tolist() == [-6, -3, 0, 3, 6]
    assert GRID.highest == 6
    expected = np.array([-6, -3, 0, 3, 6], np.float32) * np.float32(0.1)
    np.testing.assert_array_equal(GRID.values, expected)
    assert GRID.values.dtype == np.float32


@pytest.mark.parametrize("scale", [0.1, -0.1, 2.0**-20, 3e30])
def test_tensor_grid_index_inverts_values(scale: float) -> None:
    grid = TensorGrid(scale, -6, 3, 5)
    assert grid.index(grid.values).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.05, 0.1, 0.9])
def test_tensor_grid_index_rejects_other_values(value: float) -> None:
    """Refuse NaN, infinity, fractions of codes, and codes between steps or beyond the ends."""
    with pytest.raises(OffGridError):
        GRID.index(np.array([value], np.float32))


def test_tensor_grid_rounds_to_nearest_value() -> None:
    values = np.array([-9, -0.44, 0.14, 0.16, 9, np.nan], np.float32)
    expected = [*GRID.values[[0, 1, 2, 3, 4]], np.nan]
    np.testing.assert_array_equal(GRID.round(values), expected)
