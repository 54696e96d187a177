# SPDX-License-Identifier: Apache-2.0
"""Where commands print to."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.status import Status

# Wider than any table: a pipe or a file has no width, and programs want whole lines.
_WHOLE_LINES = 10_000
_SECONDS_BEFORE_PROGRESS = 0.5


def stdout() -> Console:
    """Return the console of stdout. Numbers get no colours.

    It is as wide as COLUMNS says, if that is set, or as the terminal; a pipe or a file is as wide
    as the lines that are written to it.
    """
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return console
    return Console(width=_WHOLE_LINES, highlight=False)


def working(on: str, path: Path) -> Status:
    """Shows on a terminal's stderr what is being done with a file, until that is done."""
    return Console(stderr=True).status(f"{on} {escape(path.name)}")


@contextmanager
def percentage(doing: str) -> Iterator[Callable[[float], None]]:
    """A function to call with the share that is done: shown on a terminal's stderr, in per cent.

    Nothing is shown of what is done at once.
    """
    console = Console(stderr=True)
    next_time = time.perf_counter() + _SECONDS_BEFORE_PROGRESS
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=1.0, visible=False)

        def advance(share: float) -> None:
            nonlocal next_time
            now = time.perf_counter()
            if now > next_time:
                bar.update(task, completed=share, visible=True)
                next_time = now + 0.1

        yield advance
