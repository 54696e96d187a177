# SPDX-License-Identifier: Apache-2.0
"""Which node of ours gives the values of a grid."""

from dataclasses import dataclass, replace

import onnx_ir as ir

from anybit.onnx.graph.constants import Array
from anybit.onnx.operators.registry import stored_attribute
from anybit.ops import OPERATORS, Operator
from anybit.ops.grids import Call, Grid, IntegerGrid


class Inexpressible(Exception):
    """Why a node cannot be written in another form with the same values."""


@dataclass(frozen=True)
class Match:
    """A call of an operator that gives the values of a grid."""

    operator: Operator
    call: Call


def match(grid: Grid) -> Match | None:
    """The first operator that can be called to give these values, and the call."""
    for operator in OPERATORS:
        call = operator.from_grid(grid) if operator.from_grid is not None else None
        if call is not None:
            return Match(operator, call)
    return None


def containing(grid: IntegerGrid) -> Match | None:
    """As `match`, for the smallest range that holds that of the grid."""
    for bits in range(1, 33):
        half = 2 ** (bits - 1)
        codes = range(-half, half) if grid.lowest < 0 else range(2 * half)
        if grid.lowest in codes and grid.highest in codes:
            return match(replace(grid, codes=codes))
    return None


def arguments_of(found: Match) -> list[Array | None]:
    """The parameters of a call in the order of the operator's inputs, x left out."""
    names = [declared.name for declared in found.operator.inputs[1:]]
    return [found.call.parameters.get(name) for name in names]


def attributes_of(found: Match) -> list[ir.Attr]:
    """All attributes of a call, defaults written out."""
    return [
        stored_attribute(each, found.call.attributes.get(each.name, each.default))
        for each in found.operator.attributes
    ]
