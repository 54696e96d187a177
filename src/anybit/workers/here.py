# SPDX-License-Identifier: Apache-2.0
"""Threads of this process: for what lets go of the interpreter's lock, as sessions do."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from anybit.workers.interface import Common, Piece, Result, Workers, in_order

_MOST = 8


def cores() -> int:
    """How many this process may use; of the machine, on systems that do not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Here(Workers):
    """One worker, called by several threads.

    Args:
        threads: How many; None for as many as there are cores, up to 8, since each holds what it
            is about in memory. One is the caller itself.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(cores(), _MOST)

    def map(
        self,
        hire: Callable[[Common], Callable[[Piece], Result]],
        common: Common,
        pieces: Iterable[Piece],
    ) -> Iterator[Result]:
        worker = hire(common)
        if self._threads == 1:
            yield from map(worker, pieces)
            return
        pool = ThreadPoolExecutor(self._threads)
        try:
            yield from in_order(
                lambda piece: pool.submit(worker, piece), Future.result, pieces, 2 * self._threads
            )
        finally:
            pool.shutdown(cancel_futures=True)
