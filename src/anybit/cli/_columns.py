# SPDX-License-Identifier: Apache-2.0
"""Tables that fit the terminal: columns are omitted where there is no room."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from anybit.text import escape_name, shorten_name

TableRows = list[dict[str, str]]

_STYLES = {
    "exact": "green",
    "certified": "green",
    "bounded": "yellow",
    "dynamic": "yellow",
    "float": "dim",
}

NARROWEST_NAME = 14
"""The minimum width of a column of names; longer names wrap."""
_LONGEST_NAME = 48


class _Name:
    """The name of a layer in a cell, which wraps after a dot or a slash."""

    def __init__(self, name: str, style: str) -> None:
        self._name, self._style = name, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in wrap_name(self._name, options.max_width):
            yield Text(line, style=self._style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = cell_len(self._name)
        return Measurement(min(longest, NARROWEST_NAME), longest)


def wrap_name(name: str, width: int) -> list[str]:
    """Return a name in lines of at most `width` characters, which end after dots if possible.

    >>> wrap_name("backbone.layers.3.conv2", 16)
    ['backbone.layers.', '3.conv2']
    """
    lines = [""]
    for part in re.findall(r"[^./]*[./]|[^./]+", name):
        if lines[-1] and cell_len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
        while cell_len(lines[-1]) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return lines


def measure_width(
    rows: TableRows,
    names: Collection[str],
    table: Callable[[TableRows], Table],
    console: Console,
    longest_name: int | None = None,
) -> int:
    """Return the width of a table in which only names longer than `longest_name` wrap."""
    cut = [row | {name: row[name][:longest_name] for name in names if name in row} for row in rows]
    few = [row for heading in rows[0] for row in _find_widest(cut, heading)]
    return console.measure(table(few), options=console.options.update(width=10**6)).maximum


def _find_widest(rows: TableRows, heading: str) -> Iterator[dict[str, str]]:
    """Yield the row with the widest cell of a column, and a row with another value.

    Measuring thousands of rows takes longer than printing them.
    """
    widest = max(rows, key=lambda row: cell_len(row[heading]))
    yield widest
    yield from islice((row for row in rows if row[heading] not in ("", widest[heading])), 1)


def omit_columns(
    rows: TableRows,
    columns: Sequence[str],
    names: Collection[str],
    table: Callable[[TableRows], Table],
    console: Console,
) -> TableRows:
    """Return the rows without the first of these columns, as many as have no room."""
    for column in columns:
        if measure_width(rows, names, table, console, NARROWEST_NAME) <= console.width:
            break
        rows = [{heading: row[heading] for heading in row if heading != column} for row in rows]
    return rows


def fits(
    rows: TableRows, names: Collection[str], table: Callable[[TableRows], Table], console: Console
) -> bool:
    """Return whether the whole table fits without wrapping."""
    return measure_width(rows, names, table, console) <= console.width


def show(
    rows: TableRows,
    columns: Sequence[str],
    names: Collection[str],
    numbers: Collection[str],
    console: Console,
) -> None:
    """Print rows as a table without the first of these columns, as many as have no room.

    Long names are shortened in the middle. Guarantees are coloured; a last row of totals is set
    apart.
    """

    def table(rows: TableRows) -> Table:
        return _make_table(rows, names, numbers)

    missing = []
    if not fits(rows, names, table, console):
        whole, present = rows, [name for name in names if name in rows[0]]
        rows = [
            row | {name: shorten_name(row[name], _LONGEST_NAME) for name in present} for row in rows
        ]
        missing += ["the middle of long names"] if rows != whole else []
    fitting = omit_columns(rows, columns, names, table, console)
    console.print(table(fitting))
    missing += [name for name in rows[0] if name not in fitting[0]]
    if missing:
        console.print(
            Text(
                f"Columns omitted to fit the terminal: {', '.join(missing)} (--json has all)",
                style="dim",
            )
        )


def _make_table(rows: TableRows, names: Collection[str], numbers: Collection[str]) -> Table:
    """Return the table, in which only names wrap."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in rows[0]:
        if heading in names:
            longest = max(len(row[heading]) for row in rows)
            table.add_column(heading, overflow="fold", min_width=min(longest, NARROWEST_NAME))
        else:
            right = heading in numbers
            table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        total = row.get("bits") == ""
        if total:
            table.add_section()
        cells = [
            _Name(escape_name(text), _STYLES.get(text, ""))
            if heading in names and cell_len(text) > NARROWEST_NAME
            else Text(escape_name(text), style=_STYLES.get(text, ""))
            for heading, text in row.items()
        ]
        table.add_row(*cells, style="bold" if total else None)
    return table
