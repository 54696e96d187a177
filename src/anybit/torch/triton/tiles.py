# SPDX-License-Identifier: Apache-2.0
"""Tiles of arrays that broadcast to one shape.

Axes that are contiguous to one another in every array are merged: a tensor with one scale becomes a
row, one with a scale per channel becomes rows. The fastest axis of the result is n, the next m, the
others are outer axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

TileSizes: TypeAlias = tuple[int, ...]

# Sixteen elements per thread: four transfers of 16 bytes of float32 are in flight at once, and
# expressions of parameters are computed once for all of them.
_TILE = 2048
_PER_WARP = 512
# Where parameters vary along n alone, tiles are as narrow as full memory speed allows, so that
# threads reuse the expressions of a column for the next row.
_NARROW = 128
# The largest ratio of threads to elements; above it smaller tiles are better.
_WASTE = 1.125


@dataclass(frozen=True)
class Axes:
    """The axes of all arrays after merging: outer axes, m (one element if there is none) and n."""

    sizes: TileSizes
    strides: tuple[TileSizes, ...]

    @property
    def outer(self) -> TileSizes:
        return self.sizes[:-2]


@dataclass(frozen=True)
class Tiles:
    """The tiles of the last two axes: their sizes (powers of two) and numbers."""

    tile_m: int
    tile_n: int
    blocks_m: int
    blocks_n: int
    uneven: bool

    @property
    def warps(self) -> int:
        return max(1, self.tile_m * self.tile_n // _PER_WARP)


def merge_axes(shape: TileSizes, strides: Sequence[TileSizes]) -> Axes:
    """Merge axes, in the order of the strides of the first array, as far as possible.

    `strides` has the strides of each array along the axes of `shape`, 0 where it is repeated.
    """
    order = sorted(range(len(shape)), key=lambda axis: -strides[0][axis])
    axes: list[tuple[int, list[int]]] = []
    for axis in order:
        size, steps = shape[axis], [array[axis] for array in strides]
        if size == 1:
            continue
        if axes and all(
            outer == step * size for outer, step in zip(axes[-1][1], steps, strict=True)
        ):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    while len(axes) < 2:
        axes.insert(0, (1, [0] * len(strides)))
    sizes, columns = zip(*axes, strict=True)
    return Axes(tuple(sizes), tuple(zip(*columns, strict=True)))


def make_tiles(axes: Axes) -> Tiles:
    """Return tiles that fit the last two axes with little waste."""
    size_m, size_n = axes.sizes[-2:]
    by_column = size_m > 1 and any(array[-1] and not array[-2] for array in axes.strides)
    tile_n = _find_power_within(size_n, _NARROW if by_column else _TILE)
    tile_m = min(_TILE // tile_n, _round_up_to_power(size_m))
    blocks_m, blocks_n = -(-size_m // tile_m), -(-size_n // tile_n)
    uneven = tile_m * blocks_m != size_m or tile_n * blocks_n != size_n
    return Tiles(tile_m, tile_n, blocks_m, blocks_n, uneven)


def get_broadcast_strides(shape: TileSizes, strides: TileSizes, target: TileSizes) -> TileSizes:
    """Return the strides of an array along the axes of the shape to which it broadcasts."""
    aligned = [0] * (len(target) - len(shape))
    return (
        *aligned,
        *(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)),
    )


def get_contiguous_strides(shape: TileSizes) -> TileSizes:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _round_up_to_power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _find_power_within(size: int, limit: int) -> int:
    """Return the largest power of two up to the limit that divides the size with little waste."""
    power = min(_round_up_to_power(size), limit)
    while power > 16 and -(-size // power) * power > _WASTE * size:
        power //= 2
    return power
