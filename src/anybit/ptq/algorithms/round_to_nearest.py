# SPDX-License-Identifier: Apache-2.0
"""Rounding of constant weights to the nearest values of a grid.

A smaller range clips the largest weights and rounds all others more finely. The range is the share
of the largest magnitude that gives the least squared error, channel by channel.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Grid, IntegerGrid
from anybit.ptq.config import WeightConfig
from anybit.ptq.graph.blocks import BlockLayout, choose_block_layout
from anybit.ptq.graph.targets import TargetNode, WeightInput
from anybit.ptq.specs.block_scales import generate_block_grids
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.ptq.specs.spec_grid import make_grid
from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import BipolarFormat


@dataclass(frozen=True)
class QuantizedWeight:
    """A constant weight of a file, with the grid of its quantizer.

    Attributes:
        array: The stored array: float weights, or values of the grid, which need not be the nearest
            ones.
        grid: The grid; its scale has the shape of the array if there is one per block.
        blocks: The layout of its blocks; None without blocks.
    """

    array: Array
    grid: Grid
    blocks: BlockLayout | None = None

    @cached_property
    def values(self) -> Array:
        """The dequantized values."""
        return quantize_to_grid(self.array, self.grid)

    @property
    def in_blocks(self) -> tuple[Array, Grid]:
        """The array and the grid, split into blocks if there are several."""
        if self.blocks is None:
            return self.array, self.grid
        if self.blocks.count == 1:
            return self.array, _map_grid(self.blocks.get_first_block, self.grid)
        return self.blocks.split(self.array), _map_grid(self.blocks.gather, self.grid)


def check_weights(layers: Sequence[TargetNode]) -> None:
    """Raise ModelError for weights with NaN or infinity."""
    for layer in layers:
        for weight, array in layer.constants:
            value = layer.node.inputs[weight.index]
            if not np.isfinite(array).all():
                raise ModelError(
                    f"{value and value.name!r}, a weight of {layer.name!r}, holds NaN or infinity"
                )


def count_weight_bytes(array: Array, weight: WeightInput, spec: QuantSpec | None) -> int:
    """Return the bytes of a weight: its codes, and the scales of its blocks."""
    if spec is None:
        return array.nbytes
    bits = array.size * spec.bits
    if spec.block_size:
        blocks = choose_block_layout(array.shape, weight, spec.block_size)
        bits += math.prod(blocks.split_shape) // blocks.size * spec.scale_bits
    return math.ceil(bits / 8)


def round_to_nearest(
    array: Array,
    weight: WeightInput,
    spec: QuantSpec,
    config: WeightConfig,
    compute_costs: Callable[[], Array] | None = None,
) -> QuantizedWeight:
    """Round a weight to the nearest values of a grid.

    The grid has the least error of its values, channel by channel or block by block.

    Args:
        array: The weight in floats.
        weight: Its place among the inputs of its layer.
        spec: Its spec.
        config: The candidates of its range.
        compute_costs: Returns the cost of an error in each element; None for 1. It is called only
            if there are several grids.
    """
    if spec.block_size:
        blocks = choose_block_layout(array.shape, weight, spec.block_size)
        costs = None if compute_costs is None else lambda: blocks.split(compute_costs())
        grid = _select_grids(blocks.split(array), costs, (blocks.axis,), spec, config)
        return QuantizedWeight(array, _map_grid(blocks.expand, grid), blocks)
    channels = weight.channel_axes if spec.per_channel else ()
    others = tuple(axis for axis in range(array.ndim) if axis not in channels)
    grid = _select_grids(array, compute_costs, others, spec, config)
    return QuantizedWeight(array, _squeeze_grid(grid))


def _select_grids(
    array: Array,
    compute_costs: Callable[[], Array] | None,
    others: tuple[int, ...],
    spec: QuantSpec,
    config: WeightConfig,
) -> Grid:
    """Return the grid with the least squared error along some axes, for each of the rest."""
    tried = list(_generate_grids(array, others, spec, config))
    if len(tried) == 1:
        return tried[0]
    costs = np.ones(()) if compute_costs is None else compute_costs()

    def compute_errors(grid: Grid) -> Array:
        with np.errstate(all="ignore"):  # infinite where float32 ends
            noise = quantize_to_grid(array, _squeeze_grid(grid)) - array
            squares = np.square(noise, dtype=np.float64) * costs
            return np.asarray(squares.sum(axis=others, keepdims=True))

    best, least = tried[0], compute_errors(tried[0])
    for grid in tried[1:]:
        errors = compute_errors(grid)
        best = _merge_grids(errors < least, grid, best)
        least = np.minimum(errors, least)
    return best


def _generate_grids(
    array: Array, others: tuple[int, ...], spec: QuantSpec, config: WeightConfig
) -> Iterator[Grid]:
    low, high = array.min(axis=others, keepdims=True), array.max(axis=others, keepdims=True)
    if isinstance(spec.format, BlockFormat):
        yield from generate_block_grids(np.maximum(-low, high), spec.format, spec.scale_rule)
    elif isinstance(spec.format, BipolarFormat):
        # |x| is nearest to its mean (Rastegari et al., 2016, https://arxiv.org/abs/1603.05279).
        mean = np.abs(array).mean(axis=others, keepdims=True, dtype=np.float64)
        yield make_grid(spec, -mean, mean)
    else:
        for share in (1.0,) if spec.bits >= config.wide_bits else config.shares:
            yield make_grid(spec, low * share, high * share)


def _merge_grids(mask: Array, one: Grid, other: Grid) -> Grid:
    """Return a grid that is `one` where the mask is true, and `other` elsewhere."""
    scale = np.where(mask, one.scale, other.scale)
    if isinstance(other, IntegerGrid):
        return replace(other, scale=scale, zeropt=np.where(mask, one.zeropt, other.zeropt))
    return replace(other, scale=scale)


def _map_grid(function: Callable[[Array], Array], grid: Grid) -> Grid:
    """Apply a function to the scale and zero-point of a grid; scalar zero-points stay."""
    if isinstance(grid, IntegerGrid) and grid.zeropt.ndim:
        grid = replace(grid, zeropt=function(grid.zeropt))
    return replace(grid, scale=function(grid.scale))


def _squeeze_grid(grid: Grid) -> Grid:
    """Return the grid with a scalar scale, if it has a single one."""
    if grid.scale.size > 1:
        return grid
    return _map_grid(lambda numbers: numbers.reshape(()), grid)
