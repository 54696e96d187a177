# SPDX-License-Identifier: Apache-2.0
"""The layers of a model as a table of the terminal, and why some of them are not exact."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anybit.cli._columns import headed, spared
from anybit.layers.wording import NUMBERS
from anybit.text import shown

Rows = list[dict[str, str]]

_NAMES = ("layer",)
_STYLES = {"exact": "green", "certified": "green", "bounded": "yellow", "float": "dim"}


def show_layers(rows: Rows, columns: Sequence[str], console: Console) -> None:
    """Print the rows, without the first of these columns where there is no room for all of it."""
    fitting = spared(rows, columns, _NAMES, _table, console)
    console.print(_table(fitting))
    missing = [name for name in rows[0] if name not in fitting[0]]
    if missing:
        console.print(Text(f"no room here for {', '.join(missing)}: --json has all", style="dim"))


def _table(rows: Rows) -> Table:
    table = headed(rows, _NAMES, NUMBERS)
    for row in rows:
        total = row.get("bits") == ""
        if total:
            table.add_section()
        cells = [Text(shown(text), style=_STYLES.get(text, "")) for text in row.values()]
        table.add_row(*cells, style="bold" if total else None)
    return table
