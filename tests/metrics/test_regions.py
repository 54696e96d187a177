# SPDX-License-Identifier: Apache-2.0
"""Regions after data movement, against the coordinates of all elements."""

from itertools import product
from math import prod

import numpy as np
import onnx_ir as ir
import pytest

from anybit.metrics.regions import TensorRegion, crop_regions, map_kept_axes, split_regions

SHAPES = [
    shape
    for rank in (1, 2, 3, 4)
    for shape in product((1, 2, 3, 4, 6), repeat=rank)
    if prod(shape) == 12
]


def value(*shape: int | str | None) -> ir.Value:
    return ir.Value(name="x", shape=ir.Shape(shape))


@pytest.mark.parametrize("old", SHAPES, ids=str)
def test_map_kept_axes_keeps_coordinates(old: tuple[int, ...]) -> None:
    for new in SHAPES:
        result = map_kept_axes(value(*old), value(*new))
        assert result is not None
        old_indices, new_indices = np.indices(old), np.indices(new)
        same = {
            (at, to)
            for at, to in product(range(len(old)), range(len(new)))
            if old[at] == new[to]
            and np.array_equal(old_indices[at].ravel(), new_indices[to].ravel())
        }
        assert set(result.items()) <= same
        # All axes with more than one element are kept.
        assert {at for at, _ in same if old[at] > 1} <= result.keys()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (("n", 3, 4), ("n", 12), {0: 0}),
        (("n", 3, "h", "w"), ("n", 3, "p"), {0: 0, 1: 1}),
        (("n", 3, 85, "h"), ("n", "p", 85), {0: 0}),
        (("n", "p", 85), ("n", 3, "q", 85), {0: 0, 2: 3}),
        (("n", 4), (None, 4), {1: 1}),
        ((None, 4), (None, 2, 2), {}),
        ((None, None), (None, None), {}),
        ((0, 4), (0, 2, 2), {0: 0}),
    ],
)
def test_map_kept_axes_matches_no_unknown_sizes(
    old: tuple[int | str | None, ...],
    new: tuple[int | str | None, ...],
    expected: dict[int, int],
) -> None:
    assert map_kept_axes(value(*old), value(*new)) == expected


def test_map_kept_axes_is_none_for_unknown_or_large_ranks() -> None:
    assert map_kept_axes(ir.Value(name="x"), value(2)) is None
    assert map_kept_axes(value(*[1] * 65), value(1)) is None
    huge = 2**62
    assert map_kept_axes(value(huge, huge, 3), value(huge, huge, 3)) == {0: 0, 1: 1, 2: 2}


def test_regions_are_cropped_and_split() -> None:
    left, right = TensorRegion({1: (0, 4)}, 1, "distribution"), TensorRegion({1: (4, 9)})
    assert crop_regions((left, right), 1, (0, 4), 9) == (TensorRegion({}, 1, "distribution"),)
    assert crop_regions((left, right), 1, (2, 6), 9) == (
        TensorRegion({1: (0, 2)}),
        TensorRegion({1: (2, 4)}),
    )
    assert crop_regions((left, right), 0, (1, 2), 5) == (left, right)
    assert crop_regions((left,), 1, (6, 6), 9) == ()
    assert split_regions((left,), 1, (0, 4), 9) == (left,)
    assert split_regions((left,), 1, (2,), 9) == (
        TensorRegion({1: (0, 2)}),
        TensorRegion({1: (2, 4)}),
    )
    divided = split_regions((left,), 0, (3, 1), 5)
    assert [region.bounds[0] for region in divided] == [(0, 1), (1, 3), (3, 5)]
    assert {region.kind for region in divided} == {"distribution"}
