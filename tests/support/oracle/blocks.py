# SPDX-License-Identifier: Apache-2.0
"""Blocks of MX and NVFP4 in exact rational arithmetic, with the elements as a list of values.

Only where the definition itself computes in float32 (NVFP4's scales and its quotient) is there a
rounding, by `BINARY32`.
"""

from bisect import bisect
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import inf, isinf

from .ieee import BINARY32

E4M3FN = (4, 3, 448)
ELEMENTS = {
    "mxfp8": E4M3FN,
    "mxfp8_e5m2": (5, 2, 57344),
    "mxfp6": (2, 3, Fraction(15, 2)),
    "mxfp6_e3m2": (3, 2, 28),
    "mxfp4": (2, 1, 6),
    "nvfp4": (2, 1, 6),
}
"""Exponent and mantissa bits, and the largest value."""


@cache
def values_of(exponent_bits: int, mantissa_bits: int, largest: Fraction) -> list[Fraction]:
    """Return all values >= 0, in the order of their codes."""
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for code in range(2 ** (exponent_bits + mantissa_bits)):
        exponent, fraction = divmod(code, 2**mantissa_bits)
        hidden = Fraction(int(exponent > 0))
        significand = hidden + Fraction(fraction, 2**mantissa_bits)
        values.append(significand * Fraction(2) ** (max(exponent, 1) - bias))
    return [value for value in values if value <= largest]


def nearest(x: Fraction, values: Sequence[Fraction]) -> Fraction:
    """Return the nearest value with the sign of x; ties go to the even code."""
    above = bisect(values, abs(x))
    codes = range(max(above - 1, 0), min(above + 1, len(values)))
    value = values[min(codes, key=lambda code: (abs(abs(x) - values[code]), code % 2))]
    return -value if x < 0 else value


def floor_log2(x: Fraction) -> int:
    """Exactly, for x > 0."""
    exponent = 0
    while Fraction(2) ** (exponent + 1) <= x:
        exponent += 1
    while Fraction(2) ** exponent > x:
        exponent -= 1
    return exponent


def element_values(name: str) -> list[Fraction]:
    """Return the values >= 0 of an MX element format."""
    if name == "mxint8":
        return [Fraction(code, 64) for code in range(128)]
    return values_of(*ELEMENTS[name])


def mx_scale(block: Sequence[Fraction], name: str, rule: str) -> Fraction:
    """Return the scale of an MX block, by a rule other than mse."""
    values = element_values(name)
    reach = max(abs(x) for x in block)
    if not reach:
        return Fraction(2) ** -127
    most = floor_log2(values[-1])
    if rule == "ceil":
        exponent = floor_log2(reach / values[-1])
        exponent += Fraction(2) ** exponent * values[-1] < reach
    elif rule == "even":
        bits = 6 if name == "mxint8" else ELEMENTS[name][1]
        step = Fraction(2) ** (floor_log2(reach) - bits)
        exponent = floor_log2(round(reach / step) * step) - most  # `round` goes to even
    else:
        exponent = floor_log2(reach) - most
    return Fraction(2) ** max(-127, min(exponent, 127))


def mx(block: Sequence[Fraction], name: str, rule: str) -> list[float]:
    """Round a block to an MX format, in float32; overflow gives infinity."""
    if rule == "mse":
        plain = mx_scale(block, name, "floor")
        lowest, highest = Fraction(2) ** -127, Fraction(2) ** 127
        scales = [max(lowest, min(plain * 2**more, highest)) for more in (0, -1, 1)]
    else:
        scales = [mx_scale(block, name, rule)]
    exact = [[scale * nearest(x / scale, element_values(name)) for x in block] for scale in scales]
    return min(
        ([rounded(y) for y in candidate] for candidate in exact),
        key=lambda candidate: error(candidate, block),
    )


def error(actual: Sequence[float], expected: Sequence[Fraction]) -> Fraction | float:
    if any(map(isinf, actual)):
        return inf
    return sum((Fraction(a) - b) ** 2 for a, b in zip(actual, expected, strict=True))


def rounded(x: Fraction) -> float:
    """Round to float32."""
    return BINARY32.nearest(*x.as_integer_ratio())


def single(x: Fraction) -> Fraction:
    """Round to float32, and return the exact ratio."""
    return Fraction(rounded(x))


def tensor_scale(blocks: Sequence[Sequence[Fraction]]) -> Fraction:
    """NVFP4's number in float32 that the scales of all blocks are multiplied by."""
    whole = max(abs(x) for block in blocks for x in block)
    return single(whole / (448 * 6)) or Fraction(1)


def nvfp4(blocks: Sequence[Sequence[Fraction]], rule: str = "absmax") -> list[list[float]]:
    """Quantize all blocks of a tensor to NVFP4."""
    g = tensor_scale(blocks)
    return [nvfp4_best(block, g, rule)[1] for block in blocks]


def nvfp4_best(block: Sequence[Fraction], g: Fraction, rule: str) -> tuple[Fraction, list[float]]:
    """Return the share of the plain scale with the least error, and the block rounded by it.

    Of equal errors the first share counts. The rule absmax has the plain scale only.
    """
    shares = [Fraction(1)]
    if rule == "mse":
        shares += [Fraction(step, 16) for step in range(10, 26) if step != 16]
    candidates = [(share, _nvfp4_block(block, g, share)) for share in shares]
    return min(candidates, key=lambda candidate: error(candidate[1], block))


def _nvfp4_block(block: Sequence[Fraction], g: Fraction, share: Fraction) -> list[float]:
    reach = max(abs(x) for x in block)
    wish = single(single(single(reach / 6) / g) * share)
    t = single(nearest(min(wish, Fraction(448)), values_of(*E4M3FN)) * g)
    values = element_values("nvfp4")
    return [rounded(t * nearest(single(x / t), values)) if t else 0.0 for x in block]
