# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Any

import numpy as np

from anybit.ops.arrays import get_namespace
from anybit.ops.domain import BitWidth, Floating, InBitWidth, InScale, Scale, ZeroPoint
from anybit.ops.gradient import Gradient
from anybit.ops.grids import Call, Coding, Grid, IntegerGrid, get_single_integer
from anybit.ops.int_quant import get_codes, get_integer_range, get_range_derivatives
from anybit.ops.operator import define_operator
from anybit.ops.powers import floor_log2, power_of_two, times_power_of_two
from anybit.ops.remark import Remark
from anybit.ops.rounding import round_to_integer


def _grid(call: Call) -> Grid | None:
    bitwidth = get_single_integer(call.parameters["out_bitwidth"])
    if bitwidth is None or bitwidth > 32:
        return None
    codes = get_codes(bitwidth, bool(call.attributes["signed"]), bool(call.attributes["narrow"]))
    out_scale = call.parameters["out_scale"]
    with np.errstate(all="ignore"):
        factor = _round_to_power_of_two(np.asarray(out_scale / call.parameters["scale"]))
        zeropt = np.asarray(call.parameters["zeropt"] / factor)
    return IntegerGrid(out_scale, zeropt, codes, Coding.OTHER)


def _remarks(call: Call) -> Iterator[Remark]:
    parameters = call.parameters
    if "scale" not in parameters or "out_scale" not in parameters:
        return
    with np.errstate(all="ignore"):
        scale, out_scale = (np.float32(parameters[name]) for name in ("scale", "out_scale"))
        ratio = np.asarray(out_scale / scale)
        factor = _round_to_power_of_two(ratio)
        zeropt = np.asarray(np.float32(parameters.get("zeropt", 0)) / factor)
    unusable = ratio[np.isnan(factor)]
    if unusable.size:
        yield Remark(
            "scale-ratio",
            f"out_scale / scale is {unusable[0]:g}, so that every result is NaN",
            "correct the two scales: their ratio must be finite and > 0",
            error=True,
        )
        return
    off = ratio != factor
    if off.any():
        yield Remark(
            "scale-ratio",
            f"out_scale / scale is {ratio[off][0]:g}, not a power of two; codes are divided by "
            f"{factor[off][0]:g}, so that the result has another slope than the input",
            "make out_scale a power of two times scale",
        )
    if (zeropt != np.rint(zeropt)).any():
        yield Remark(
            "zero-point-fraction",
            f"zero-point / 2^K is {zeropt[zeropt != np.rint(zeropt)][0]:g}, not an integer",
            "use zero-point 0 before a Trunc",
        )


def _partials(
    x: Any,
    scale: Any,
    zeropt: Any,
    in_bitwidth: Any,
    out_scale: Any,
    out_bitwidth: Any,
    *,
    signed: bool,
    narrow: bool,
    rounding_mode: str,
) -> tuple[Any, ...]:
    del in_bitwidth
    xp = get_namespace(x)
    lowest, highest = get_integer_range(out_bitwidth, signed, narrow, x.dtype)
    lowest_by_bit, highest_by_bit = get_range_derivatives(out_bitwidth, signed, x.dtype)
    # The power of two counts as a constant.
    factor = _round_to_power_of_two(out_scale / scale)
    quotient = x / scale
    y = round_to_integer(quotient + zeropt, "ROUND") / factor
    above, below = y > highest, y < lowest

    def select_part(inside: Any, if_above: Any, if_below: Any) -> Any:
        return xp.where(above, if_above, xp.where(below, if_below, inside))

    none = xp.zeros_like(y)
    slope = out_scale / scale / factor
    zeropt_out = zeropt / factor
    return (
        select_part(slope, none, none),
        select_part(-quotient * slope, none, none),
        select_part(none, -out_scale / factor, -out_scale / factor),
        select_part(
            round_to_integer(y, rounding_mode) - zeropt_out,
            highest - zeropt_out,
            lowest - zeropt_out,
        ),
        select_part(none, highest_by_bit * out_scale, lowest_by_bit * out_scale),
    )


@define_operator(
    "Trunc",
    version=2,
    aliases=("TruncQuant",),
    gradient=Gradient(("x", "scale", "zeropt", "out_scale", "out_bitwidth"), _partials),
    grid=_grid,
    remarks=_remarks,
)
def trunc(
    x: Floating,
    scale: InScale,
    zeropt: ZeroPoint,
    in_bitwidth: InBitWidth,
    out_scale: Scale,
    out_bitwidth: BitWidth,
    *,
    signed: bool = True,
    narrow: bool = False,
    rounding_mode: str = "FLOOR",
    out: Any = None,
) -> Any:
    """Remove low bits of integers stored as floats: requantize to a coarser scale.

        y = round_half_even(x / scale + zeropt)
        t = 2^(the integer nearest to log2(out_scale / scale))
        result = (round(clip(y / t, lowest, highest)) - zeropt / t) * out_scale

    The range is the same as in `int_quant` for out_bitwidth.

    Args:
        x: float32, float64, float16 or bfloat16, any shape; multiples of scale. Computed in
            float32 (float64 for float64).
        scale, zeropt: Those of x. Like all parameters they broadcast to x without enlarging it.
        in_bitwidth: The bits of x, an integer >= 1. It does not change the result.
        out_scale: The scale of the result; the result is NaN unless out_scale / scale is
            finite and > 0.
        out_bitwidth: The bits of the result, an integer >= 1.
        signed, narrow: The range of the result, as in `int_quant`.
        rounding_mode: A mode of `RoundingMode`, in any case.
        out: An array of x's shape and dtype to write to; x itself is allowed.

    Returns:
        An array of x's shape and dtype. NaN stays NaN; infinities saturate.

    Raises:
        ValueError: A width that is not an integer >= 1, an unknown rounding mode, a parameter that
            does not broadcast to x, an `out` of another shape or dtype.
        TypeError: An x or a parameter of a dtype that is not real.

    Source: QONNX operator Trunc, version 2 (six inputs); see `trunc_v1` for five.

    >>> trunc([7.0, -7.0, 100.0], 1.0, 0.0, 8, 4.0, 4)
    array([ 4., -8., 28.])
    """
    del in_bitwidth  # validated only
    xp = get_namespace(x)
    lowest, highest = get_integer_range(out_bitwidth, signed, narrow, x.dtype)
    factor = _round_to_power_of_two(out_scale / scale)
    y = round_to_integer(x / scale + zeropt, "ROUND") / factor
    y = xp.where(y > highest, highest, y)
    y = xp.where(y < lowest, lowest, y)
    return (round_to_integer(y, rounding_mode) - zeropt / factor) * out_scale


def _round_to_power_of_two(ratio: Any) -> Any:
    """Return 2^K for the integer K nearest to log2(ratio); NaN unless ratio is finite and > 0."""
    xp = get_namespace(ratio)
    exponent = floor_log2(ratio)
    # The largest float below sqrt(2), in float32 and in float64.
    above_half = times_power_of_two(ratio, -exponent) > 1.4142135623730949
    power = power_of_two(xp.where(above_half, exponent + 1, exponent), ratio.dtype)
    usable = xp.isfinite(ratio) & (ratio > 0)
    return xp.where(usable, power, xp.full_like(ratio, float("nan")))
