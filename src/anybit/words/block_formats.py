# SPDX-License-Identifier: Apache-2.0
"""Formats whose elements share a scale in blocks: MX and NVFP4, by name."""

from dataclasses import dataclass
from enum import StrEnum

from anybit import formats
from anybit.formats import FloatFormat


class ScaleRule(StrEnum):
    """How a block gets its scale from its largest magnitude."""

    FLOOR = "floor"
    """The power of two below it, over that below the largest element: the rule of OCP MX v1.0.
    What is beyond the largest element is saturated."""
    CEIL = "ceil"
    """The smallest power of two with which nothing is saturated."""
    EVEN = "even"
    """As floor, of the magnitude rounded to as many mantissa bits as elements have."""
    MSE = "mse"
    """Of those around that of floor or absmax the one with the least squared error."""
    ABSMAX = "absmax"
    """The magnitude over the largest element: the rule of NVFP4."""


@dataclass(frozen=True)
class BlockFormat:
    """Elements of few bits, and a scale of 8 bits for each block of them.

    Attributes:
        name: What `str` gives.
        element: The format of the elements; None for MX's 8-bit integers, multiples of 2^-6
            between -127/64 and 127/64.
        size: How many elements share a scale.
        second_scale: Whether scales are float8_e4m3fn numbers times one float32 of the tensor, as
            in NVFP4. If not, they are powers of two, as in MX.
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
BLOCK_FORMATS = {each.name: each for each in _ALL} | {
    "mxfp8_e4m3": _ALL[0],
    "mxfp6_e2m3": _ALL[2],
    "mxfp4_e2m1": _ALL[4],
}
"""By name; some have two."""
