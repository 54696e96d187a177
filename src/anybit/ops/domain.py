# SPDX-License-Identifier: Apache-2.0
"""Which values an operator's input may hold, written as annotations in its signature."""

import math
from dataclasses import dataclass
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

Floating = Annotated[Any, FLOATING]
"""An array of any array-API library, or for NumPy whatever `numpy.asarray` takes."""
Real = Annotated[Any, REAL]
NonNegative = Annotated[Any, NON_NEGATIVE]
Integer = Annotated[Any, INTEGER]
PositiveInteger = Annotated[Any, POSITIVE_INTEGER]
NonNegativeInteger = Annotated[Any, NON_NEGATIVE_INTEGER]
Float32 = Annotated[Any, FLOAT32]
SmallInteger = Annotated[Any, SMALL_INTEGER]
