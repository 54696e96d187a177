# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Any

import numpy as np

from anybit.formats import FloatFormat
from anybit.ops.arrays import get_integer_limit, get_namespace
from anybit.ops.domain import (
    ExponentBias,
    ExponentBitWidth,
    Floating,
    Limit,
    MantissaBitWidth,
    Scale,
)
from anybit.ops.gradient import Gradient
from anybit.ops.grids import Call, Coding, FloatGrid, Grid, get_single_integer
from anybit.ops.operator import define_operator
from anybit.ops.powers import floor_log2, power_of_two, times_power_of_two
from anybit.ops.remark import Remark
from anybit.ops.rounding import RoundingMode, round_to_integer

# More mantissa bits than any compute type has: a finer grid has the same effect.
_PLENTY = 60


def _grid(call: Call) -> Grid | None:
    parameters = call.parameters
    e, m, bias = (
        get_single_integer(parameters[name])
        for name in ("exponent_bitwidth", "mantissa_bitwidth", "exponent_bias")
    )
    limits = np.unique(parameters.get("max_val", np.inf))
    if e is None or m is None or bias is None or limits.size != 1 or not call.attributes["signed"]:
        return None
    try:
        full = FloatFormat(e, m, bias)
        limited = FloatFormat(e, m, bias, min(full.max_val, float(limits[0])))
    except ValueError:  # a limit off the grid, or numbers beyond float64
        return None
    mode = RoundingMode.parse(str(call.attributes["rounding_mode"]))
    coding = Coding.NEAREST if mode is RoundingMode.ROUND else Coding.OTHER
    return FloatGrid(parameters["scale"], limited, coding)


def _from_grid(grid: Grid) -> Call | None:
    if not isinstance(grid, FloatGrid) or grid.coding is not Coding.NEAREST:
        return None
    names = ("exponent_bitwidth", "mantissa_bitwidth", "exponent_bias", "max_val")
    values = (np.asarray(value, np.float32) for value in grid.format)
    parameters = {"scale": grid.scale, **dict(zip(names, values, strict=True))}
    return Call(parameters, {"signed": True, "rounding_mode": "ROUND"})


def _remarks(call: Call) -> Iterator[Remark]:
    if not call.attributes["saturation"]:
        yield Remark(
            "no-saturation",
            "saturation=0 does not change the result, which is clipped; QONNX 1.0.0 gives "
            "infinities or NaN beyond the largest value",
            "set saturation=1 if clipping is meant",
        )
    if not call.attributes["has_subnormal"]:
        yield Remark(
            "no-subnormals",
            "has_subnormal=0 does not change the result, which has subnormal numbers",
            "set has_subnormal=1, or expect hardware without them to differ near 0",
        )
    yield from _generate_limit_remarks(call)


def _generate_limit_remarks(call: Call) -> Iterator[Remark]:
    e, m, bias = (
        get_single_integer(call.parameters.get(name, []))
        for name in ("exponent_bitwidth", "mantissa_bitwidth", "exponent_bias")
    )
    limits = np.unique(np.asarray(call.parameters.get("max_val", []), np.float64))
    if e is None or m is None or bias is None or not limits.size:
        return
    try:
        full = FloatFormat(e, m, bias)
    except ValueError:  # numbers beyond float64, or a width beyond any use
        return
    limit = float(limits.max())
    if full.max_val < limit < np.inf:
        yield Remark(
            "limit-not-reached",
            f"max_val {limit:g} is above {full.max_val:g}, the largest value of {full}",
            f"set max_val to {full.max_val:g}, or correct the widths and the bias",
        )
    off_grid = [limit for limit in limits if limit < full.max_val and float(limit) not in full]
    if off_grid:
        yield Remark(
            "limit-off-grid",
            f"max_val {off_grid[0]:g} is not a value of {full}, but results are clipped to it",
            "set max_val to a value of the format",
        )


def _partials(
    x: Any,
    scale: Any,
    exponent_bitwidth: Any,
    mantissa_bitwidth: Any,
    exponent_bias: Any,
    max_val: Any = None,
    *,
    signed: bool,
    rounding_mode: str,
    **_facts: bool,
) -> tuple[Any, ...]:
    xp = get_namespace(x)
    y = x / scale
    lowest, highest, limited = _clip(
        exponent_bitwidth, mantissa_bitwidth, exponent_bias, max_val, signed, x.dtype
    )
    q = _round_to_grid(y, mantissa_bitwidth, exponent_bias, rounding_mode)
    above, below = q > highest, q < lowest
    none = xp.zeros_like(y)
    by_limit = xp.where(limited, scale, none)
    return (
        xp.where(above | below, none, xp.ones_like(y)),
        xp.where(above, highest, xp.where(below, lowest, q - y)),
        xp.where(above, by_limit, xp.where(below & signed, -by_limit, none)),
    )


