# SPDX-License-Identifier: Apache-2.0
"""Consoles and progress bars of commands."""

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


def get_stdout() -> Console:
    """Return the console of stdout. Numbers get no colours.

    Its width is COLUMNS, if that is set, or the width of the terminal. Pipes and files get whole
    lines.
    """
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        return console
    return Console(width=_WHOLE_LINES, highlight=False)


def show_status(verb: str, path: Path) -> Status:
    """Return a status on the stderr of a terminal: the current work on a file."""
    return Console(stderr=True).status(f"{verb} {escape(path.name)}")


@contextmanager
def show_percentage(title: str) -> Iterator[Callable[[float], None]]:
    """Yield a function that takes the share of work done and shows it on the stderr of a terminal.

    Nothing is shown of work that takes less than half a second.
    """
    console = Console(stderr=True)
    next_time = time.perf_counter() + _SECONDS_BEFORE_PROGRESS
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=1.0, visible=False)

        def advance(share: float) -> None:
            nonlocal next_time
            now = time.perf_counter()
            if now > next_time:
                bar.update(task, completed=share, visible=True)
                next_time = now + 0.1

        yield advance
