# SPDX-License-Identifier: Apache-2.0
"""Quantization of arrays to grids, by the operators that compute the grids."""

from collections.abc import Callable

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.onnx.quantizers.grids import GridMatch, match_grid
from anybit.ops.block_quant import block_quant
from anybit.ops.grids import Call, Grid, IntegerGrid
from anybit.ptq.specs.dynamic_grid import DynamicGrid, DynamicIntegerGrid, MxGrid


def select_operator(grid: Grid) -> GridMatch:
    """Return the operator that quantizes to a grid, with the parameters of the call.

    Raises:
        TypeError: No operator computes the grid.
    """
    operator = match_grid(grid)
    if operator is None:
        raise TypeError(f"no operator quantizes to {grid}")
    return operator


def select_block_operator(grid: MxGrid) -> GridMatch:
    """Return the operator that quantizes blocks, with the attributes of the call."""
    name, size = str(grid.format), grid.format.size
    call = Call({}, {"format": name, "axis": grid.axis, "block_size": size})
    return GridMatch(block_quant.operator, call)  # type: ignore[attr-defined]


def make_rounding(grid: Grid | DynamicGrid) -> Callable[[Array, Array | None], Array]:
    """Return a function of an array and an output array that quantizes to a grid.

    The output array may be the array itself, or None for a new one; dynamic integers ignore it.
    """
    if isinstance(grid, DynamicIntegerGrid):
        return lambda x, out: quantize_to_grid(x, fit_dynamic_grid(x, grid))
    operator = select_block_operator(grid) if isinstance(grid, MxGrid) else select_operator(grid)
    function = operator.operator.function
    arguments = {**operator.call.parameters, **operator.call.attributes}
    return lambda x, out: np.asarray(function(x, **arguments, out=out))


def quantize_to_grid(x: Array, grid: Grid | DynamicGrid) -> Array:
    """Return the quantized values of an array, as the operator of the grid computes them."""
    return make_rounding(grid)(x, None)


def fit_dynamic_grid(x: Array, grid: DynamicIntegerGrid) -> IntegerGrid:
    """Return the grid of an array: the scale of each row, each step rounded to float32."""
    axes = grid.axes or None
    if not grid.asymmetric:
        width = np.abs(x).max(axis=axes, keepdims=True, initial=0)
        return grid.make_grid(_compute_scale(width, grid), np.zeros((), np.float32))
    low = x.min(axis=axes, keepdims=True, initial=0)
    with np.errstate(all="ignore"):
        width = x.max(axis=axes, keepdims=True, initial=0) - low
        scale = _compute_scale(width, grid)
        zeropt = np.rint(np.float32(grid.codes[0]) - low / scale)
    first, last = np.float32(grid.codes[0]), np.float32(grid.codes[-1])
    return grid.make_grid(scale, np.clip(zeropt, first, last))


def _compute_scale(width: Array, grid: DynamicIntegerGrid) -> Array:
    """Return the scale for the magnitude or the width of the range of each row."""
    limited = np.maximum(width, np.float32(grid.smallest_width))
    scale = np.minimum(limited / np.float32(grid.steps), np.float32(grid.largest_scale))
    return np.asarray(np.where(np.isinf(width), width, scale))
