# SPDX-License-Identifier: Apache-2.0
"""Which values an operator can give: what conversions to and from native types need to know.

A grid is stated in terms of arrays and formats, not of any framework. Operators that have one
define `grid`, from parameters to a grid, and where the operator can be built from a grid,
`from_grid`, the way back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from anybit.formats import FloatFormat

Array: TypeAlias = npt.NDArray[Any]


class Coding(StrEnum):
    """How x becomes a code."""

    NEAREST = "nearest"
    """x / scale + zeropt, rounded half to even, saturated."""
    SIGN = "sign"
    """+1 for x >= 0, -1 elsewhere, NaN included."""
    OTHER = "other"
    """In a way of its own; the codes of known results can still be told."""


@dataclass(frozen=True)
class IntegerGrid:
    """The values (code - zeropt) * scale for the integer codes lowest .. highest.

    `scale` and `zeropt` are float arrays that broadcast to x.
    """

    scale: Array
    zeropt: Array
    lowest: int
    highest: int
    coding: Coding = Coding.NEAREST


@dataclass(frozen=True)
class FloatGrid:
    """The values of a floating-point format, each times scale."""

    scale: Array
    format: FloatFormat
    coding: Coding = Coding.NEAREST


Grid: TypeAlias = IntegerGrid | FloatGrid


@dataclass(frozen=True)
class Call:
    """The parameters, by input name, and the attributes of a call."""

    parameters: Mapping[str, Array]
    attributes: Mapping[str, bool | int | str]


def single(values: Any) -> int | None:
    """The one integer that an array of integers holds, if it holds one only."""
    distinct = np.unique(np.asarray(values, dtype=np.float64))
    return int(distinct[0]) if distinct.size == 1 else None
