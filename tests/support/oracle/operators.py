# SPDX-License-Identifier: Apache-2.0
"""The operators, each a transcription of its definition: one line per written operation."""

from functools import cache
from math import inf, isinf, isnan, nan
from typing import Any

import numpy as np

from .arrays import Operand, Parameter, map_distinct
from .ieee import BINARY32, Format, floor_log2
from .rounding import resolve_mode, round_ratio, round_value


@cache
def integer_bounds(width: int, signed: bool, narrow: bool, fmt: Format) -> tuple[float, float]:
    """Smallest and largest integer of a width, rounded to T."""
    # Beyond T's range the bounds are infinite, however wide: do not build a number of 1e30 bits.
    width = min(width, fmt.max_exponent + 3)
    if signed:
        return fmt.convert(-(2 ** (width - 1)) + narrow), fmt.convert(2 ** (width - 1) - 1)
    return 0.0, fmt.convert(2**width - 1 - narrow)


def clamp(value: float, low: float, high: float) -> float:
    """NaN and a zero at a zero bound pass unchanged."""
    value = high if value > high else value
    return low if value < low else value


def int_quant(x, scale, zeropt, bitwidth, *, signed=True, narrow=False, rounding_mode="ROUND"):
    mode = resolve_mode(rounding_mode)
    operand = Operand(x)
    t = operand.compute

    def element(x, scale, zeropt, width):
        low, high = integer_bounds(width, bool(signed), bool(narrow), t)
        y = t.divide(x, scale)
        y = t.add(y, zeropt)
        y = clamp(y, low, high)
        y = round_value(y, mode)
        y = t.subtract(y, zeropt)
        return t.multiply(y, scale)

    return operand.map(
        element,
        [
            operand.real("scale", scale),
            operand.real("zeropt", zeropt),
            operand.width("bitwidth", bitwidth),
        ],
    )


@cache
def minifloat_maximum(exponent_bits: int, mantissa_bits: int, bias: int, fmt: Format) -> float:
    """(2 - 2**-m) * 2**(2**e - 1 - bias), rounded to T."""
    top_exponent = 2 ** min(exponent_bits, 2000) - 1 - bias
    # Where T's range ends on either side the exact exponent and the last mantissa bits are idle.
    top_exponent = max(-3000, min(top_exponent, 3000))
    mantissa_bits = min(mantissa_bits, 3000)
    shift = top_exponent - mantissa_bits
    return fmt.nearest((2 ** (mantissa_bits + 1) - 1) << max(shift, 0), 1 << max(-shift, 0))


def round_to_minifloat(y: float, mantissa_bits: int, bias: int, mode: str, fmt: Format) -> float:
    """round(y * 2**-k) * 2**k with k = max(floor(log2 |y|), 1 - bias) - m, for finite y."""
    if y == 0:
        return y
    top, bottom = y.as_integer_ratio()
    k = max(floor_log2(abs(top), bottom), 1 - bias) - mantissa_bits
    if k <= 1 - bottom.bit_length():
        return y  # a multiple of 2**k already: do not shift by a huge mantissa width
    k = min(k, 3000)  # any y is below half of 2**3000, which already overflows
    count = round_ratio(top << max(-k, 0), bottom << max(k, 0), mode)
    zero = -0.0 if y < 0 else 0.0
    return fmt.nearest(count << max(k, 0), 1 << max(-k, 0), zero)


def largest_value(operand: Operand, max_val: Any) -> Parameter:
    """Return the optional limit, infinity by default."""
    parameter = operand.real("max_val", inf if max_val is None else max_val)
    for value in parameter.values:
        if isnan(value) or value < 0:
            raise ValueError(f"max_val must be >= 0, got {value!r}")
    return parameter


def float_quant(
    x,
    scale,
    exponent_bitwidth,
    mantissa_bitwidth,
    exponent_bias,
    max_val=None,
    *,
    signed=True,
    rounding_mode="ROUND",
    has_infinity=False,
    has_nan=False,
    has_subnormal=True,
    saturation=True,
):
    """Round to a float format; the last four attributes are for back-ends and change no value."""
    mode = resolve_mode(rounding_mode)
    operand = Operand(x)
    t = operand.compute

    def element(x, scale, exponent_bits, mantissa_bits, bias, largest):
        y = t.divide(x, scale)
        if isnan(y) or isinf(y):
            return nan
        q = round_to_minifloat(y, mantissa_bits, bias, mode, t)
        high = min(minifloat_maximum(exponent_bits, mantissa_bits, bias, t), largest)
        q = clamp(q, -high if signed else 0.0, high)
        return t.multiply(q, scale)

    return operand.map(
        element,
        [
            operand.real("scale", scale),
            operand.width("exponent_bitwidth", exponent_bitwidth),
            operand.width("mantissa_bitwidth", mantissa_bitwidth, least=0),
            operand.width("exponent_bias", exponent_bias, least=None),
            largest_value(operand, max_val),
        ],
    )


@cache
def nearest_power_of_two(ratio: float, fmt: Format) -> float:
    """2**K with K the integer nearest to log2(ratio), for a finite ratio > 0."""
    top, bottom = ratio.as_integer_ratio()
    exponent = floor_log2(top, bottom)
    # significand > sqrt 2, squared: ratio**2 > 2 * 4**exponent.
    up = 2 * exponent + 1
    exceeds = top * top << max(-up, 0) > bottom * bottom << max(up, 0)
    return fmt.power_of_two(exponent + exceeds)


