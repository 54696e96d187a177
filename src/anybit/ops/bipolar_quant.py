# SPDX-License-Identifier: Apache-2.0
from typing import Any

import numpy as np

from anybit.ops.arrays import get_namespace
from anybit.ops.domain import Floating, Scale
from anybit.ops.gradient import Gradient
from anybit.ops.grids import Call, Coding, Grid, IntegerGrid
from anybit.ops.operator import define_operator

_SIGNS = range(-1, 2, 2)


def _grid(call: Call) -> Grid:
    scale = call.parameters["scale"]
    return IntegerGrid(scale, np.zeros((), scale.dtype), _SIGNS, Coding.SIGN)


def _from_grid(grid: Grid) -> Call | None:
    is_sign = isinstance(grid, IntegerGrid) and grid.codes == _SIGNS and not grid.zeropt.any()
    return Call({"scale": grid.scale}, {}) if is_sign else None


def _partials(x: Any, scale: Any) -> tuple[Any, ...]:
    xp = get_namespace(x)
    one, none = xp.ones_like(x), xp.zeros_like(x)
    inside = xp.abs(x) <= xp.abs(scale)
    return xp.where(inside, one, none), xp.where(x >= 0, one, -one)


@define_operator(
    "BipolarQuant",
    gradient=Gradient(("x", "scale"), _partials),
    grid=_grid,
    from_grid=_from_grid,
)
def bipolar_quant(x: Floating, scale: Scale, *, out: Any = None) -> Any:
    """Quantize x to one bit: +scale where x >= 0, -scale elsewhere.

    Args:
        x: float32, float64, float16 or bfloat16, any shape.
        scale: The magnitude of the result; broadcasts to x without enlarging it.
        out: An array of x's shape and dtype to write to; x itself is allowed.

    Returns:
        An array of x's shape and dtype. Both zeros give +scale, NaN gives -scale.

    Raises:
        ValueError: A scale that does not broadcast to x, an `out` of another shape or dtype.
        TypeError: An x or a scale of a dtype that is not real.

    Source: QONNX operator BipolarQuant, version 1.

    >>> bipolar_quant([0.3, -0.0, -7.0], 2.0)
    array([ 2.,  2., -2.])
    """
    xp = get_namespace(x)
    return xp.where(x >= 0, xp.ones_like(x), -xp.ones_like(x)) * scale
