# SPDX-License-Identifier: Apache-2.0
"""IEEE-754 arithmetic with round-to-nearest-even, computed on exact integer ratios."""

from dataclasses import dataclass
from math import copysign, inf, isinf, isnan, ldexp, nan


def is_negative(value: float) -> bool:
    """Return the sign bit, which comparisons do not show for zeros."""
    return copysign(1.0, value) < 0


def floor_log2(numerator: int, denominator: int) -> int:
    """floor(log2(numerator / denominator)) for a positive ratio."""
    guess = numerator.bit_length() - denominator.bit_length()
    if guess >= 0:
        return guess - (numerator < denominator << guess)
    return guess - (numerator << -guess < denominator)


@dataclass(frozen=True)
class Format:
    """An IEEE binary format: significand bits with the hidden one, exponent of the top binade."""

    precision: int
    max_exponent: int

    def nearest(self, numerator: int, denominator: int, zero: float = 0.0) -> float:
        """numerator / denominator (denominator > 0), ties to even; `zero` if it is exactly zero."""
        if numerator == 0:
            return zero
        magnitude, sign = abs(numerator), -1.0 if numerator < 0 else 1.0
        exponent = max(floor_log2(magnitude, denominator), 1 - self.max_exponent)
        step = exponent - self.precision + 1
        if step < 0:
            magnitude <<= -step
        else:
            denominator <<= step
        count, rest = divmod(magnitude, denominator)
        if 2 * rest > denominator or (2 * rest == denominator and count % 2 == 1):
            count += 1
        if count.bit_length() + step > self.max_exponent + 1:
            return sign * inf
        return sign * ldexp(count, step)

    def convert(self, value: float | int) -> float:
        """Round a number of any precision once."""
        if isinstance(value, float) and (value == 0 or isnan(value) or isinf(value)):
            return value
        return self.nearest(*value.as_integer_ratio())

    def power_of_two(self, exponent: int) -> float:
        """2**exponent; infinite above the range, zero below it."""
        limit = 2 * (self.max_exponent + self.precision)
        exponent = max(-limit, min(exponent, limit))
        return self.nearest(1 << max(exponent, 0), 1 << max(-exponent, 0))

    def add(self, left: float, right: float) -> float:
        if isnan(left) or isnan(right) or (isinf(left) and isinf(right) and left != right):
            return nan
        if isinf(left) or isinf(right):
            return left if isinf(left) else right
        left_top, left_bottom = left.as_integer_ratio()
        right_top, right_bottom = right.as_integer_ratio()
        # An exact zero sum is +0, unless both terms are -0.
        zero = -0.0 if is_negative(left) and is_negative(right) else 0.0
        top = left_top * right_bottom + right_top * left_bottom
        return self.nearest(top, left_bottom * right_bottom, zero)

    def subtract(self, left: float, right: float) -> float:
        return self.add(left, -right)

    def multiply(self, left: float, right: float) -> float:
        if isnan(left) or isnan(right):
            return nan
        sign = -1.0 if is_negative(left) != is_negative(right) else 1.0
        if isinf(left) or isinf(right):
            return nan if left == 0 or right == 0 else copysign(inf, sign)
        left_top, left_bottom = left.as_integer_ratio()
        right_top, right_bottom = right.as_integer_ratio()
        zero = copysign(0.0, sign)
        return self.nearest(left_top * right_top, left_bottom * right_bottom, zero)

    def divide(self, left: float, right: float) -> float:
        if isnan(left) or isnan(right) or (isinf(left) and isinf(right)):
            return nan
        sign = -1.0 if is_negative(left) != is_negative(right) else 1.0
        if isinf(left):
            return copysign(inf, sign)
        if right == 0:
            return nan if left == 0 else copysign(inf, sign)
        if isinf(right):
            return copysign(0.0, sign)
        left_top, left_bottom = left.as_integer_ratio()
        right_top, right_bottom = right.as_integer_ratio()
        if right_top < 0:
            left_top, right_top = -left_top, -right_top
        zero = copysign(0.0, sign)
        return self.nearest(left_top * right_bottom, left_bottom * right_top, zero)


BINARY16 = Format(precision=11, max_exponent=15)
BFLOAT16 = Format(precision=8, max_exponent=127)
BINARY32 = Format(precision=24, max_exponent=127)
BINARY64 = Format(precision=53, max_exponent=1023)
