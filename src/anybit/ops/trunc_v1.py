# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Any

import numpy as np

from anybit.ops.domain import BitWidth, Floating, InBitWidth, Scale, ZeroPoint
from anybit.ops.gradient import Gradient
from anybit.ops.grids import Call
from anybit.ops.operator import define_operator
from anybit.ops.powers import power_of_two
from anybit.ops.remark import Remark
from anybit.ops.rounding import round_to_integer


def _remarks(call: Call) -> Iterator[Remark]:
    zeropt = np.asarray(call.parameters.get("zeropt", 0))
    if (zeropt != 0).any():
        yield Remark(
            "zero-point-kept",
            f"zero-point {zeropt[zeropt != 0][0]:g} is taken off as it is after bits are lost, "
            "which moves the result",
            "use zero-point 0, or version 2 of the operator (six inputs)",
        )


def _partials(
    x: Any,
    scale: Any,
    zeropt: Any,
    in_bitwidth: Any,
    out_bitwidth: Any,
    *,
    rounding_mode: str,
) -> tuple[Any, ...]:
    factor = power_of_two(in_bitwidth - out_bitwidth, x.dtype)
    quotient = x / scale
    y = round_to_integer(quotient + zeropt, "ROUND") / factor
    codes = round_to_integer(y, rounding_mode) - zeropt
    return 1 / factor, codes - quotient / factor, scale / factor - scale


@define_operator(
    "Trunc",
    version=1,
    aliases=("TruncQuant",),
    gradient=Gradient(("x", "scale", "zeropt"), _partials),
    remarks=_remarks,
)
def trunc_v1(
    x: Floating,
    scale: Scale,
    zeropt: ZeroPoint,
    in_bitwidth: InBitWidth,
    out_bitwidth: BitWidth,
    *,
    rounding_mode: str = "FLOOR",
    out: Any = None,
) -> Any:
    """Remove low bits of integers stored as floats, with the semantics of files before 2025.

        y = round_half_even(x / scale + zeropt)
        result = (round(y / 2^(in_bitwidth - out_bitwidth)) - zeropt) * scale

    Nothing is clipped and neither the zero-point nor the scale follows the lost bits: the result
    shrinks. Old files mean exactly that; new ones use `trunc`.

    Args:
        x: float32, float64, float16 or bfloat16, any shape; multiples of scale. Computed in
            float32 (float64 for float64).
        scale, zeropt: Those of x. Like all parameters they broadcast to x without enlarging it.
        in_bitwidth, out_bitwidth: Bits before and after, integers >= 1.
        rounding_mode: A mode of `RoundingMode`, in any case.
        out: An array of x's shape and dtype to write to; x itself is allowed.

    Returns:
        An array of x's shape and dtype. NaN stays NaN; infinities pass.

    Raises:
        ValueError: A width that is not an integer >= 1, an unknown rounding mode, a parameter that
            does not broadcast to x, an `out` of another shape or dtype.
        TypeError: An x or a parameter of a dtype that is not real.

    Source: QONNX operator Trunc, version 1 (five inputs).

    >>> trunc_v1([7.0, -7.0, 100.0], 1.0, 0.0, 8, 6)
    array([ 1., -2., 25.])
    """
    factor = power_of_two(in_bitwidth - out_bitwidth, x.dtype)
    y = round_to_integer(x / scale + zeropt, "ROUND") / factor
    return (round_to_integer(y, rounding_mode) - zeropt) * scale
