# SPDX-License-Identifier: Apache-2.0
"""Domains and roles of an operator's inputs, as annotations in its signature."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any


@dataclass(frozen=True)
class Domain:
    """A set of numbers including its limits; without limits, NaN and infinities are included.

    Arrays must have one of `dtypes`, if there are any; Python numbers only have to be in the set.
    """

    description: str
    integer: bool = False
    minimum: float = -math.inf
    maximum: float = math.inf
    dtypes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return repr(self.description)  # shown by help() for an operator's inputs


class Role(StrEnum):
    """The meaning of an input. Names of inputs vary; the role is always the same.

    Scale, zero-point and width are those of the result; `IN_BITWIDTH` is that of x.
    """

    DATA = "data"
    SCALE = "scale"
    IN_SCALE = "scale of the input"
    ZERO_POINT = "zero-point"
    BITWIDTH = "bit-width"
    IN_BITWIDTH = "bit-width of the input"
    EXPONENT_BITWIDTH = "exponent bit-width"
    MANTISSA_BITWIDTH = "mantissa bit-width"
    EXPONENT_BIAS = "exponent bias"
    LIMIT = "largest value"

    def __repr__(self) -> str:
        return repr(self.value)  # shown by help() for an operator's inputs


FLOATING = Domain(
    "float32, float64, float16 or bfloat16",
    dtypes=("float32", "float64", "float16", "bfloat16"),
)
REAL = Domain("a real number")
NON_NEGATIVE = Domain("a number >= 0", minimum=0)
INTEGER = Domain("an integer", integer=True)
POSITIVE_INTEGER = Domain("an integer >= 1", integer=True, minimum=1)
NON_NEGATIVE_INTEGER = Domain("an integer >= 0", integer=True, minimum=0)
FLOAT32 = Domain("float32", dtypes=("float32",))
SMALL_INTEGER = Domain(
    "int8, uint8 or int32",
    integer=True,
    minimum=-(2**31),
    maximum=2**31 - 1,
    dtypes=("int8", "uint8", "int32"),
)

BYTE = Domain("int8 or uint8", integer=True, minimum=-128, maximum=255, dtypes=("int8", "uint8"))

Floating = Annotated[Any, FLOATING]
"""An array of any array-API library, or anything that `numpy.asarray` accepts."""
Scale = Annotated[Any, REAL, Role.SCALE]
InScale = Annotated[Any, REAL, Role.IN_SCALE]
ZeroPoint = Annotated[Any, REAL, Role.ZERO_POINT]
BitWidth = Annotated[Any, POSITIVE_INTEGER, Role.BITWIDTH]
InBitWidth = Annotated[Any, POSITIVE_INTEGER, Role.IN_BITWIDTH]
ExponentBitWidth = Annotated[Any, POSITIVE_INTEGER, Role.EXPONENT_BITWIDTH]
MantissaBitWidth = Annotated[Any, NON_NEGATIVE_INTEGER, Role.MANTISSA_BITWIDTH]
ExponentBias = Annotated[Any, INTEGER, Role.EXPONENT_BIAS]
Limit = Annotated[Any, NON_NEGATIVE, Role.LIMIT]
Float32 = Annotated[Any, FLOAT32]
Byte = Annotated[Any, BYTE]
Float32Scale = Annotated[Any, FLOAT32, Role.SCALE]
SmallZeroPoint = Annotated[Any, SMALL_INTEGER, Role.ZERO_POINT]
