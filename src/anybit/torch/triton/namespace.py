# SPDX-License-Identifier: Apache-2.0
"""Array-API namespace of `Traced`: the functions that the references use.

Names are those of the array API. `make_input` creates the inputs of an expression. The last four
replace portable formulas of `anybit.ops`: exact powers, exponents and roundings, computed from the
bits of the numbers. They avoid `floor`, `ceil` and the mathematical library, which flush subnormal
numbers in Triton.
"""

import builtins
import math
import sys
from typing import Any, NamedTuple

from anybit.ops.rounding import RoundingMode
from anybit.torch.triton.traced import StaticShape, Traced, make_constant, make_expression

bool = "bool"
float32, float64 = "float32", "float64"
int8, uint8, int64 = "int8", "uint8", "int64"

_KINDS = {
    "real floating": ("float16", "bfloat16", "float32", "float64"),
    "integral": tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "bool": ("bool",),
}


class _Layout(NamedTuple):
    """Binary representation of a float."""

    bits: str
    mantissa: int
    bias: int

    @property
    def sign(self) -> int:
        return -(2**31) if self.bits == "bits32" else -(2**63)


_LAYOUTS = {"float32": _Layout("bits32", 23, 127), "float64": _Layout("bits64", 52, 1023)}


def make_input(place: int, dtype: str, shape: StaticShape, *, varies: builtins.bool) -> Traced:
    """Return the kernel argument with that index."""
    return Traced("input", (), dtype, shape, literal=place, varies=varies)


def isdtype(dtype: str, kinds: str | tuple[str, ...]) -> Any:
    names = (kinds,) if isinstance(kinds, str) else kinds
    return builtins.any(dtype in _KINDS[name] for name in names)


def astype(x: Traced, dtype: str) -> Traced:
    return x.astype(dtype)


def full_like(x: Traced, value: float, *, dtype: str | None = None) -> Traced:
    return make_constant(value, x.dtype if dtype is None else dtype)


def ones_like(x: Traced) -> Traced:
    return full_like(x, 1)


def zeros_like(x: Traced, *, dtype: str | None = None) -> Traced:
    return full_like(x, 0, dtype=dtype)


def any(x: Traced) -> Traced:
    return x


def abs(x: Traced) -> Traced:
    return make_expression("abs", x)


def isnan(x: Traced) -> Traced:
    return x != x


def isinf(x: Traced) -> Traced:
    return abs(x) == math.inf


def isfinite(x: Traced) -> Traced:
    return abs(x) < math.inf  # false for NaN, too


def round(x: Traced) -> Traced:
    return round_to_integer(x, "ROUND")


def floor(x: Traced) -> Traced:
    return round_to_integer(x, "FLOOR")


def maximum(x: Traced, other: Any) -> Traced:
    """Return the maximum of integers; NaN is not handled."""
    other = x.lift(other)
    if x.range[0] >= other.range[1]:
        return x
    highest = max(x.range[1], other.range[1])
    return make_expression("maximum", x, other, range=(max(x.range[0], other.range[0]), highest))


def minimum(x: Traced, other: Any) -> Traced:
    """Return the minimum of integers; NaN is not handled."""
    other = x.lift(other)
    if x.range[1] <= other.range[0]:
        return x
    lowest = min(x.range[0], other.range[0])
    return make_expression("minimum", x, other, range=(lowest, min(x.range[1], other.range[1])))


def clip(x: Traced, lowest: float, highest: float) -> Traced:
    """Clip x; NaN stays NaN."""
    if x.dtype not in _LAYOUTS:
        return minimum(maximum(x, int(lowest)), int(highest))
    x = where(x < lowest, full_like(x, lowest), x)
    return where(x > highest, full_like(x, highest), x)


def where(condition: Traced, x: Traced, other: Traced) -> Traced:
    if condition.operation == "constant":
        return x if condition.literal else other
    both = (min(x.range[0], other.range[0]), max(x.range[1], other.range[1]))
    return make_expression("where", condition, x, other, dtype=x.dtype, range=both)


def bitwise_left_shift(x: Traced, count: Traced) -> Traced:
    return make_expression("shl", x, count)


def reshape(x: Traced, shape: tuple[int, ...]) -> Traced:
    return x if x.shape == shape else make_expression("reshape", x, shape=shape)


