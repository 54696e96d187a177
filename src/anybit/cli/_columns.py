# SPDX-License-Identifier: Apache-2.0
"""Tables that fit the terminal: of rows that are too wide some columns are left out."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from anybit.text import shortened, shown

Rows = list[dict[str, str]]

_STYLES = {"exact": "green", "certified": "green", "bounded": "yellow", "float": "dim"}

NARROWEST_NAME = 14
"""A column of names takes this much; longer ones go over several lines."""
_LONGEST_NAME = 48


class _Name:
    """The name of a layer in a cell: where it is too long, lines break after a dot or a slash."""

    def __init__(self, name: str, style: str) -> None:
        self._name, self._style = name, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for line in broken(self._name, options.max_width):
            yield Text(line, style=self._style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = cell_len(self._name)
        return Measurement(min(longest, NARROWEST_NAME), longest)


def broken(name: str, width: int) -> list[str]:
    """Return a name in lines of at most `width` characters, which end after dots if possible.

    >>> broken("backbone.layers.3.conv2", 16)
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


def width(
    rows: Rows,
    names: Collection[str],
    table: Callable[[Rows], Table],
    console: Console,
    longest_name: int | None = None,
) -> int:
    """How wide the table is if nothing of it is broken but names of more characters."""
    cut = [row | {name: row[name][:longest_name] for name in names if name in row} for row in rows]
    few = [row for heading in rows[0] for row in _widest(cut, heading)]
    return console.measure(table(few), options=console.options.update(width=10**6)).maximum


def _widest(rows: Rows, heading: str) -> Iterator[dict[str, str]]:
    """The row that decides how wide a column is, and one that shows that not all are alike.

    To measure all of thousands of rows takes longer than to print them.
    """
    widest = max(rows, key=lambda row: cell_len(row[heading]))
    yield widest
    yield from islice((row for row in rows if row[heading] not in ("", widest[heading])), 1)


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


def fits(
    rows: Rows, names: Collection[str], table: Callable[[Rows], Table], console: Console
) -> bool:
    """Whether all of the table has room, so that nothing goes over several lines."""
    return width(rows, names, table, console) <= console.width


def show(
    rows: Rows,
    columns: Sequence[str],
    names: Collection[str],
    numbers: Collection[str],
    console: Console,
) -> None:
    """Print the rows without the first of these columns, as many as there is no room for.

    Where there is not room for all, of long names both ends are shown. Words for guarantees are
    coloured; a last row that is for all of them stands apart.
    """

    def table(rows: Rows) -> Table:
        return _table(rows, names, numbers)

    missing = []
    if not fits(rows, names, table, console):
        whole, known = rows, [name for name in names if name in rows[0]]
        rows = [row | {name: shortened(row[name], _LONGEST_NAME) for name in known} for row in rows]
        missing += ["the middle of long names"] if rows != whole else []
    fitting = spared(rows, columns, names, table, console)
    console.print(table(fitting))
    missing += [name for name in rows[0] if name not in fitting[0]]
    if missing:
        console.print(Text(f"no room here for {', '.join(missing)}: --json has all", style="dim"))


def _table(rows: Rows, names: Collection[str], numbers: Collection[str]) -> Table:
    """Where the terminal is narrow, names go over several lines; all else stays on one."""
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
            _Name(shown(text), _STYLES.get(text, ""))
            if heading in names and cell_len(text) > NARROWEST_NAME
            else Text(shown(text), style=_STYLES.get(text, ""))
            for heading, text in row.items()
        ]
        table.add_row(*cells, style="bold" if total else None)
    return table
