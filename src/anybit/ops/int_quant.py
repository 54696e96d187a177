# SPDX-License-Identifier: Apache-2.0
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from anybit.ops.arrays import get_namespace
from anybit.ops.domain import BitWidth, Floating, Scale, ZeroPoint
from anybit.ops.gradient import Gradient
from anybit.ops.grids import Call, Coding, Grid, IntegerGrid, get_single_integer
from anybit.ops.operator import define_operator
from anybit.ops.powers import power_of_two
from anybit.ops.remark import Remark
from anybit.ops.rounding import RoundingMode, round_to_integer


def get_codes(bitwidth: int, signed: bool, narrow: bool) -> range:
    """Return the range of codes of a bit width."""
    if signed:
        return range(-(2 ** (bitwidth - 1)) + narrow, 2 ** (bitwidth - 1))
    return range(2**bitwidth - narrow)


def _grid(call: Call) -> Grid | None:
    bitwidth = get_single_integer(call.parameters["bitwidth"])
    # Wider ones have bounds that float32 rounds, and no native type; other widths are refused.
    if bitwidth is None or not 1 <= bitwidth <= 32 or bitwidth != int(bitwidth):
        return None
    attributes = call.attributes
    codes = get_codes(bitwidth, bool(attributes["signed"]), bool(attributes["narrow"]))
    mode = RoundingMode.parse(str(attributes["rounding_mode"]))
    coding = Coding.NEAREST if mode is RoundingMode.ROUND else Coding.OTHER
    parameters = call.parameters
    return IntegerGrid(parameters["scale"], parameters["zeropt"], codes, coding)


def _from_grid(grid: Grid) -> Call | None:
    if not isinstance(grid, IntegerGrid) or grid.coding is not Coding.NEAREST:
        return None
    bitwidth, signed = grid.bits, grid.lowest < 0
    for narrow in (False, True):
        if bitwidth <= 32 and get_codes(bitwidth, signed, narrow) == grid.codes:
            parameters = {
                "scale": grid.scale,
                "zeropt": grid.zeropt,
                "bitwidth": np.asarray(bitwidth, np.float32),
            }
            attributes = {"signed": signed, "narrow": narrow, "rounding_mode": "ROUND"}
            return Call(parameters, attributes)
    return None


def _remarks(call: Call) -> Iterator[Remark]:
    signed, narrow = bool(call.attributes["signed"]), bool(call.attributes["narrow"])
    widths = np.asarray(call.parameters.get("bitwidth", []), np.float64)
    if signed and (widths == 1).any():
        yield Remark(
            "one-signed-bit",
            "one signed bit gives the integers -1 and 0; QONNX 1.0.0 runs it as -1 and +1",
            "use BipolarQuant for -1 and +1, signed=0 for 0 and 1",
        )
    # The highest code, 2^b - 1 or 2^(b-1) - 1, is a float32 as long as it has 24 bits.
    if widths.size and widths.max() > 24 + signed:
        yield Remark(
            "wide-codes",
            f"bitwidth {widths.max():g}: float32 rounds the highest code up to a power of two",
            "clip again where codes become integers, or use at most 24 bits",
            beyond=2**24,
        )
    bitwidth = get_single_integer(widths)
    if bitwidth is not None and bitwidth <= 32 and "zeropt" in call.parameters:
        yield from generate_zeropt_remarks(
            call.parameters["zeropt"], get_codes(bitwidth, signed, narrow)
        )


def generate_zeropt_remarks(zeropt: Any, codes: range) -> Iterator[Remark]:
    """Yield remarks on the zero-point of these integers."""
    values = np.asarray(zeropt, np.float64)
    fractions = values[values != np.rint(values)]
    if fractions.size:
        yield Remark(
            "zero-point-fraction",
            f"zero-point {fractions[0]:g} is not an integer",
            "round it: integer hardware and types cannot hold it",
        )
    outside = values[(values < codes[0]) | (values > codes[-1])]
    if outside.size:
        yield Remark(
            "zero-point-off-range",
            f"zero-point {outside[0]:g} is not among the codes {codes[0]} .. {codes[-1]}, "
            "so that 0 is not a value of the result",
            "move it into the range, or check signed and bitwidth",
        )