def trunc(
    x,
    scale,
    zeropt,
    in_bitwidth,
    out_scale,
    out_bitwidth,
    *,
    signed=True,
    narrow=False,
    rounding_mode="FLOOR",
):
    mode = resolve_mode(rounding_mode)
    operand = Operand(x)
    t = operand.compute

    def element(x, scale, zeropt, _in_width, out_scale, out_width):
        y = t.add(t.divide(x, scale), zeropt)
        y = round_value(y, "ROUND")
        ratio = t.divide(out_scale, scale)
        if not 0 < ratio < inf:
            return nan
        step = nearest_power_of_two(ratio, t)
        y = t.divide(y, step)
        y = clamp(y, *integer_bounds(out_width, bool(signed), bool(narrow), t))
        y = round_value(y, mode)
        y = t.subtract(y, t.divide(zeropt, step))
        return t.multiply(y, out_scale)

    return operand.map(
        element,
        [
            operand.real("scale", scale),
            operand.real("zeropt", zeropt),
            operand.width("in_bitwidth", in_bitwidth),
            operand.real("out_scale", out_scale),
            operand.width("out_bitwidth", out_bitwidth),
        ],
    )


def trunc_v1(x, scale, zeropt, in_bitwidth, out_bitwidth, *, rounding_mode="FLOOR"):
    mode = resolve_mode(rounding_mode)
    operand = Operand(x)
    t = operand.compute

    def element(x, scale, zeropt, in_width, out_width):
        y = t.add(t.divide(x, scale), zeropt)
        y = round_value(y, "ROUND")
        y = t.divide(y, t.power_of_two(in_width - out_width))
        y = round_value(y, mode)
        y = t.subtract(y, zeropt)
        return t.multiply(y, scale)

    return operand.map(
        element,
        [
            operand.real("scale", scale),
            operand.real("zeropt", zeropt),
            operand.width("in_bitwidth", in_bitwidth),
            operand.width("out_bitwidth", out_bitwidth),
        ],
    )


def bipolar_quant(x, scale):
    operand = Operand(x)

    def element(x, scale):
        return operand.compute.multiply(1.0 if x >= 0 else -1.0, scale)

    return operand.map(element, [operand.real("scale", scale)])


def dynamic_quantize(
    src, scales, zps=None, *, dtype="s8", qtype="per_tensor", axis=1, arithmetic="divide"
):
    src, scales = np.asarray(src), np.asarray(scales)
    zps = np.zeros(scales.shape, np.int32) if zps is None else np.asarray(zps)
    check_dynamic_quantize(src, scales, zps, dtype, qtype, axis, arithmetic)
    low, high = (-128, 127) if dtype == "s8" else (0, 255)
    t = BINARY32

    def element(x, scale, zp):
        if arithmetic == "divide":
            y = t.add(t.divide(x, scale), zp)
        else:
            y = t.add(t.multiply(x, t.divide(1.0, scale)), zp)
        return low if isnan(y) else int(clamp(round_value(y, "ROUND"), low, high))

    shape = [1] * src.ndim
    if qtype == "per_channel":
        shape[axis] = -1
    parameters = [
        Parameter(name, array.reshape(shape), src.shape, t.convert)
        for name, array in (("scales", scales), ("zps", zps))
    ]
    results = map_distinct(element, src, parameters)
    return np.array(results, np.int8 if dtype == "s8" else np.uint8).reshape(src.shape)


def check_dynamic_quantize(
    src: np.ndarray,
    scales: np.ndarray,
    zps: np.ndarray,
    dtype: Any,
    qtype: Any,
    axis: int,
    arithmetic: Any,
) -> None:
    choices = {
        "dtype": (dtype, ("s8", "u8")),
        "qtype": (qtype, ("per_tensor", "per_channel")),
        "arithmetic": (arithmetic, ("divide", "reciprocal")),
    }
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise ValueError(f"{name} must be one of {allowed}, got {value!r}")
    if src.dtype != np.float32 or scales.dtype != np.float32:
        raise TypeError(f"src and scales must be float32, got {src.dtype} and {scales.dtype}")
    if zps.dtype not in (np.int8, np.uint8, np.int32):
        raise TypeError(f"zps must be int8, uint8 or int32, got {zps.dtype}")
    # per_tensor reads no axis: its default of 1 must not reject a tensor of rank 0 or 1.
    unused = qtype == "per_tensor" and axis == 1
    if not unused and not -src.ndim <= axis < src.ndim:
        raise ValueError(f"axis must lie in [{-src.ndim}, {src.ndim - 1}], got {axis}")
    count = src.shape[axis] if qtype == "per_channel" else 1
    for name, array in (("scales", scales), ("zps", zps)):
        if array.size != count:
            raise ValueError(f"{name} must have {count} elements, got {array.size}")


def dynamic_dequantize(src, scales, zps=None, *, qtype="per_tensor", axis=1):
    src, scales = np.asarray(src), np.asarray(scales)
    zps = np.zeros(scales.shape, np.int32) if zps is None else np.asarray(zps)
    if src.dtype not in (np.int8, np.uint8):
        raise TypeError(f"src must be int8 or uint8, got {src.dtype}")
    # The other checks are those of dynamic_quantize for a float32 src of that shape.
    like_src = np.broadcast_to(np.float32(0), src.shape)
    check_dynamic_quantize(like_src, scales, zps, "s8", qtype, axis, "divide")
    t = BINARY32

    def element(x, scale, zp):
        # Python's integers are exact, and so is their conversion to binary64.
        return t.multiply(t.convert(float(int(x) - int(zp))), scale)

    shape = [1] * src.ndim
    if qtype == "per_channel":
        shape[axis] = -1
    parameters = [
        Parameter("scales", scales.reshape(shape), src.shape, t.convert),
        Parameter("zps", zps.reshape(shape), src.shape, float),
    ]
    results = map_distinct(element, src, parameters)
    return np.array(results, np.float32).reshape(src.shape)
