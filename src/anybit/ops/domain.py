# SPDX-License-Identifier: Apache-2.0
"""What an operator's input may hold and what it is for, as annotations in its signature."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any


@dataclass(frozen=True)
class Domain:
    """A set of numbers, limits included; without limits NaN and infinities are welcome too.

    Arrays must be of one of `dtypes`, if any are named; Python numbers need only be in the set.
    """

    description: str
    integer: bool = False
    minimum: float = -math.inf
    maximum: float = math.inf
    dtypes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return repr(self.description)  # what help() shows of an operator's inputs


class Role(StrEnum):
    """What an input is for. Operators name it as their documents do; its role is always the same.

    Scale, zero-point and width are those of the result, `IN_BITWIDTH` that of x.
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
        return repr(self.value)  # what help() shows of an operator's inputs


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
"""An array of any array-API library, or for NumPy whatever `numpy.asarray` takes."""
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