def _partials(
    x: Any,
    scale: Any,
    zeropt: Any,
    bitwidth: Any,
    *,
    signed: bool,
    narrow: bool,
    rounding_mode: str,
) -> tuple[Any, ...]:
    xp = get_namespace(x)
    lowest, highest = get_integer_range(bitwidth, signed, narrow, x.dtype)
    lowest_by_bit, highest_by_bit = get_range_derivatives(bitwidth, signed, x.dtype)
    quotient = x / scale
    y = quotient + zeropt
    above, below = y > highest, y < lowest

    def select_part(inside: Any, if_above: Any, if_below: Any) -> Any:
        return xp.where(above, if_above, xp.where(below, if_below, inside))

    none, one = xp.zeros_like(y), xp.ones_like(y)
    return (
        select_part(one, none, none),
        select_part(
            (round_to_integer(y, rounding_mode) - zeropt) - quotient,
            highest - zeropt,
            lowest - zeropt,
        ),
        select_part(none, -scale, -scale),
        select_part(none, highest_by_bit * scale, lowest_by_bit * scale),
    )


@define_operator(
    "IntQuant",
    aliases=("Quant",),
    gradient=Gradient(("x", "scale", "zeropt", "bitwidth"), _partials),
    grid=_grid,
    from_grid=_from_grid,
    remarks=_remarks,
)
def int_quant(
    x: Floating,
    scale: Scale,
    zeropt: ZeroPoint,
    bitwidth: BitWidth,
    *,
    signed: bool = True,
    narrow: bool = False,
    rounding_mode: str = "ROUND",
    out: Any = None,
) -> Any:
    """Quantize x to integers of any width and dequantize them.

        y = clip(x / scale + zeropt, lowest, highest)
        result = (round(y) - zeropt) * scale

    The range is -2^(b-1) .. 2^(b-1) - 1 if signed, else 0 .. 2^b - 1. `narrow` removes one value:
    the lowest if signed, else the highest.

    Args:
        x: float32, float64, float16 or bfloat16, any shape. Computed in float32
            (float64 for float64).
        scale: The size of one step. Like all parameters it broadcasts to x without enlarging it:
            per-tensor, per-channel and per-element. 0, negative, NaN and inf are legal.
        zeropt: The integer that stands for 0; fractions are legal.
        bitwidth: The number of bits b, an integer >= 1 of any dtype. b = 1 signed gives {-1, 0};
            for +-1 see `bipolar_quant`.
        signed: Whether one bit is the sign.
        narrow: Whether to remove that value.
        rounding_mode: A mode of `RoundingMode`, in any case.
        out: An array of x's shape and dtype to write to; x itself is allowed.

    Returns:
        An array of x's shape and dtype. NaN stays NaN; infinities saturate; 0 / 0 is NaN. The
        clip comes before the rounding. From 2^24 on float32 bounds are themselves rounded: b = 25
        unsigned saturates at 33554432.

    Raises:
        ValueError: A width that is not an integer >= 1, an unknown rounding mode, a parameter that
            does not broadcast to x, an `out` of another shape or dtype.
        TypeError: An x or a parameter of a dtype that is not real.

    Source: QONNX operator IntQuant, version 1 (formerly Quant).

    >>> int_quant([0.5, 1.5, 99.0, -99.0], 0.5, 0, 4)
    array([ 0.5,  1.5,  3.5, -4. ])
    """
    xp = get_namespace(x)
    lowest, highest = get_integer_range(bitwidth, signed, narrow, x.dtype)
    y = x / scale + zeropt
    y = xp.where(y > highest, highest, y)
    y = xp.where(y < lowest, lowest, y)
    return (round_to_integer(y, rounding_mode) - zeropt) * scale


def get_integer_range(bitwidth: Any, signed: bool, narrow: bool, dtype: Any) -> tuple[Any, Any]:
    """Return the lowest and the highest code of a bit width, rounded to the dtype."""
    if signed:
        magnitude = power_of_two(bitwidth - 1, dtype)
        return -magnitude + int(narrow), magnitude - 1
    highest = power_of_two(bitwidth, dtype) - (1 + int(narrow))
    return get_namespace(highest).zeros_like(highest), highest


def get_range_derivatives(bitwidth: Any, signed: bool, dtype: Any) -> tuple[Any, Any]:
    """Return the derivatives of `get_integer_range` with respect to the number of bits."""
    highest = power_of_two(bitwidth - 1 if signed else bitwidth, dtype) * math.log(2)
    return (-highest if signed else get_namespace(highest).zeros_like(highest)), highest
