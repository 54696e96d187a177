# SPDX-License-Identifier: Apache-2.0
"""Walking the expressions that recording arrays leave behind: anything that has `operands`."""

from collections.abc import Container, Iterator
from typing import Protocol, TypeVar


class Expression(Protocol):
    @property
    def operands(self) -> "tuple[Expression, ...]": ...


E = TypeVar("E", bound=Expression)


def operands_first(result: E, written: Container[E]) -> Iterator[E]:
    """What of the expression is not written yet, each part after its operands.

    The caller adds each to `written` before it asks for the next. Deep expressions need no deep
    stack.
    """
    waiting = [result]
    while waiting:
        each = waiting[-1]
        missing = [operand for operand in each.operands if operand not in written]
        if each in written:
            waiting.pop()
        elif missing:
            waiting.extend(reversed(missing))  # type: ignore[arg-type]
        else:
            yield waiting.pop()
