# SPDX-License-Identifier: Apache-2.0
"""Constant weights on their grids: per channel, the range with the least squared error.

A range that is cut off rounds what is inside it finer. Which is better is found by trying: shares
of the largest magnitude, for every channel by itself.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Coding, Grid, IntegerGrid
from anybit.quantization.placement import Weight
from anybit.quantization.schemes import Scheme, quantized
from anybit.words.grammar import Signs

_SHARES = tuple(1 - step / 20 for step in range(14))
# From this width on nothing is gained by cutting off.
_WIDE = 8


@dataclass(frozen=True)
class Rounded:
    """A constant weight as it is stored, with the grid that its quantizer rounds it to.

    Attributes:
        array: What is stored. It may lie on the grid already, and then need not be what was nearest
            to the float weight.
        grid: The grid.
    """

    array: Array
    grid: Grid

    @cached_property
    def values(self) -> Array:
        """What the quantizer gives."""
        return quantized(self.array, self.grid)


def nearest(array: Array, weight: Weight, scheme: Scheme) -> Rounded:
    """A weight that its quantizer rounds to the nearest values of its grid."""
    return Rounded(array, _grid(array, weight, scheme))


def _grid(array: Array, weight: Weight, scheme: Scheme) -> Grid:
    """The grid of a weight, with the least error of its values."""
    channels = weight.channels if scheme.per_channel else ()
    others = tuple(axis for axis in range(array.ndim) if axis not in channels)
    low, high = array.min(axis=others, keepdims=True), array.max(axis=others, keepdims=True)
    if isinstance(scheme.kind, Signs):
        # |x| is nearest to its mean (Rastegari et al., 2016, https://arxiv.org/abs/1603.05279).
        mean = np.abs(array).mean(axis=others, keepdims=True, dtype=np.float64)
        return _as_stored(scheme.grid(-mean, mean))
    best, least = np.ones_like(low, np.float64), np.full(low.shape, np.inf)
    for share in () if scheme.bits >= _WIDE else _SHARES:
        rounded = quantized(array, _as_stored(scheme.grid(low * share, high * share)))
        error = np.square(rounded - array, dtype=np.float64).sum(axis=others, keepdims=True)
        better = error < least
        best, least = np.where(better, share, best), np.where(better, error, least)
    return _as_stored(scheme.grid(low * best, high * best))


def _as_stored(grid: Grid) -> Grid:
    """A scale for all is a number, and not an array of the weight's rank."""
    if grid.scale.size > 1:
        return grid
    scale = grid.scale.reshape(())
    if isinstance(grid, IntegerGrid):
        return IntegerGrid(scale, grid.zeropt.reshape(()), grid.codes, grid.coding)
    return type(grid)(scale, grid.format, Coding.NEAREST)
