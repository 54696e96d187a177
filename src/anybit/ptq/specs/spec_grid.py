# SPDX-License-Identifier: Apache-2.0
"""Grids of quantizer specs: scale and zero-point for a range of values."""

from dataclasses import replace

import numpy as np

from anybit.formats import LARGEST_FLOAT32, FloatFormat
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Coding, FloatGrid, Grid, IntegerGrid
from anybit.ops.int_quant import get_codes
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.quant_types.block_formats import BlockFormat
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import BipolarFormat

# Products of a weight and an input are normal numbers of float32, unless inputs have scales below
# 2^-36: `compile` needs them. Pruned channels of trained networks have weights like 1e-38.
_SMALLEST_SCALE = 2.0**-90
# Ranges up to this magnitude have no grid values beyond float32.
_SAFE_MAGNITUDE = 2.0**126


def make_grid(spec: QuantSpec, lowest: Array, highest: Array) -> Grid:
    """Return the grid of a spec for a range, or for one range per channel.

    A range is widened to include 0, which is on the grid. The range [0, 0] gets the scale 1. Near
    the largest float32 number scales are reduced, so that values saturate instead of overflowing.

    Args:
        spec: A spec whose format is not a block format.
        lowest, highest: Bounds of the ranges, in one shape, which the scale has, too.

    Raises:
        TypeError: The spec has a block format: its scales follow from `generate_block_grids`.
    """
    low, high = np.minimum(lowest, 0.0), np.maximum(highest, 0.0)
    if np.max(np.maximum(-low, high), initial=0.0) <= _SAFE_MAGNITUDE:
        return _fit_grid(spec, low, high)
    # The width of such a range overflows float32.
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return _avoid_overflow(spec, _fit_grid(spec, low, high), low, high)


def _fit_grid(spec: QuantSpec, low: Array, high: Array) -> Grid:
    """Return the grid whose codes just cover ranges that include 0."""
    magnitude, zero = np.maximum(-low, high), np.zeros((), np.float32)
    match spec.format:
        case BlockFormat():
            raise TypeError(f"{spec.text!r}: block formats have a grid for each block")
        case FloatFormat() as number_format:
            return FloatGrid(_limit_scale(spec, magnitude / number_format.largest), number_format)
        case BipolarFormat():
            return IntegerGrid(_limit_scale(spec, magnitude), zero, range(-1, 2, 2), Coding.SIGN)
        case integers:
            codes = get_codes(integers.bits, integers.signed, spec.narrow)
    if not spec.asymmetric:
        scale = _limit_scale(spec, np.maximum(-low / max(-codes[0], 1), high / codes[-1]))
        return IntegerGrid(scale, zero, codes)
    scale = _limit_scale(spec, (high - low) / (len(codes) - 1))
    zeropt = np.clip(np.rint(codes[0] - low / scale), codes[0], codes[-1])
    return IntegerGrid(scale, zeropt.astype(np.float32), codes)


def _limit_scale(spec: QuantSpec, scale: Array) -> Array:
    """Return scales in float32: neither 0 nor infinite, and powers of two if the spec asks."""
    largest = LARGEST_FLOAT32
    if spec.power_of_two:
        largest = 2.0**127
        with np.errstate(divide="ignore"):
            scale = np.exp2(np.ceil(np.log2(scale)))
    limited = np.clip(scale, _SMALLEST_SCALE, largest)
    return np.where(scale == 0, 1.0, limited).astype(np.float32)


def _avoid_overflow(spec: QuantSpec, grid: Grid, low: Array, high: Array) -> Grid:
    """Return the grid with smaller scales where quantized values become infinite.

    Rounding can move a number of the range beyond the largest float32 number. With scales that are
    powers of two only numbers of the range count: such a grid extends up to twice as far as the
    range, and half of the codes would be lost otherwise.
    """
    ends = np.stack([low, high])
    if not spec.power_of_two:
        ends = np.broadcast_to([[-np.inf], [np.inf]], (2, low.size)).reshape(ends.shape)
    ends = np.clip(ends, -LARGEST_FLOAT32, LARGEST_FLOAT32).astype(np.float32)
    while True:
        with np.errstate(over="ignore"):
            infinite = np.isinf([quantize_to_grid(end, grid) for end in ends]).any(axis=0)
        if not infinite.any():
            return grid
        smaller = grid.scale / 2 if spec.power_of_two else _get_largest_scale(grid)
        scale = np.where(infinite, smaller, grid.scale).astype(np.float32)
        if spec.power_of_two and spec.asymmetric and isinstance(grid, IntegerGrid):
            # Clip both ends of the range alike.
            zeropt = np.rint(grid.lowest - low * (len(grid.codes) - 1) / (high - low))
            zeropt = np.where(infinite, zeropt, grid.zeropt).astype(np.float32)
            grid = replace(grid, zeropt=zeropt)
        grid = replace(grid, scale=scale)


def _get_largest_scale(grid: Grid) -> Array:
    """Return the largest scale at which all values of a grid are finite."""
    if isinstance(grid, IntegerGrid):
        steps = np.maximum(grid.highest - grid.zeropt, grid.zeropt - grid.lowest)
    else:
        steps = np.full_like(grid.scale, grid.format.largest)
    steps = steps.astype(np.float64)
    scale = (LARGEST_FLOAT32 / steps).astype(np.float32)
    below = np.nextafter(scale, np.float32(0))
    return np.asarray(np.where(scale * steps > LARGEST_FLOAT32, below, scale))
