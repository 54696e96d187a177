# SPDX-License-Identifier: Apache-2.0
"""Where commands print to."""

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status

# Wider than any table: a pipe or a file has no width, and programs want whole lines.
_WHOLE_LINES = 10_000


def stdout() -> Console:
    """The console of stdout: as wide as the terminal, or without bound."""
    console = Console()
    return console if console.is_terminal else Console(width=_WHOLE_LINES)


def working(on: str, path: Path) -> Status:
    """Shows on a terminal's stderr what is being done with a file, until that is done."""
    return Console(stderr=True).status(f"{on} {escape(path.name)}")
