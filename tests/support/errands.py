# SPDX-License-Identifier: Apache-2.0
"""Work for workers. It stands in a module of its own, because other processes import it."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anybit import ModelError
from anybit.workers import Processes


def adder(common: int) -> Callable[[int], tuple[int, int]]:
    """Adds to pieces, and says who did."""
    return lambda piece: (common + piece, os.getpid())


def doomed(folder: Path) -> Callable[[int], int]:
    """Gives pieces back, but ends on an odd one that it meets for the first time."""

    def done(piece: int) -> int:
        if piece % 2 and not (folder / str(piece)).exists():
            (folder / str(piece)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return piece

    return done


def ending(common: None) -> Callable[[int], int]:
    """Ends on every piece."""
    return lambda piece: os.kill(os.getpid(), signal.SIGKILL) or piece


def refusing(common: str) -> Callable[[int], int]:
    """Cannot be hired."""
    raise ModelError(common)


def refusing_metric(outputs: dict[str, Any], labels: Any) -> float:
    """A metric that raises."""
    raise ValueError(f"{len(labels)} labels")


def sleeper(folder: Path) -> Callable[[int], int]:
    """Writes down who it is, and sleeps."""

    def done(piece: int) -> int:
        (folder / str(os.getpid())).touch()
        time.sleep(1000)
        return piece

    return done


if __name__ == "__main__":
    # Whoever started the tests in the background may have had it ignored, which is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Processes(2) as processes:
        list(processes.map(sleeper, Path(sys.argv[1]), range(4)))
