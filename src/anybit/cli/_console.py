# SPDX-License-Identifier: Apache-2.0
"""Where commands print to."""

from rich.console import Console

# Wider than any table: a pipe or a file has no width, and programs want whole lines.
_WHOLE_LINES = 10_000


def stdout() -> Console:
    """The console of stdout: as wide as the terminal, or without bound."""
    console = Console()
    return console if console.is_terminal else Console(width=_WHOLE_LINES)
