# SPDX-License-Identifier: Apache-2.0
"""The functions of the QONNX operator documents, under their names and positional signatures.

    from qonnx.custom_op.general.quant import quant              # before
    from anybit.compat.qonnx import quant                        # after

The values are those of `anybit.int_quant`, `anybit.float_quant` and `anybit.trunc`; the names that
the package QONNX 1.0.0 itself uses (int_quant, trunc_v1, trunc_v2, binary_quant) are here too.
What differs from the documents' sample code, always:

* The result has the dtype of x, and x decides the precision; float64 scales do not widen it.
  Integers are accepted for x, as in the samples: they are computed in float64.
* All seven rounding modes work in every function, in any case.
* Widths may be Python numbers, and must be integers >= 1.
* The result is an array also where x has no dimensions.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import anybit
from anybit.ops import arrays
from anybit.ops.domain import FLOATING, INTEGER, NON_NEGATIVE_INTEGER, POSITIVE_INTEGER, REAL
from anybit.ops.rounding import RoundingMode, round_to_integer


def quant(
    inp_tensor: Any,
    scale: Any,
    zeropt: Any,
    bitwidth: Any,
    signed: bool,
    narrow: bool,
    rounding_mode: str,
) -> Any:
    """`anybit.int_quant` in the document's order of arguments.

    >>> quant(np.array([0.5, 1.5, 99.0, -99.0]), 0.5, 0, 4, signed=1, narrow=0,
    ...       rounding_mode="ROUND")
    array([ 0.5,  1.5,  3.5, -4. ])
    """
    return anybit.int_quant(
        _convert_to_floats(inp_tensor),
        scale,
        zeropt,
        bitwidth,
        signed=signed,
        narrow=narrow,
        rounding_mode=rounding_mode,
    )


def trunc(
    inp_tensor: Any,
    scale: Any,
    zeropt: Any,
    input_bit_width: Any,
    narrow: bool,
    signed: bool,
    output_scale: Any,
    output_bit_width: Any,
    rounding_mode: str,
) -> Any:
    """`anybit.trunc` in the document's order of arguments.

    >>> trunc(np.array([7.0, -7.0, 100.0]), 1.0, 0.0, 8, 0, 1, 4.0, 4, "FLOOR")
    array([ 4., -8., 28.])
    """
    return anybit.trunc(
        _convert_to_floats(inp_tensor),
        scale,
        zeropt,
        input_bit_width,
        output_scale,
        output_bit_width,
        signed=signed,
        narrow=narrow,
        rounding_mode=rounding_mode,
    )


def trunc_v1(
    inp_tensor: Any,
    scale: Any,
    zeropt: Any,
    input_bit_width: Any,
    output_bit_width: Any,
    rounding_mode: str,
) -> Any:
    """`anybit.trunc_v1` in QONNX's order of arguments."""
    return anybit.trunc_v1(
        _convert_to_floats(inp_tensor),
        scale,
        zeropt,
        input_bit_width,
        output_bit_width,
        rounding_mode=rounding_mode,
    )


def binary_quant(inp_tensor: Any, scale: Any) -> Any:
    """`anybit.bipolar_quant` under QONNX's name."""
    return anybit.bipolar_quant(_convert_to_floats(inp_tensor), scale)


int_quant = quant
trunc_v2 = trunc


def float_quant(
    X: Any,
    scale: Any,
    exponent_bitwidth: Any,
    mantissa_bitwidth: Any,
    exponent_bias: Any = None,
    signed: bool = True,
    max_val: Any = None,
    has_inf: bool = False,
    has_nan: bool = False,
    has_subnormal: bool = False,
    rounding_mode: str = "ROUND",
    saturation: bool = True,
) -> Any:
    """`anybit.float_quant` in the document's order of arguments; saturation=False has an effect.

    Without saturation a value that exceeds the format after rounding becomes an infinity of its
    sign (has_inf), or else NaN (has_nan). An infinite x / scale gives NaN in any case.
    `exponent_bias` None stands for 2^(e-1) - 1; the document gives neither it nor `signed` a
    default, QONNX 1.0.0 gives both. `has_subnormal` has no effect, as in the document's sample.

    Raises:
        RuntimeError: saturation=False with neither has_inf nor has_nan.

    >>> x = np.array([3.1, 1e9, -1e9])
    >>> float_quant(x, 1.0, 4, 3, 7, True, 448.0)
    array([   3.,  448., -448.])
    >>> float_quant(x, 1.0, 4, 3, 7, True, 448.0, has_inf=True, saturation=False)
    array([  3.,  inf, -inf])
    """
    del has_subnormal  # changes nothing
    x = _convert_to_floats(X)
    if exponent_bias is None:
        exponent_bias = compute_default_exponent_bias(exponent_bitwidth)
    widths = (exponent_bitwidth, mantissa_bitwidth, exponent_bias, max_val)
    attributes: dict[str, Any] = {"signed": signed, "rounding_mode": rounding_mode}
    saturated = anybit.float_quant(x, scale, *widths, **attributes)
    if saturation:
        return saturated
    if not has_inf and not has_nan:
        raise RuntimeError(
            "saturation=0 needs a value for what exceeds the format: set has_inf or has_nan, "
            "or saturation=1"
        )
    return _apply_overflow(x, scale, widths, attributes, bool(has_inf))


