# SPDX-License-Identifier: Apache-2.0
"""The table of the documentation: what is measured anew is replaced, all else stays."""

from collections.abc import Iterable, Mapping

BEGIN, END = "<!-- tools:begin -->\n", "<!-- tools:end -->"

# By task and row: SQNR, score and seconds.
Figures = Mapping[str, Mapping[str, tuple[str, ...]]]
# By row and task.
_Cells = dict[str, dict[str, str]]


def with_figures(page: str, figures: Figures, rows: Iterable[str]) -> str:
    """A page whose table has these figures.

    Args:
        page: The text, with the table between its markers.
        figures: A column for each task. Where it has nothing, or a tool is not installed, what the
            page said stays.
        rows: The names of all rows, in order; those without any figure are left out.
    """
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    known = _read(table)
    lines = [["", *figures], ["---"] * (1 + len(figures))]
    for row in rows:
        cells = [_told(each.get(row, ())) for each in figures.values()]
        kept = known.get(row, {})
        texts = [cell or kept.get(task, "") for task, cell in zip(figures, cells, strict=True)]
        if any(texts):
            lines.append([row, *texts])
    written = "".join(f"|{'|'.join(map(_padded, line))}|\n" for line in lines)
    return f"{before}{BEGIN}{written}{END}{after}"


def _read(table: str) -> _Cells:
    lines = [line.strip().removeprefix("|").removesuffix("|") for line in table.splitlines()]
    if not lines:
        return {}
    tasks, _, *rows = lines
    names = [each.strip() for each in tasks.split("|")][1:]
    found: _Cells = {}
    for line in rows:
        row, *cells = (each.strip() for each in line.split("|"))
        found[row] = dict(zip(names, cells, strict=True))
    return found


def _padded(cell: str) -> str:
    return f" {cell} " if cell else " "


def _told(figures: tuple[str, ...]) -> str:
    """SQNR and score; nothing if the tool is not installed."""
    text = ", ".join(filter(None, figures[:2]))
    return "" if "ModuleNotFoundError" in text else text
