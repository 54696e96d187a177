# SPDX-License-Identifier: Apache-2.0
"""Constant arrays of a C file."""

from dataclasses import dataclass

import numpy as np

from anybit.compiler.backends.c.types import CType, find_type
from anybit.onnx.graph.constants import Array

_WIDTH = 98


@dataclass(frozen=True)
class Constant:
    """An array in read-only memory.

    Attributes:
        name: Its name in C.
        ctype: Type of its elements.
    """

    name: str
    ctype: CType

    def at(self, index: str) -> str:
        """Return the expression that reads an element."""
        return f"READ_{self.ctype.short.upper()}({self.name} + {index})"

    def bit(self, index: str) -> str:
        """Return the expression that reads a bit of an array of bytes."""
        return f"({self.at(f'(({index}) >> 3)')} >> (({index}) & 7) & 1)"

    def count(self, number: str, start: str, size: int) -> str:
        """Return the expression of the number of `size` ascending elements that a number reaches.

        The function that it calls is one of `Helpers.searches`.
        """
        return f"count_thresholds_{self.ctype.short}({number}, {start}, {size})"

    def has(self, number: str, size: int) -> str:
        """Return the expression of whether a number is one of `size` ascending elements."""
        counts = (self.count(key, self.name, size) for key in (number, f"{number} - 1"))
        return f"({' != '.join(counts)})"


class Constants:
    """The arrays of a file; equal ones are stored once."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[CType, bytes], tuple[Constant, Array]] = {}

    def add(self, name: str, numbers: Array, ctype: CType | None = None) -> Constant:
        """Add an array under a name, in the smallest type that holds it; reuse an equal one."""
        flat = np.ravel(numbers)
        if ctype is None:
            ctype = find_type(int(flat.min()), int(flat.max()))
        stored = flat.astype(ctype.dtype)
        key = ctype, stored.tobytes()
        return self._arrays.setdefault(key, (Constant(name, ctype), stored))[0]

    @staticmethod
    def measure(numbers: Array) -> int:
        """Return the bytes of integers in the smallest type."""
        return int(numbers.size * find_type(int(numbers.min()), int(numbers.max())).size)

    @property
    def bytes(self) -> int:
        """Size of all arrays."""
        return sum(array.nbytes for _, array in self._arrays.values())

    @property
    def types(self) -> set[CType]:
        """The types of the arrays."""
        return {constant.ctype for constant, _ in self._arrays.values()}

    def declare(self) -> str:
        """Return the declarations of all arrays."""
        return "\n".join(_declare(*entry) for entry in self._arrays.values())


def _declare(constant: Constant, array: Array) -> str:
    head = f"static const {constant.ctype.value} {constant.name}[{array.size}] IN_FLASH = {{"
    lines, line = [head], "   "
    for number in array:
        text = f" {_format(number, constant.ctype)},"
        if len(line) + len(text) > _WIDTH:
            lines.append(line)
            line = "   "
        line += text
    return "\n".join([*lines, line, "};\n"])


def _format(number: np.generic, ctype: CType) -> str:
    if ctype is CType.FLOAT:
        return format_float(float(number))
    return format_integer(int(number))


def format_integer(number: int) -> str:
    """Return a constant expression for an integer of at most 64 bits.

    C gives a decimal constant the first of int, long and long long that holds it.
    """
    return f"({number + 1} - 1)" if number in (-(2**31), -(2**63)) else str(number)


def format_offset(count: int, channels: int) -> str:
    """Return the place of a channel's first number; 16 bits of an int may not hold it."""
    cast = "(int32_t)" if count * channels >= 2**15 else ""
    return "channel" if count == 1 else f"channel * {cast}{count}"


def format_float(number: float) -> str:
    """Return a constant expression for a float32 number, exact to the bit."""
    if np.isnan(number):
        return "(0.0f / 0.0f)"
    if np.isinf(number):
        return "(1.0f / 0.0f)" if number > 0 else "(-1.0f / 0.0f)"
    text = f"{number:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
