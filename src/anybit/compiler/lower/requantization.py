# SPDX-License-Identifier: Apache-2.0
"""Requantization as the lowering asks for it."""

from dataclasses import dataclass
from typing import Any, Protocol

from anybit.compiler.partition.element_functions import ElementFunction, NodeChain
from anybit.compiler.partition.expressions import AccumulatorRoot, Expression
from anybit.compiler.program import program as p
from anybit.compiler.reason import Reason
from anybit.quant_types.grids import TensorGrid


@dataclass(frozen=True, eq=False)
class Requantization:
    """An epilogue that equals a function of accumulators everywhere.

    Attributes:
        epilogue: The epilogue.
        steps: Number of accumulators, in all channels, at which the index changes.
        risks: Pairs of channel and accumulator whose float32 sum may round to another index.
        more_risks: Whether there may be more, farther from the steps than these.
    """

    epilogue: p.Epilogue
    steps: int
    risks: tuple[tuple[int, int], ...] = ()
    more_risks: bool = False


class Requantizer(Protocol):
    """Finds integer code for float functions of single elements."""

    def epilogue(
        self, expression: Expression, root: AccumulatorRoot, grid: TensorGrid
    ) -> Requantization | Reason:
        """Return the epilogue from accumulators to codes."""

    def float_epilogue(
        self, expression: Expression, root: AccumulatorRoot, *, open_functions: bool
    ) -> p.Arithmetic | None:
        """Return the epilogue from accumulators to float32; None if there is none."""

    def float_steps(
        self, chain: NodeChain, channels: int, *, open_functions: bool
    ) -> tuple[p.Step, ...] | None:
        """Return the operations of elementwise nodes on float32; None if any is not defined."""

    def quantizer(
        self, function: ElementFunction, grid: TensorGrid, channels: int
    ) -> tuple[int, dict[str, Any]] | Reason:
        """Return the number of codes and the fields of a Quantize of float32."""


def get_zero_index(grid: TensorGrid) -> int:
    """Return the index that code 0 has or would have, within the bounds of a shift."""
    return max(-p.MOST_SHIFT, min(-round(grid.lowest / grid.step), p.MOST_SHIFT))
