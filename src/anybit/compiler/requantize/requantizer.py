# SPDX-License-Identifier: Apache-2.0
"""Choice of the cheapest epilogue among those that are exact."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.compiler.lower.requantization import Requantization, get_zero_index
from anybit.compiler.partition.element_functions import ElementFunction, NodeChain
from anybit.compiler.partition.expressions import AccumulatorRoot, Expression
from anybit.compiler.program import program as p
from anybit.compiler.reason import UNSUPPORTED, Reason
from anybit.compiler.requantize.epilogue import requantize_exactly, requantize_piecewise
from anybit.compiler.requantize.float_replay import (
    add_all_risks,
    find_replay,
    guess_affine,
    replay_floats,
    requantize_by_replay,
)
from anybit.compiler.requantize.replay_steps import find_float_steps
from anybit.compiler.requantize.thresholds import find_highest_index, make_quantize_fields
from anybit.quant_types.grids import TensorGrid

_MANY_LEVELS = 16
"""Thresholds of more levels take more bytes than the weights of a small window do."""

_NEAR_ENTRIES = 2**16
"""Larger tables leave the inner caches: arithmetic is faster."""


class CachingRequantizer:
    """Finds epilogues for the expressions of one model, and remembers them between walks."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._epilogues: dict[Any, Requantization | Reason] = {}

    def epilogue(
        self, expression: Expression, root: AccumulatorRoot, grid: TensorGrid
    ) -> Requantization | Reason:
        """Return the cheapest epilogue from accumulators to codes."""
        key = root.node, expression.value, grid, root.source.grid
        if key not in self._epilogues:
            function = expression.function(self._model)
            self._epilogues[key] = requantize(function, root, grid)
        return self._epilogues[key]

    def float_epilogue(
        self, expression: Expression, root: AccumulatorRoot, *, open_functions: bool
    ) -> p.Arithmetic | None:
        """Return the epilogue from accumulators to float32; None if there is none."""
        try:
            function = expression.function(self._model)
            return replay_floats(function, root, open_functions=open_functions)
        except UNSUPPORTED:  # its nodes cannot be evaluated on single elements
            return None

    def float_steps(
        self, chain: NodeChain, channels: int, *, open_functions: bool
    ) -> tuple[p.Step, ...] | None:
        """Return the operations of elementwise nodes on float32; None if any is not defined."""
        try:
            return find_float_steps(chain, channels, open_functions=open_functions)
        except UNSUPPORTED:  # its nodes cannot be evaluated on single elements
            return None

    def quantizer(
        self, function: ElementFunction, grid: TensorGrid, channels: int
    ) -> tuple[int, dict[str, Any]] | Reason:
        """Return the number of codes and the fields of a Quantize of float32."""
        try:
            levels = find_highest_index(function, grid.index, channels) + 1
            return levels, make_quantize_fields(function, grid.index, levels, channels)
        except UNSUPPORTED as error:
            return Reason(str(error))


def requantize(
    function: ElementFunction, root: AccumulatorRoot, grid: TensorGrid
) -> Requantization | Reason:
    """Return the cheapest epilogue that equals a function, or why there is none."""
    sums = root.accumulators
    entries = sums.reach.longest * sums.scales.size
    bends = not function.monotone
    if bends and entries > _NEAR_ENTRIES and find_replay(function, root, grid) is None:
        pieces = requantize_piecewise(function, grid.index, grid.levels, sums, get_zero_index(grid))
        if pieces is not None:
            return pieces
    try:
        guess = guess_affine(function, root, grid)
        requantization = requantize_exactly(
            function, grid.index, grid.levels, sums, get_zero_index(grid), guess
        )
    except UNSUPPORTED as error:
        return requantize_by_replay(function, root, grid) or Reason(str(error))
    is_large = _is_large(requantization.epilogue, grid.levels)
    bends &= bool(np.any(sums.slack > 0))
    replay = (
        find_replay(function, root, grid, requantization.epilogue) if is_large or bends else None
    )
    if bends:
        requantization = add_all_risks(requantization, replay, sums, grid.levels)
    return (
        requantization
        if replay is None or not is_large
        else replace(requantization, epilogue=replay.epilogue)
    )


def _is_large(epilogue: p.Epilogue, levels: int) -> bool:
    """Return whether an epilogue takes more bytes per channel than a replay."""
    if isinstance(epilogue, p.Table):
        return epilogue.entries.size > _NEAR_ENTRIES
    return isinstance(epilogue, p.Thresholds) and levels > _MANY_LEVELS