@define_operator(
    "FloatQuant",
    attribute_names={"has_infinity": ("has_infinity", "has_inf")},
    gradient=Gradient(("x", "scale", "max_val"), _partials),
    grid=_grid,
    from_grid=_from_grid,
    remarks=_remarks,
)
def float_quant(
    x: Floating,
    scale: Scale,
    exponent_bitwidth: ExponentBitWidth,
    mantissa_bitwidth: MantissaBitWidth,
    exponent_bias: ExponentBias,
    max_val: Limit | None = None,
    *,
    signed: bool = True,
    rounding_mode: str = "ROUND",
    has_infinity: bool = False,
    has_nan: bool = False,
    has_subnormal: bool = True,
    saturation: bool = True,
    out: Any = None,
) -> Any:
    """Quantize x to a floating-point format of any exponent and mantissa width.

        y = x / scale
        q = y rounded to mantissa_bitwidth bits after the leading one, and to the spacing of
            the smallest normal number, 2^(1 - exponent_bias), below it
        result = clip(q, -largest, largest) * scale          0 .. largest if not signed

    with largest = min((2 - 2^-m) * 2^(2^e - 1 - bias), max_val).

    Args:
        x: float32, float64, float16 or bfloat16, any shape. Computed in float32 (float64 for
            float64).
        scale: The value of 1.0 of the format. Like all parameters it broadcasts to x without
            enlarging it, so that even the format may differ per channel.
        exponent_bitwidth: e, an integer >= 1.
        mantissa_bitwidth: m, an integer >= 0, without the leading one.
        exponent_bias: Any integer; 2^(e-1) - 1 is usual.
        max_val: The largest value of the format, >= 0, where codes are reserved (448 for
            float8_e4m3fn). None stands for no reserved codes. `anybit.formats` has the usual ones.
        signed: Whether negative values exist (an extension of the operator).
        rounding_mode: A mode of `RoundingMode`, in any case.
        has_infinity, has_nan, has_subnormal, saturation: Facts about the format for other tools.
            They do not change the result.
        out: An array of x's shape and dtype to write to; x itself is allowed.

    Returns:
        An array of x's shape and dtype. NaN stays NaN, and an infinite x / scale gives NaN. The
        sign of a zero and of a negative underflow is kept.

    Raises:
        ValueError: A width or bias that is not an integer in its range, a NaN or negative max_val,
            an unknown rounding mode, a parameter that does not broadcast to x, an `out` of another
            shape or dtype.
        TypeError: An x or a parameter of a dtype that is not real.

    Source: QONNX operator FloatQuant, version 1. The exponent is exact here; the sample
    implementation takes it from a rounded logarithm (see deviations).

    >>> float_quant([0.9, 17.0, 1e9], 1.0, 4, 3, 7, 448.0)
    array([  0.875,  16.   , 448.   ])
    """
    xp = get_namespace(x)
    lowest, highest, _ = _clip(
        exponent_bitwidth, mantissa_bitwidth, exponent_bias, max_val, signed, x.dtype
    )
    q = _round_to_grid(x / scale, mantissa_bitwidth, exponent_bias, rounding_mode)
    q = xp.where(q > highest, highest, q)
    q = xp.where(q < lowest, lowest, q)
    return q * scale


def _clip(
    exponent_bitwidth: Any,
    mantissa_bitwidth: Any,
    exponent_bias: Any,
    max_val: Any,
    signed: bool,
    dtype: Any,
) -> tuple[Any, Any, Any]:
    """Return the lowest and highest value of the format, and whether max_val limits it."""
    largest = _get_largest_value(exponent_bitwidth, mantissa_bitwidth, exponent_bias, dtype)
    xp = get_namespace(largest)
    limit = largest if max_val is None else max_val
    limited = limit < largest
    highest = xp.where(limited, limit, largest)
    return (-highest if signed else xp.zeros_like(highest)), highest, limited


def _round_to_grid(y: Any, mantissa_bitwidth: Any, exponent_bias: Any, mode: str) -> Any:
    """Round y to that many mantissa bits, with even spacing below 2^(1 - bias).

    Infinities become NaN. The range is not limited.
    """
    xp = get_namespace(y)
    exponent = floor_log2(y)
    step = xp.maximum(
        exponent - xp.clip(mantissa_bitwidth, 0, _PLENTY),
        # In the subnormal range, the spacing is that of the smallest normal number.
        xp.maximum(1 - exponent_bias - mantissa_bitwidth, exponent - _PLENTY),
    )
    steps = times_power_of_two(y, -step)
    # Far below the grid the product could underflow to 0, which would break UP and CEIL.
    quarter = xp.where(y < 0, xp.full_like(y, -0.25), xp.full_like(y, 0.25))
    steps = xp.where((y != 0) & (exponent < step - 2), quarter, steps)
    rounded = times_power_of_two(round_to_integer(steps, mode), step)
    return xp.where(xp.isfinite(y), rounded, xp.full_like(y, float("nan")))


def _get_largest_value(
    exponent_bitwidth: Any, mantissa_bitwidth: Any, exponent_bias: Any, dtype: Any
) -> Any:
    """Return (2 - 2^-m) * 2^(2^e - 1 - bias): the largest value without reserved codes."""
    xp = get_namespace(exponent_bitwidth)
    codes = xp.bitwise_left_shift(
        xp.ones_like(exponent_bitwidth), xp.clip(exponent_bitwidth, 0, get_integer_limit(xp))
    )
    significand = 2 - power_of_two(-mantissa_bitwidth, dtype)
    return times_power_of_two(significand, codes - 1 - exponent_bias)
