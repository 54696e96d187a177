# SPDX-License-Identifier: Apache-2.0
"""Between nodes and grids: which values a node of ours can give, and which node gives those."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.names import described
from anybit.onnx.operators.registry import attribute_of, keywords_of
from anybit.ops import OPERATORS, Operator
from anybit.ops.arrays import parameter
from anybit.ops.grids import Call, Grid, IntegerGrid

# Parameters are converted to the compute type of such an x.
_FLOAT32 = np.zeros((), np.float32)


class Inexpressible(Exception):
    """Why a node cannot be written in another form with the same values."""


@dataclass(frozen=True)
class Match:
    """A call of an operator that gives the values of a grid."""

    operator: Operator
    call: Call


def grid_of(node: ir.Node, operator: Operator) -> Grid:
    """The grid of a normalised node.

    Raises:
        Inexpressible: A parameter is computed at run time, or the values are those of no grid.
        ModelError: A parameter that the operator would refuse.
    """
    grid = None
    if operator.grid is not None:
        grid = operator.grid(Call(dict(_parameters(node, operator)), keywords_of(node, operator)))
    if grid is None:
        raise Inexpressible("its values are those of no single integer range or float format")
    return grid


def _parameters(node: ir.Node, operator: Operator) -> Iterator[tuple[str, Array]]:
    for declared, value in zip(operator.inputs[1:], node.inputs[1:], strict=False):
        if value is None:
            continue
        if not is_constant(value):
            raise Inexpressible(f"its {declared.name} is computed when the model runs")
        try:
            with np.errstate(all="ignore"):  # a float64 scale may overflow
                array = parameter(array_of(value), declared.domain, _FLOAT32, declared.name)
        except (TypeError, ValueError) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{described(node)}: {error}") from error
        yield declared.name, np.asarray(array)


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
        attribute_of(each, found.call.attributes.get(each.name, each.default))
        for each in found.operator.attributes
    ]