def _apply_overflow(
    x: Any, scale: Any, widths: tuple[Any, ...], attributes: dict[str, Any], has_inf: bool
) -> Any:
    """Return float_quant of x, with overflow as infinity or NaN."""
    xp = arrays.get_namespace(x)
    _, mantissa_bitwidth, exponent_bias, _ = widths
    with np.errstate(all="ignore"):
        factor = arrays.convert_parameter(scale, REAL, x, "scale")
        y = arrays.widen(x, FLOATING, "X") / factor
        within = anybit.float_quant(y, 1.0, *widths, **attributes)
        # An exponent this wide has no limits of its own.
        unlimited = (_WIDEST_EXPONENT, mantissa_bitwidth, exponent_bias)
        q = anybit.float_quant(y, 1.0, *unlimited, rounding_mode=attributes["rounding_mode"])
        above, below = q > within, q < within
        if has_inf:
            q = xp.where(above, xp.full_like(q, math.inf), q)
            q = xp.where(below, xp.full_like(q, -math.inf), q)
        else:
            q = xp.where(above | below | xp.isinf(q), xp.full_like(q, math.nan), q)
        return arrays.deliver(q * factor, x, None)


def min_int(signed: bool, narrow_range: bool, bit_width: Any) -> Any:
    """Return the lowest integer of a bit width.

    An int for an int; an array for an array: int64 for integer dtypes (at most 62 bits), else of
    the same dtype, rounded once.

    >>> min_int(signed=True, narrow_range=True, bit_width=8)
    -127
    """
    magnitude = _compute_power_of_two(bit_width, 1)
    if signed:
        return -magnitude + (1 if narrow_range else 0)
    return 0 if isinstance(magnitude, int) else np.zeros_like(magnitude)[()]


def max_int(signed: bool, narrow_range: bool, bit_width: Any) -> Any:
    """Return the highest integer of a bit width; types as for `min_int`.

    >>> max_int(signed=False, narrow_range=True, bit_width=8)
    254
    """
    if signed:
        return _compute_power_of_two(bit_width, 1) - 1
    return _compute_power_of_two(bit_width, 0) - (2 if narrow_range else 1)


def compute_default_exponent_bias(exponent_bitwidth: Any) -> Any:
    """Return 2^(e-1) - 1 in float64.

    >>> float(compute_default_exponent_bias(4))
    7.0
    """
    widths = arrays.convert_parameter(
        exponent_bitwidth, POSITIVE_INTEGER, _NUMPY, "exponent_bitwidth"
    )
    return np.ldexp(1.0, np.minimum(widths, _WIDEST_EXPONENT) - 1) - 1


def compute_max_val(
    exponent_bitwidth: Any, mantissa_bitwidth: Any, exponent_bias: Any = None
) -> Any:
    """Return (2 - 2^-m) * 2^(2^e - 1 - bias) in float64, the largest value without reserved codes.

    `exponent_bias` None stands for 2^(e-1) - 1.

    >>> float(compute_max_val(4, 3, 7))
    480.0
    """
    e = arrays.convert_parameter(exponent_bitwidth, POSITIVE_INTEGER, _NUMPY, "exponent_bitwidth")
    m = arrays.convert_parameter(
        mantissa_bitwidth, NON_NEGATIVE_INTEGER, _NUMPY, "mantissa_bitwidth"
    )
    if exponent_bias is None:
        exponent_bias = compute_default_exponent_bias(e)
    bias = arrays.convert_parameter(exponent_bias, INTEGER, _NUMPY, "exponent_bias")
    top = np.left_shift(1, np.minimum(e, _WIDEST_EXPONENT)) - 1 - bias
    with np.errstate(all="ignore"):  # too large is infinite, too small is zero
        return np.ldexp(2 - np.ldexp(1.0, -np.minimum(m, 60)), np.clip(top, -5000, 5000))


def resolve_rounding_mode(mode_string: str) -> Callable[[Any], Any]:
    """Return a function that rounds arrays to integers; raise ValueError for an unknown mode.

    >>> resolve_rounding_mode("half_up")(np.array([0.5, -2.5, 0.49999999999999994]))
    array([ 1., -3.,  0.])
    """
    mode = RoundingMode.parse(mode_string)

    def round_array(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return round_to_integer(_convert_to_floats(x), mode)

    return round_array


_NUMPY = np.zeros(())
_WIDEST_EXPONENT = 62


def _convert_to_floats(x: Any) -> Any:
    """Return x as an array; NumPy integers become float64, as in a division."""
    x = arrays.convert_to_array(x)
    integral = isinstance(x, np.ndarray) and x.dtype.kind in "biu"
    return x.astype(np.float64) if integral else x


def _compute_power_of_two(bit_width: Any, removed: int) -> Any:
    """Return 2^(bit_width - removed) as int, int64 array, or array of the width's dtype."""
    array = np.asarray(bit_width)
    widths = arrays.convert_parameter(bit_width, POSITIVE_INTEGER, _NUMPY, "bit_width")
    if isinstance(bit_width, int):
        return 1 << (bit_width - removed)
    if array.dtype.kind in "iu":
        if np.any(widths > 62):
            raise ValueError(
                f"bit_width must be at most 62 for dtype {array.dtype}, got {widths.max()}; "
                "give a float for more"
            )
        return np.left_shift(1, widths - removed)
    with np.errstate(all="ignore"):
        return np.ldexp(1.0, np.minimum(widths, 5000) - removed).astype(array.dtype)
