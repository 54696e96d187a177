# SPDX-License-Identifier: Apache-2.0
"""What workers are to those who have work, and the order that all kinds of them keep."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

Common = TypeVar("Common")
Piece = TypeVar("Piece")
Result = TypeVar("Result")
Ticket = TypeVar("Ticket")


class Workers(ABC):
    """Those who do pieces of work. They are let go at the end of a `with`.

    Attributes:
        near: Whether they see the temporary files of this machine.
    """

    near = True

    @abstractmethod
    def map(
        self,
        hire: Callable[[Common], Callable[[Piece], Result]],
        common: Common,
        pieces: Iterable[Piece],
    ) -> Iterator[Result]:
        """The results of all pieces, in order.

        Args:
            hire: Makes a worker, once per process; a function or class of a module.
            common: What it is made of, the same for all.
            pieces: Taken a few at a time, while others are done.

        Raises:
            ChildProcessError: Workers end again and again before they are done.
        """

    def close(self) -> None:  # noqa: B027  there may be nothing to let go
        """Let them go, whatever they do."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def in_order(
    submit: Callable[[Piece], Ticket],
    result: Callable[[Ticket], Result],
    pieces: Iterable[Piece],
    most: int,
) -> Iterator[Result]:
    """The results in the order of the pieces, of which so many are on their way at a time."""
    waiting: deque[Ticket] = deque()
    for piece in pieces:
        waiting.append(submit(piece))
        if len(waiting) >= most:
            yield result(waiting.popleft())
    while waiting:
        yield result(waiting.popleft())
