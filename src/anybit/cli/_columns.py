# SPDX-License-Identifier: Apache-2.0
"""Tables that fit the terminal: of rows that are too wide some columns are left out."""

from collections.abc import Callable, Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Rows = list[dict[str, str]]

NARROWEST_NAME = 14
"""A column of names takes this much; longer ones go over several lines."""


def width(
    rows: Rows,
    names: Collection[str],
    table: Callable[[Rows], Table],
    console: Console,
    longest_name: int | None = None,
) -> int:
    """How wide the table is if nothing of it is broken but names of more characters."""
    cut = [row | {name: row[name][:longest_name] for name in names if name in row} for row in rows]
    return console.measure(table(cut), options=console.options.update(width=10**6)).maximum


def spared(
    rows: Rows,
    columns: Sequence[str],
    names: Collection[str],
    table: Callable[[Rows], Table],
    console: Console,
) -> Rows:
    """The rows without the first of these columns, as many as there is no room for."""
    for column in columns:
        if width(rows, names, table, console, NARROWEST_NAME) <= console.width:
            break
        rows = [{heading: row[heading] for heading in row if heading != column} for row in rows]
    return rows


def headed(rows: Rows, names: Collection[str], numbers: Collection[str]) -> Table:
    """A table with the columns of these rows, and no row yet.

    Where the terminal is narrow, names go over several lines; all else stays on one.
    """
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in rows[0]:
        if heading in names:
            longest = max(len(row[heading]) for row in rows)
            table.add_column(heading, overflow="fold", min_width=min(longest, NARROWEST_NAME))
        else:
            right = heading in numbers
            table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    return table
