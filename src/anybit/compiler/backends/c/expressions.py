# SPDX-License-Identifier: Apache-2.0
"""Expressions of C without needless terms and factors.

Sums and products leave out 0 and 1. With a parameter, they are left out where it is a value, but
not where it is a field of a struct.
"""

import re

from anybit.compiler.backends.c.literals import format_integer
from anybit.compiler.backends.c.parameters import Parameter, format_operand


def choose(expression: str, value: str) -> str:
    """Return text that is an expression where its parameters are fields, and else a value."""
    return f"\x04{expression}\x05{value}\x06"


def bare(number: int) -> str:
    """Return a number or an expression of parameters, without parentheses around it."""
    return f"{number:bare}" if isinstance(number, Parameter) else str(number)


def times(text: str, number: int) -> str:
    """Return the expression of a product with a number; a factor of 1 is left out."""
    if text == "0":
        return text
    factor = f"({text})" if re.search(r" [-+] ", text) else text
    if not isinstance(number, Parameter):
        return factor if number == 1 else f"{factor} * {number}"
    return factor + choose(f" * {number:operand}", "" if number == 1 else f" * {int(number)}")


def plus(text: str, term: int | str) -> str:
    """Return the expression of a sum with a number or an expression; 0 is left out."""
    if text == "0":
        return str(term)
    if isinstance(term, Parameter):
        return text + choose(f" + {term:operand}", _format_term(int(term)))
    if isinstance(term, str) and term != "0":
        return f"{text} + {term}"
    return text + _format_term(int(term))


def minus(text: str, term: int) -> str:
    """Return the expression of a difference to a number; 0 is left out."""
    if text == "0":
        return choose(f"0 - {format_operand(term)}", str(-int(term)))
    return text + choose(f" - {format_operand(term)}", _format_term(-int(term)))


def _format_term(term: int) -> str:
    if not term:
        return ""
    return f" - {format_integer(-term)}" if term < 0 else f" + {term}"


def prefix_factor(number: int) -> str:
    """Return a factor and the sign before what it multiplies; "" for 1."""
    value = {1: "", -1: "-"}.get(int(number), f"{int(number)} * ")
    return choose(f"{format_operand(number)} * ", value)


def locate(row: str, column: str, width: int, channels: int) -> str:
    """Return the place of a pixel in memory."""
    return times(plus(times(row, width), column), channels)


def format_size(size: int) -> str:
    """Return bytes as an argument of memcpy."""
    return choose(f"(size_t){size:operand}", str(int(size)))


def emit_first(start: str, dilation: int, cast: str) -> str:
    """Return the expression of the first element of a window that is not before its tensor."""
    steps = f"-{start}" if dilation == 1 else f"((-{start} + {dilation - 1}) / {dilation})"
    return f"{start} < 0 ? {cast}{steps} : 0"


def emit_last(start: str, kernel: int, dilation: int, size: int, cast: str) -> str:
    """Return the expression of the end of the elements of a window within its tensor."""
    last = plus(start, (kernel - 1) * dilation)
    rest = f"{size + dilation - 1} - {start}"
    if dilation > 1:
        rest = f"({rest}) / {dilation}"
    return f"{last} < {size} ? {kernel} : {f'{cast}({rest})' if cast else rest}"


FILTERS = {"times": times, "plus": plus, "minus": minus}
FUNCTIONS = {
    "bare": bare,
    "locate": locate,
    "prefix_factor": prefix_factor,
    "size_of": format_size,
}
