# SPDX-License-Identifier: Apache-2.0
"""Operators of this package with the values of a grid."""

from dataclasses import dataclass, replace

import onnx_ir as ir

from anybit.onnx.graph.constants import Array
from anybit.onnx.operators.registry import make_attribute
from anybit.ops import OPERATORS, Operator
from anybit.ops.grids import Call, Grid, IntegerGrid


class Inexpressible(Exception):
    """A node has no equivalent of the target form."""


@dataclass(frozen=True)
class GridMatch:
    """A call of an operator that returns the values of a grid."""

    operator: Operator
    call: Call


def match_grid(grid: Grid) -> GridMatch | None:
    """Return the first operator that can return these values, with the call."""
    for operator in OPERATORS:
        call = operator.from_grid(grid) if operator.from_grid is not None else None
        if call is not None:
            return GridMatch(operator, call)
    return None


def match_containing_grid(grid: IntegerGrid) -> GridMatch | None:
    """Return the match with the smallest range that contains the grid."""
    for bits in range(1, 33):
        half = 2 ** (bits - 1)
        codes = range(-half, half) if grid.lowest < 0 else range(2 * half)
        if grid.lowest in codes and grid.highest in codes:
            return match_grid(replace(grid, codes=codes))
    return None


def list_arguments(match: GridMatch) -> list[Array | None]:
    """Return the parameters of a call in the order of the operator's inputs, without x."""
    names = [declared.name for declared in match.operator.inputs[1:]]
    return [match.call.parameters.get(name) for name in names]


def make_attributes(match: GridMatch) -> list[ir.Attr]:
    """Return all attributes of a call, including defaults."""
    return [
        make_attribute(attribute, match.call.attributes.get(attribute.name, attribute.default))
        for attribute in match.operator.attributes
    ]
