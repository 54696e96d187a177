# SPDX-License-Identifier: Apache-2.0
"""Block formats by name: MX and NVFP4."""

from dataclasses import dataclass
from enum import StrEnum

from anybit import formats
from anybit.formats import FloatFormat


class ScaleRule(StrEnum):
    """Rules for the scale of a block, computed from its largest magnitude (absmax)."""

    FLOOR = "floor"
    """2^(floor(log2(absmax)) - floor(log2(largest element))), the rule of OCP MX v1.0; larger
    values saturate."""
    CEIL = "ceil"
    """The smallest power of two at which no value saturates."""
    EVEN = "even"
    """As floor, after rounding absmax to the mantissa bits of an element."""
    MSE = "mse"
    """The scale with the least squared error among the neighbors of floor or absmax."""
    ABSMAX = "absmax"
    """absmax / largest element: the rule of NVFP4."""


@dataclass(frozen=True)
class BlockFormat:
    """A format with narrow elements and one 8-bit scale per block of elements.

    Attributes:
        name: The result of `str`.
        element: The format of the elements; None for MX's 8-bit integers, multiples of 2^-6
            between -127/64 and 127/64.
        size: Number of elements that share a scale.
        second_scale: Whether scales are float8_e4m3fn numbers times one float32 per tensor, as in
            NVFP4. Otherwise they are powers of two, as in MX.
    """

    name: str
    element: FloatFormat | None
    size: int = 32
    second_scale: bool = False

    @property
    def bits(self) -> int:
        """The width of an element."""
        return 8 if self.element is None else self.element.bits

    def __str__(self) -> str:
        return self.name


_ALL = (
    BlockFormat("mxfp8", formats.float8_e4m3fn),
    BlockFormat("mxfp8_e5m2", formats.float8_e5m2),
    BlockFormat("mxfp6", formats.float6_e2m3fn),
    BlockFormat("mxfp6_e3m2", formats.float6_e3m2fn),
    BlockFormat("mxfp4", formats.float4_e2m1fn),
    BlockFormat("mxint8", None),
    BlockFormat("nvfp4", formats.float4_e2m1fn, 16, second_scale=True),
)
BLOCK_FORMATS = {format.name: format for format in _ALL} | {
    "mxfp8_e4m3": _ALL[0],
    "mxfp6_e2m3": _ALL[2],
    "mxfp4_e2m1": _ALL[4],
}
"""Block formats by name; some have two names."""
