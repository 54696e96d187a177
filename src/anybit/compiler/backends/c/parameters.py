# SPDX-License-Identifier: Apache-2.0
"""Numbers and arrays of a layer that functions of C read by name.

The text of a function marks its parameters, so that layers can share a function: those that differ
between its layers become fields of a struct, and the others constants.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import SupportsIndex

# Marks are control characters: the identifiers and comments from names of a model have none.
_MARK = re.compile("\x01([^\x01-\x03]*)\x02([^\x01-\x03]*)\x02([^\x01-\x03]*)\x03")
_EXPRESSION = re.compile("\x04([^\x04-\x06]*)\x05([^\x04-\x06]*)\x06")


class Place(StrEnum):
    """Places in the text of a function that are filled last.

    Attributes:
        NAME: The name of the function.
        PARAMETER: A parameter before all others.
        START: The start of its body.
        ARGUMENT: An argument before all others of a call.
    """

    NAME = "\x0e"
    PARAMETER = "\x10"
    START = "\x11"
    ARGUMENT = "\x12"


PLACES = {place.name.lower(): place.value for place in Place}
"""The places by their names in templates."""


@dataclass(frozen=True)
class Argument:
    """The value of a parameter.

    Attributes:
        ctype: Its type; empty for the smallest integer type that holds it.
        text: The value as an expression of C.
    """

    ctype: str
    text: str


def mark(name: str, ctype: str, text: str) -> str:
    """Return the mark of a parameter in the text of a function."""
    return f"\x01{name}\x02{ctype}\x02{text}\x03"


class Parameter(int):
    """An integer that prints as the mark of a parameter, or as an expression of such.

    Its formats are "operand", always the expression, and "bare", without parentheses around it.

    Sums, differences and products are expressions of their operands.
    """

    _text: str

    def __new__(cls, value: int, name: str, ctype: str = "") -> "Parameter":
        """Return a parameter of a name and, if its type matters, a type of C."""
        return cls._make(value, mark(name, ctype, str(int(value))))

    @classmethod
    def _make(cls, value: int, text: str) -> "Parameter":
        made = super().__new__(cls, value)
        made._text = text
        return made

    def __str__(self) -> str:
        if _MARK.fullmatch(self._text):
            return self._text
        return f"\x04({self._text})\x05{int(self)}\x06"

    def __format__(self, spec: str) -> str:
        if spec == "operand":
            return self._operand
        return f"\x04{self._text}\x05{int(self)}\x06" if spec == "bare" else str(self)

    def __add__(self, other: int) -> int:
        return self if _is_plain(other, 0) else self._join("+", other)

    def __sub__(self, other: int) -> int:
        return self if _is_plain(other, 0) else self._join("-", other)

    def __mul__(self, other: int) -> int:
        return self if _is_plain(other, 1) else self._join("*", other)

    def __rmul__(self, other: int) -> int:
        return self * other

    def _join(self, symbol: str, other: int) -> "Parameter":
        value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[symbol](self, other)
        return Parameter._make(value, f"{self._operand} {symbol} {format_operand(other)}")

    @property
    def _operand(self) -> str:
        return self._text if _MARK.fullmatch(self._text) else f"({self._text})"


def format_operand(number: int) -> str:
    """Return a number, or an expression of parameters in parentheses."""
    return number._operand if isinstance(number, Parameter) else str(int(number))


def _is_plain(number: SupportsIndex, value: int) -> bool:
    return not isinstance(number, Parameter) and number == value


def find_arguments(text: str) -> dict[str, Argument]:
    """Return the values of the parameters of a function."""
    return {name: Argument(ctype, value) for name, ctype, value in _MARK.findall(text)}


def hide_arguments(text: str) -> str:
    """Return the text of a function without values: equal for functions that can be shared."""
    return _MARK.sub("\x01\\1\x02\\2\x03", _EXPRESSION.sub(r"\1", text))


def fill_arguments(text: str, fields: Collection[str] = ()) -> str:
    """Replace marks: by fields of a struct for some names, else by values."""

    def fill(match: re.Match[str]) -> str:
        name, _, value = match.groups()
        return f"layer->{name}" if name in fields else value

    def select(match: re.Match[str]) -> str:
        expression, value = match.groups()
        return expression if fields & find_arguments(expression).keys() else value

    fields = set(fields)
    return _MARK.sub(fill, _EXPRESSION.sub(select, text))


def fill_places(text: str, values: Mapping[Place, str]) -> str:
    """Replace places by text, those without a value by nothing."""
    for place in Place:
        text = text.replace(place, values.get(place, ""))
    return text
