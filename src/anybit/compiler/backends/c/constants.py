# SPDX-License-Identifier: Apache-2.0
"""Constant arrays of a C file."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from anybit.compiler.backends.c.expressions import plus
from anybit.compiler.backends.c.literals import format_float, format_integer, parenthesize
from anybit.compiler.backends.c.parameters import mark
from anybit.compiler.backends.c.types import CType, find_type
from anybit.onnx.graph.constants import Array

_WIDTH, _INDENT = 98, 3


@dataclass(frozen=True)
class Constant:
    """An array in read-only memory.

    Attributes:
        name: Its name in C.
        ctype: Type of its elements.
        part: What it is to the layer that reads it: weights, thresholds, ...
    """

    name: str
    ctype: CType
    part: str

    @property
    def symbol(self) -> str:
        """The array in the text of a function: a parameter of its layer."""
        return mark(self.part, f"const {self.ctype.value} *", self.name)

    def at(self, index: str) -> str:
        """Return the expression that reads an element."""
        return f"READ_{self.ctype.short.upper()}({plus(self.symbol, index)})"

    def bit(self, index: str) -> str:
        """Return the expression that reads a bit of an array of bytes."""
        place = parenthesize(index)
        return f"({self.at(f'({place} >> 3)')} >> ({place} & 7) & 1)"

    def count(self, number: str, start: str, size: int) -> str:
        """Return the expression of the number of `size` ascending elements that a number reaches.

        The function that it calls is one of `Helpers.searches`.
        """
        return f"count_thresholds_{self.ctype.short}({number}, {start}, {size})"

    def has(self, number: str, size: int) -> str:
        """Return the expression of whether a number is one of `size` ascending elements."""
        counts = (self.count(key, self.symbol, size) for key in (number, f"{number} - 1"))
        return f"({' != '.join(counts)})"


class Constants:
    """The arrays of a file; equal ones are stored once."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[CType, bytes], tuple[str, CType, Array]] = {}

    def add(self, name: str, numbers: Array, ctype: CType | None = None) -> Constant:
        """Add an array under a name LAYER_PART, in the smallest type that holds it.

        An equal array is reused.
        """
        flat = np.ravel(numbers)
        if ctype is None:
            ctype = find_type(int(flat.min()), int(flat.max()))
        stored = flat.astype(ctype.dtype)
        key = ctype, stored.tobytes()
        stored_name, _, _ = self._arrays.setdefault(key, (name, ctype, stored))
        return Constant(stored_name, ctype, name.rpartition("_")[2])

    @property
    def bytes(self) -> int:
        """Size of all arrays."""
        return sum(array.nbytes for _, _, array in self._arrays.values())

    @property
    def largest(self) -> int:
        """Size of the largest array."""
        return max((array.nbytes for _, _, array in self._arrays.values()), default=0)

    @property
    def types(self) -> set[CType]:
        """The types of the arrays."""
        return {ctype for _, ctype, _ in self._arrays.values()}

    def declare(self) -> str:
        """Return the declarations of all arrays."""
        return "\n".join(_declare(*entry) for entry in self._arrays.values())


def _declare(name: str, ctype: CType, array: Array) -> str:
    head = f"static const {ctype.value} {name}[{array.size}] IN_FLASH = {{"
    numbers = map(str if ctype.size < 4 else partial(_format, ctype), array.tolist())
    texts = [f" {number}," for number in numbers]
    ends = list(accumulate(map(len, texts)))
    lines, start, used = [head], 0, 0
    while start < len(texts):
        end = max(bisect_right(ends, used + _WIDTH - _INDENT), start + 1)
        lines.append(" " * _INDENT + "".join(texts[start:end]))
        start, used = end, ends[end - 1]
    return "\n".join([*lines, "};\n"])


def _format(ctype: CType, number: int | float) -> str:
    return format_float(number) if ctype is CType.FLOAT else format_integer(int(number))
