# SPDX-License-Identifier: Apache-2.0
"""Table of the documentation: new figures replace old ones, all others stay."""

from collections.abc import Iterable, Mapping

# SQNR, score and seconds by task and row.
Figures = Mapping[str, Mapping[str, tuple[str, ...]]]
# Cells by row and task.
_Cells = dict[str, dict[str, str]]


def update_table(page: str, figures: Figures, rows: Iterable[str], marker: str = "tools") -> str:
    """Return the page with these figures in its table.

    Args:
        page: Text with the table between its markers.
        figures: One column per task. Cells without a figure, and those of tools that are not
            installed, keep their text.
        rows: Names of all rows, in order. Rows without any figure are omitted.
        marker: Name of the markers.
    """
    begin, end = f"<!-- {marker}:begin -->\n", f"<!-- {marker}:end -->"
    before, rest = page.split(begin)
    table, after = rest.split(end)
    old = _read(table)
    lines = [["", *figures], ["---"] * (1 + len(figures))]
    for row in rows:
        cells = [
            _cell(tools.get(row, ())) or old.get(row, {}).get(task, "")
            for task, tools in figures.items()
        ]
        if any(cells):
            lines.append([row, *cells])
    new = "".join(f"|{'|'.join(map(_padded, line))}|\n" for line in lines)
    return f"{before}{begin}{new}{end}{after}"


def _read(table: str) -> _Cells:
    lines = [line.strip().removeprefix("|").removesuffix("|") for line in table.splitlines()]
    if not lines:
        return {}
    tasks, _, *rows = lines
    names = [task.strip() for task in tasks.split("|")][1:]
    result: _Cells = {}
    for line in rows:
        row, *cells = (cell.strip() for cell in line.split("|"))
        result[row] = dict(zip(names, cells, strict=True))
    return result


def _padded(cell: str) -> str:
    return f" {cell} " if cell else " "


def _cell(figures: tuple[str, ...]) -> str:
    """Return SQNR and score, or "" if the tool is not installed."""
    text = ", ".join(filter(None, figures[:2]))
    return "" if "ModuleNotFoundError" in text else text
