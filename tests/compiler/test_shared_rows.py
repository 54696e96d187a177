# SPDX-License-Identifier: Apache-2.0
"""Equal tables of channels are stored once."""

import numpy as np
import pytest

from anybit.compiler.backends.shared_rows import share_rows


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_shared_rows_give_rows_of_all_channels(dtype):
    rows = np.random.default_rng(0).integers(0, 4, (60, 2)).astype(dtype)
    different, places = share_rows(rows)
    np.testing.assert_array_equal(different[places], rows)
    assert len(different) == len(np.unique(rows, axis=0)) < len(rows)
    assert list(dict.fromkeys(places)) == list(range(len(different)))


def test_zeros_of_both_signs_are_different_rows():
    assert len(share_rows(np.float32([[0.0], [-0.0], [0.0]]))[0]) == 2
