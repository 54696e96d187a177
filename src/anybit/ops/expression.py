# SPDX-License-Identifier: Apache-2.0
"""Expressions that recording arrays leave behind: what the arrays share, and a walk over them."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from types import ModuleType
from typing import Any, ClassVar, Protocol, Self, TypeVar


class Recording(ABC):
    """An array that records what is done to it: the base of the tracers.

    A reference that is run on such arrays leaves the expression of its result. A tracer says what
    an operation gives; here is what follows from that for Python's operators.

    Attributes:
        functions: The array-API namespace of the class. That module needs the class, and so binds
            itself, and it is where arrays are made first: whoever has one has its namespace.
    """

    functions: ClassVar[ModuleType]

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        return self.functions

    @abstractmethod
    def beside(self, value: Any) -> Self:
        """A Python number in the dtype of this array; a recording array as it is."""

    @abstractmethod
    def compared(self, relation: str, other: Any) -> Self:
        """Where the relation holds: one of the names of `operator`, lt, le, gt, ge, eq, ne."""

    @abstractmethod
    def __add__(self, other: Any) -> Self: ...

    @abstractmethod
    def __sub__(self, other: Any) -> Self: ...

    @abstractmethod
    def __mul__(self, other: Any) -> Self: ...

    @abstractmethod
    def __truediv__(self, other: Any) -> Self: ...

    def __radd__(self, other: Any) -> Self:
        return self.beside(other) + self

    def __rsub__(self, other: Any) -> Self:
        return self.beside(other) - self

    def __rmul__(self, other: Any) -> Self:
        return self.beside(other) * self

    def __rtruediv__(self, other: Any) -> Self:
        return self.beside(other) / self

    def __lt__(self, other: Any) -> Self:
        return self.compared("lt", other)

    def __le__(self, other: Any) -> Self:
        return self.compared("le", other)

    def __gt__(self, other: Any) -> Self:
        return self.compared("gt", other)

    def __ge__(self, other: Any) -> Self:
        return self.compared("ge", other)

    def __eq__(self, other: Any) -> Self:  # type: ignore[override]
        return self.compared("eq", other)

    def __ne__(self, other: Any) -> Self:  # type: ignore[override]
        return self.compared("ne", other)

    __hash__ = object.__hash__


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
