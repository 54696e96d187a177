# SPDX-License-Identifier: Apache-2.0
"""Number formats as values: a format is one literal.

A format unpacks into the parameters of `float_quant`:

>>> import anybit
>>> anybit.float_quant([3.1, 17.0, 1e9], 1.0, *anybit.formats.float8_e4m3fn)
array([  3.,  16., 448.])

Sources: OCP 8-bit Floating Point Specification (OFP8) and OCP Microscaling Formats (MX) for the
8-, 6- and 4-bit formats, IEEE 754 for float16.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

# Every value of a format must be a float64: 53 significant bits, nothing finer than 2^-1074.
_MAX_MANTISSA_BITS = 52
_MIN_EXPONENT = -1074
_MAX_EXPONENT = 1023
_MAX_VALUES = 2**24
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, init=False)
class FloatFormat:
    """A signed binary floating-point format with subnormals.

    A number is (1 + fraction) * 2^(code - exponent_bias), with the exponent code in 1 .. 2^e - 1,
    or a multiple of 2^(1 - exponent_bias - m) where the exponent code is 0.

    Args:
        exponent_bitwidth: e, an integer in 1 .. 64.
        mantissa_bitwidth: m, an integer in 0 .. 52, without the leading one.
        exponent_bias: Any integer; None stands for 2^(e-1) - 1.
        max_val: The largest finite value, where codes are reserved for infinities or NaN (448 for
            float8_e4m3fn). None stands for no reserved codes.
        name: The result of `str`. Formats that only differ in the name are equal.

    Raises:
        ValueError: A width or bias is out of range, max_val is not a normal value of the format, or
            the format has values that float64 does not have.

    >>> FloatFormat(2, 1).values()[-4:]
    array([2., 3., 4., 6.])
    """

    exponent_bitwidth: int
    mantissa_bitwidth: int
    exponent_bias: int
    max_val: float
    name: str = field(compare=False)

    def __init__(
        self,
        exponent_bitwidth: int,
        mantissa_bitwidth: int,
        exponent_bias: int | None = None,
        max_val: float | None = None,
        name: str | None = None,
    ) -> None:
        e = _convert_integer("exponent_bitwidth", exponent_bitwidth, 1, 64)
        m = _convert_integer("mantissa_bitwidth", mantissa_bitwidth, 0, _MAX_MANTISSA_BITS)
        usual_bias = 2 ** (e - 1) - 1
        bias = (
            usual_bias
            if exponent_bias is None
            else _convert_integer("exponent_bias", exponent_bias)
        )
        if name is None:
            name = f"float{1 + e + m}_e{e}m{m}" + (f"b{bias}" if bias != usual_bias else "")
        # The class is frozen: this is the only place that sets fields.
        object.__setattr__(self, "exponent_bitwidth", e)
        object.__setattr__(self, "mantissa_bitwidth", m)
        object.__setattr__(self, "exponent_bias", bias)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "max_val", self._check_largest(max_val))

    def __iter__(self) -> Iterator[int | float]:
        """Yield exponent_bitwidth, mantissa_bitwidth, exponent_bias, max_val for `float_quant`."""
        yield self.exponent_bitwidth
        yield self.mantissa_bitwidth
        yield self.exponent_bias
        yield self.max_val

    def __contains__(self, value: float) -> bool:
        """Return whether a number is one of the format's values."""
        return abs(value) <= self.max_val and self._count_steps(abs(value)).is_integer()

    def __str__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """Return the width of a code: sign, exponent and mantissa."""
        return 1 + self.exponent_bitwidth + self.mantissa_bitwidth

    @property
    def largest(self) -> float:
        """Return the largest value."""
        return self.max_val

    @property
    def smallest_normal(self) -> float:
        """Return the smallest positive value with a leading one."""
        return math.ldexp(1.0, 1 - self.exponent_bias)

    @property
    def smallest_subnormal(self) -> float:
        """Return the smallest positive value; the smallest normal one without mantissa bits."""
        return math.ldexp(1.0, 1 - self.exponent_bias - self.mantissa_bitwidth)

    def values(self) -> npt.NDArray[np.float64]:
        """Return all finite values in ascending order. ValueError for more than 2^24."""
        m = self.mantissa_bitwidth
        # Without the sign, codes enumerate the values of a format in ascending order.
        codes = self._encode(self.max_val) + 1
        if 2 * codes - 1 > _MAX_VALUES:
            raise ValueError(
                f"{self} has {2 * codes - 1} values, more than {_MAX_VALUES} are not listed; "
                "use `in` to test a value or float_quant to round to one"
            )
        exponent_codes, mantissas = np.divmod(np.arange(codes), 2**m)
        significands = mantissas + 2**m * (exponent_codes > 0)
        exponents = np.maximum(exponent_codes, 1) - self.exponent_bias - m
        positive = np.ldexp(significands.astype(np.float64), exponents)
        return np.concatenate([-positive[:0:-1], positive])

    def _check_largest(self, max_val: float | None) -> float:
        """Return max_val, or the largest value if no code is reserved."""
        normal = 1 - self.exponent_bias
        finest = normal - self.mantissa_bitwidth
        if finest < _MIN_EXPONENT or normal > _MAX_EXPONENT:
            raise ValueError(
                f"exponent_bias must be such that 2^{finest} and 2^{normal}, the smallest values, "
                f"are float64 numbers, got {self.exponent_bias}"
            )
        top = 2**self.exponent_bitwidth - 1 - self.exponent_bias
        closed_form = math.inf
        if top <= _MAX_EXPONENT:
            closed_form = math.ldexp(2 - math.ldexp(1.0, -self.mantissa_bitwidth), top)
        if max_val is None and closed_form == math.inf:
            raise ValueError(f"{self} exceeds float64 with 2^{top}: give its max_val")
        largest = closed_form if max_val is None else float(max_val)
        in_range = self.smallest_normal <= largest <= closed_form and largest < math.inf
        if not in_range or not self._count_steps(largest).is_integer():
            raise ValueError(
                f"max_val must be a value of {self} in [{self.smallest_normal!r}, "
                f"{closed_form!r}], got {max_val!r}"
            )
        return largest

    def _get_exponent_code(self, value: float) -> int:
        """Return the exponent code of a value >= 0."""
        exponent = math.frexp(value)[1] - 1 + self.exponent_bias
        return max(exponent, 0) if value else 0

    def _count_steps(self, value: float) -> float:
        """Return a value >= 0 as a multiple of the spacing around it; integral on the grid."""
        code = max(self._get_exponent_code(value), 1)
        return math.ldexp(value, self.exponent_bias + self.mantissa_bitwidth - code)

    def _encode(self, value: float) -> int:
        """Return the bits of a value >= 0 on the grid, as an integer."""
        code = self._get_exponent_code(value)
        hidden = int(code > 0) << self.mantissa_bitwidth
        return (code << self.mantissa_bitwidth) + int(self._count_steps(value)) - hidden


def _convert_integer(
    name: str, value: Any, lowest: int | None = None, highest: int | None = None
) -> int:
    """Return the value as an int, if it is one in that range."""
    expected = "an integer" if lowest is None else f"an integer in {lowest} .. {highest}"
    try:
        whole: int = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be {expected}, got {value!r}") from None
    outside = lowest is not None and highest is not None and not lowest <= whole <= highest
    if whole != value or outside:
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return whole


float8_e4m3fn = FloatFormat(4, 3, max_val=448.0, name="float8_e4m3fn")
float8_e5m2 = FloatFormat(5, 2, max_val=57344.0, name="float8_e5m2")
float6_e3m2fn = FloatFormat(3, 2, name="float6_e3m2fn")
float6_e2m3fn = FloatFormat(2, 3, name="float6_e2m3fn")
float4_e2m1fn = FloatFormat(2, 1, name="float4_e2m1fn")
bfloat16 = FloatFormat(8, 7, max_val=(2 - 2**-7) * 2.0**127, name="bfloat16")
float16 = FloatFormat(5, 10, max_val=65504.0, name="float16")

__all__ = [
    "FloatFormat",
    "bfloat16",
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
]