def sum(x: Traced, *, axis: tuple[int, ...]) -> Traced:
    """Return the sum over axes, which only `reshape` and `astype` may follow."""
    kept = tuple(size for place, size in enumerate(x.shape) if place not in axis)
    return make_expression("sum", x, shape=kept, literal=axis)


def power_of_two(exponent: Traced, dtype: str) -> Traced:
    """Return 2^exponent: inf above the range of the dtype, subnormal and then 0 below it."""
    layout = _LAYOUTS[dtype]
    below = -(layout.bias + layout.mantissa)
    counts = clip(exponent, below, layout.bias + 1).astype(layout.bits)
    normal = (counts << layout.mantissa) + (layout.bias << layout.mantissa)
    # One place too far and back, so that the exponent below the last subnormal results in 0.
    places = minimum(counts - below, layout.mantissa + 1)
    subnormal = bitwise_left_shift(make_constant(1, layout.bits), places) >> 1
    return _get_float(where(counts > -layout.bias, normal, subnormal), dtype)


def floor_log2(y: Traced) -> Traced:
    """Return E with 2^E <= |y| < 2^(E+1); very low for 0, undefined for NaN and inf."""
    layout = _LAYOUTS[y.dtype]
    magnitude = abs(y)
    subnormal = magnitude < 2.0 ** (1 - layout.bias)
    shift = layout.mantissa + 1
    representation = _get_bits(where(subnormal, magnitude * 2.0**shift, magnitude))
    lowered = full_like(representation, layout.bias + shift)
    bias = where(subnormal, lowered, full_like(representation, layout.bias))
    exponent = (representation >> layout.mantissa) - bias
    possible = (-layout.bias - shift, layout.bias + 1)
    return make_expression("cast", exponent, dtype="int64", range=possible)


def times_power_of_two(y: Traced, exponent: Traced) -> Traced:
    """Return y * 2^exponent, by two factors that are normal numbers."""
    layout = _LAYOUTS[y.dtype]
    counts = clip(exponent, 2 * (1 - layout.bias), 2 * layout.bias).astype(layout.bits)
    half = counts >> 1
    for part in (half, counts - half):
        # In this order shift and sum are one instruction.
        y = y * _get_float((part << layout.mantissa) + (layout.bias << layout.mantissa), y.dtype)
    return y


def round_to_integer(y: Traced, mode: str) -> Traced:
    """Round y to integers. The magnitude is rounded, then gets the sign of y."""
    layout = _LAYOUTS[y.dtype]
    magnitude = abs(y)
    # All larger numbers are integers; sums with smaller ones round to integers, ties to even.
    large = 2.0**layout.mantissa
    nearest = where(magnitude < large, (magnitude + large) - large, magnitude)
    one, none = full_like(y, 1), full_like(y, 0)

    def down() -> Traced:
        return nearest - where(nearest > magnitude, one, none)

    def up() -> Traced:
        return nearest + where(nearest < magnitude, one, none)

    match RoundingMode.parse(mode):
        case RoundingMode.ROUND:
            rounded = nearest
        case RoundingMode.DOWN:
            rounded = down()
        case RoundingMode.UP:
            rounded = up()
        case RoundingMode.FLOOR | RoundingMode.CEIL as directed:
            signed = _copy_sign(nearest, y)
            if directed is RoundingMode.FLOOR:
                return signed - where(signed > y, one, none)
            rounded = abs(signed + where(signed < y, one, none))
        case RoundingMode.HALF_UP:
            rounded = down() + where(magnitude - down() >= 0.5, one, none)
        case RoundingMode.HALF_DOWN:
            rounded = down() + where(magnitude - down() > 0.5, one, none)
    return _copy_sign(rounded, y)


def _get_bits(y: Traced) -> Traced:
    return make_expression("bitcast", y, dtype=_LAYOUTS[y.dtype].bits)


def _get_float(bits: Traced, dtype: str) -> Traced:
    return make_expression("bitcast", bits, dtype=dtype)


def _copy_sign(number: Traced, y: Traced) -> Traced:
    """Return a number >= 0, or of the sign of y already, with the sign of y."""
    sign = _get_bits(y) & _LAYOUTS[y.dtype].sign
    return _get_float(_get_bits(number) | sign, y.dtype)


Traced.functions = sys.modules[__name__]
