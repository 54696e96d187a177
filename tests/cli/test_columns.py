# SPDX-License-Identifier: Apache-2.0
"""Tables in terminals."""

from rich.console import Console
from rich.table import Table

from anybit.cli._columns import measure_width


def test_width_measures_the_widest_rows_only() -> None:
    """rich takes longer to measure ten thousand rows than to print them."""
    rows = [{"node": "n" * (at % 40), "bits": str(at), "codes": "-8..7"} for at in range(5000)]
    measured = []

    def table(rows: list[dict[str, str]]) -> Table:
        measured.append(len(rows))
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*row.values())
        return table

    console = Console(width=80)
    narrow = measure_width(rows, {"node"}, table, console)
    assert narrow == console.measure(table(rows), options=console.options.update(width=999)).maximum
    assert measured[0] <= 6
