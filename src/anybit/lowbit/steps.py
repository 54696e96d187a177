# SPDX-License-Identifier: Apache-2.0
"""Steps of float32 arithmetic, of which the tails of a program are made."""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]


class Operation(IntEnum):
    """A function of a float32 y and an operand c, each one IEEE operation."""

    ADD = 0
    """y + c"""
    SUBTRACT = 1
    """y - c"""
    SUBTRACT_FROM = 2
    """c - y"""
    MULTIPLY = 3
    """y * c"""
    DIVIDE = 4
    """y / c"""
    MAXIMUM = 5
    """y if y > c else c; NaN stays"""
    MINIMUM = 6
    """y if y < c else c; NaN stays"""
    KEEP = 7
    """y, which is kept besides; before that 0 is. Operands of this one and the next are not read"""
    ADD_KEPT = 8
    """y + what is kept"""
    MULTIPLY_KEPT = 9
    """y * what is kept"""


@dataclass(frozen=True, eq=False)
class Step:
    """One operation, with one operand or one per channel."""

    operation: int
    operands: Floats
