# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine."""

import os
import pickle
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from anybit.errors import ModelError
from anybit.workers.interface import Common, Piece, Result, Workers, in_order

# So often in a row processes may end before anything else comes of them.
_LIVES = 3
# A file that says that it was the parent who ended its processes.
_ENDED = "ended"


@dataclass
class _Errand:
    piece: Any
    future: "Future[Any]"


class Processes(Workers):
    """Processes that are started for this, and end with it, however it ends.

    They are spawned: what a program does when it is run, and not only imported, must stand behind
    `if __name__ == "__main__":`.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._folder = Path(tempfile.mkdtemp(prefix="anybit-workers-"))
        self._jobs = 0
        self._lives = _LIVES
        self._start()

    def map(
        self,
        hire: Callable[[Common], Callable[[Piece], Result]],
        common: Common,
        pieces: Iterable[Piece],
    ) -> Iterator[Result]:
        self._jobs += 1
        job = self._folder / f"{self._jobs}"
        with job.open("wb") as file:
            try:
                pickle.dump((hire, common), file, pickle.HIGHEST_PROTOCOL)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ModelError(
                    f"this cannot be sent to processes: {error}; what they call must stand in a "
                    "module"
                ) from error
        submitted: list[_Errand] = []

        def submit(piece: Piece) -> _Errand:
            errand = _Errand(piece, self._submitted(job, piece, submitted))
            submitted.append(errand)
            return errand

        def result(errand: _Errand) -> Result:
            while True:
                try:
                    found: Result = errand.future.result()
                except BrokenProcessPool:
                    self._restart(job, submitted)
                else:
                    submitted.remove(errand)
                    self._lives = _LIVES
                    return found

        yield from in_order(submit, result, pieces, 2 * self._count)
        job.unlink()

    def _submitted(self, job: Path, piece: object, others: list[_Errand]) -> "Future[Any]":
        while True:
            try:
                return self._pool.submit(_done, job, piece)
            except BrokenProcessPool:
                self._restart(job, others)

    def _restart(self, job: Path, errands: list[_Errand]) -> None:
        """New processes, for all that the old ones did not finish."""
        self._lives -= 1
        if not self._lives:
            raise ChildProcessError(
                f"workers ended {_LIVES} times before they were done: killed, perhaps for want of "
                "memory, of which each takes its own (use fewer); or their program does not stand "
                'behind `if __name__ == "__main__":`'
            )
        self._stop()
        self._start()
        for errand in errands:
            future = errand.future
            if future.cancelled() or isinstance(future.exception(), BrokenProcessPool):
                errand.future = self._pool.submit(_done, job, errand.piece)

    def _start(self) -> None:
        context = get_context("spawn")
        reader, self._writer = context.Pipe(duplex=False)
        self._reader = reader
        (self._folder / _ENDED).unlink(missing_ok=True)
        self._pool = ProcessPoolExecutor(self._count, context, _bound, (reader, self._folder))

    def _stop(self) -> None:
        """End them at once, whatever they do."""
        with suppress(OSError):  # for want of room or of the folder, which they may remove then
            (self._folder / _ENDED).touch()
        self._writer.close()
        self._pool.shutdown(cancel_futures=True)
        self._reader.close()

    def close(self) -> None:
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _bound(reader: Connection, folder: Path) -> None:
    """Tie this process to its parent: it ends when the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which goes to all; the parent closes the pipe
    threading.Thread(target=_end_with, args=(reader, folder), daemon=True).start()


def _end_with(reader: Connection, folder: Path) -> None:
    reader.poll(None)
    if not (folder / _ENDED).exists():
        shutil.rmtree(folder, ignore_errors=True)  # the parent was killed
    os._exit(1)


@lru_cache(maxsize=1)
def _worker(job: Path) -> Callable[[Any], Any]:
    with job.open("rb") as file:
        hire, common = pickle.load(file)
    worker: Callable[[Any], Any] = hire(common)
    return worker


def _done(job: Path, piece: object) -> object:
    return _worker(job)(piece)
