# SPDX-License-Identifier: Apache-2.0
"""Public rules of block quantization, written from their descriptions.

Elements are rounded to the nearest entry of a list of the values of their format, and scales come
from exact exponents: nothing is shared with anybit.
"""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray
BLOCK, NVFP4_BLOCK = 32, 16


@dataclass(frozen=True)
class Elements:
    """A format of elements: a sign, exponent and mantissa bits; without exponents, fractions."""

    exponent: int
    mantissa: int
    largest: float

    @property
    def values(self) -> Array:
        """All values that are not negative, in the order of their codes."""
        if not self.exponent:
            return np.arange(2**self.mantissa) / 2.0 ** (self.mantissa - 1)
        codes = np.arange(2 ** (self.exponent + self.mantissa))
        exponents, fractions = np.divmod(codes, 2**self.mantissa)
        bias = 2 ** (self.exponent - 1) - 1
        powers = 2.0 ** (np.maximum(exponents, 1) - bias)
        values = ((exponents > 0) + fractions / 2.0**self.mantissa) * powers
        return values[values <= self.largest]

    @property
    def emax(self) -> int:
        """The exponent of the largest value."""
        return int(np.frexp(self.largest)[1]) - 1


ELEMENTS = {
    "mxfp8": Elements(4, 3, 448),
    "mxfp8_e5m2": Elements(5, 2, 57344),
    "mxfp6": Elements(2, 3, 7.5),
    "mxfp6_e3m2": Elements(3, 2, 28),
    "mxfp4": Elements(2, 1, 6),
    "mxint8": Elements(0, 7, 127 / 64),
}


def round_to_elements(y: Array, elements: Elements, ties: str = "even") -> Array:
    """Return the nearest values of a format in float64; ties go to even codes or away from 0."""
    values = elements.values
    middles = (values[1:] + values[:-1]) / 2
    y = np.asarray(y, np.float64)
    codes = np.searchsorted(middles, np.abs(y), side="right" if ties == "away" else "left")
    if ties == "even":
        is_tie = (codes < len(middles)) & (
            middles[np.minimum(codes, len(middles) - 1)] == np.abs(y)
        )
        codes = codes + (is_tie & (codes % 2 == 1))
    return np.copysign(values[codes], y)


def quantize_mx(x: Array, form: str, exponents: Array, ties: str = "even") -> Array:
    """Quantize blocks (the last axis) with the scales 2^exponents; float32 may overflow."""
    scales = 2.0 ** np.asarray(exponents, np.float64)[..., None]
    result = round_to_elements(x / scales, ELEMENTS[form], ties) * scales
    with np.errstate(over="ignore"):
        return result.astype(np.float32)


def microxcaling_exponents(x: Array, form: str) -> Array:
    """Return the shared exponents of OCP MX 1.0, as Microsoft's microxcaling computes them.

    floor(log2(amax)) - emax, with the logarithm exact and not below that of E8M0.
    """
    amax = np.abs(x).max(-1).astype(np.float64)
    exponents = np.frexp(np.where(amax == 0, 2.0**-126, amax))[1] - 1
    return np.maximum(exponents - ELEMENTS[form].emax, -127)


def torchao_exponents(x: Array, form: str, mode: str) -> Array:
    """Return the exponents of the scale modes floor, ceil, even and rceil of torchao.

    ceil rounds log2(amax) up; even first rounds amax to the mantissa of an element; rceil is the
    least power of two at which amax does not saturate.
    """
    elements = ELEMENTS[form]
    amax = np.abs(x).max(-1).astype(np.float64)
    amax[amax == 0] = 2.0**-126
    fractions, exponents = np.frexp(amax)
    match mode:
        case "floor":
            return exponents - 1 - elements.emax
        case "ceil":
            return exponents - (fractions == 0.5) - elements.emax
        case "even":
            carries = np.floor(fractions * 2.0 ** (elements.mantissa + 1) + 0.5)
            carries = carries == 2.0 ** (elements.mantissa + 1)
            return exponents - 1 + carries - elements.emax
        case _:
            ratios = np.float32(amax) / np.float32(elements.largest)
            fractions, exponents = np.frexp(ratios.astype(np.float64))
            return exponents - (fractions == 0.5)


def modelopt_nvfp4(x: Array) -> tuple[Array, np.float32, Array]:
    """Return ModelOpt's NVFP4: results, the scale of the tensor, and which blocks underflow.

    g = amax(x) / (6 * 448) in float32; the scale of a block is that of float8_e4m3fn which is
    nearest to amax / (6 g), but 2^-9 where that is 0; elements are those of float4_e2m1fn.
    """
    e4m3, e2m1 = ELEMENTS["mxfp8"], ELEMENTS["mxfp4"]
    g = np.abs(x).max() / np.float32(6 * 448)
    ratios = np.abs(x).max(-1) / (np.float32(6) * g)
    rounded = round_to_elements(np.where(ratios == 0, 1, ratios), e4m3)
    scales = (np.maximum(rounded, 2.0**-9).astype(np.float32) * g)[..., None]
    values = round_to_elements(x / scales, e2m1).astype(np.float32)
    return values * scales, g, rounded == 0
