# SPDX-License-Identifier: Apache-2.0
"""Expressions of recording arrays: the common base of the tracers, and a traversal."""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from types import ModuleType
from typing import Any, ClassVar, Protocol, Self, TypeVar


class RecordingArray(ABC):
    """An array that records operations: the base of the tracers.

    A reference returns the expression of its result for such arrays. A tracer defines the
    operations; this class derives Python's operators from them.

    Attributes:
        functions: The array-API namespace of the class. That module imports the class and binds
            itself; it also creates the first arrays, so every array has its namespace.
    """

    functions: ClassVar[ModuleType]

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        return self.functions

    @abstractmethod
    def lift(self, value: Any) -> Self:
        """Return a Python number in the dtype of this array; a recording array as it is."""

    @abstractmethod
    def compare(self, relation: str, other: Any) -> Self:
        """Return where a relation of `operator` (lt, le, gt, ge, eq, ne) holds."""

    @abstractmethod
    def __add__(self, other: Any) -> Self: ...

    @abstractmethod
    def __sub__(self, other: Any) -> Self: ...

    @abstractmethod
    def __mul__(self, other: Any) -> Self: ...

    @abstractmethod
    def __truediv__(self, other: Any) -> Self: ...

    def __radd__(self, other: Any) -> Self:
        return self.lift(other) + self

    def __rsub__(self, other: Any) -> Self:
        return self.lift(other) - self

    def __rmul__(self, other: Any) -> Self:
        return self.lift(other) * self

    def __rtruediv__(self, other: Any) -> Self:
        return self.lift(other) / self

    def __lt__(self, other: Any) -> Self:
        return self.compare("lt", other)

    def __le__(self, other: Any) -> Self:
        return self.compare("le", other)

    def __gt__(self, other: Any) -> Self:
        return self.compare("gt", other)

    def __ge__(self, other: Any) -> Self:
        return self.compare("ge", other)

    def __eq__(self, other: Any) -> Self:  # type: ignore[override]
        return self.compare("eq", other)

    def __ne__(self, other: Any) -> Self:  # type: ignore[override]
        return self.compare("ne", other)

    __hash__ = object.__hash__


class TracedExpression(Protocol):
    @property
    def operands(self) -> "tuple[TracedExpression, ...]": ...


E = TypeVar("E", bound=TracedExpression)


def iterate_operands_first(result: E, written: Container[E]) -> Iterator[E]:
    """Yield the parts of the expression that are not written yet, operands first.

    The caller adds each part to `written` before requesting the next. Deep expressions need no deep
    stack.
    """
    waiting = [result]
    while waiting:
        part = waiting[-1]
        missing = [operand for operand in part.operands if operand not in written]
        if part in written:
            waiting.pop()
        elif missing:
            waiting.extend(reversed(missing))  # type: ignore[arg-type]
        else:
            yield waiting.pop()
