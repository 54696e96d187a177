# SPDX-License-Identifier: Apache-2.0
"""The layout of `--help`."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import ROUNDED
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text


def print_help(
    usage: str,
    description: str,
    sections: Mapping[str, Sequence[tuple[str, str]]],
    epilog: str = "",
) -> None:
    """Print the usage, the description, a panel per section of names and help, and the epilog."""
    console = Console(highlight=False)
    console.print(Padding(Text(f"Usage: {usage}", style="bold"), (1, 1)))
    for paragraph in _split_paragraphs(description):
        console.print(Padding(paragraph, (0, 1, 1, 1)))
    for title, rows in sections.items():
        if rows:
            console.print(_make_panel(title, rows))
    if epilog:
        console.print(Padding(Text(epilog), (1, 1)))


def print_command_help(command: Any, context: Any) -> None:
    """Print the help of a command of typer."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    usage = [context.command_path, "[OPTIONS]"]
    for parameter in command.get_params(context):
        # Newer versions of typer write `--json <bool>`, as if a word had to follow.
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
        names, help_text = parameter.get_help_record(context) or ("", "")
        # Some versions of typer escape brackets for rich.
        names, help_text = " ".join(names.split()), " ".join(help_text.replace("\\[", "[").split())
        if parameter.param_type_name == "argument":
            names = (parameter.metavar or parameter.name).upper()
            words = f"{names}..." if parameter.nargs != 1 else names
            usage.append(words if parameter.required else f"[{words}]")
            sections["Arguments"].append((names, help_text))
        elif names:
            group = getattr(parameter, "rich_help_panel", None) or "Options"
            sections.setdefault(group, []).append((names, help_text))
    print_help(" ".join(usage), command.help or "", sections)


def _split_paragraphs(text: str) -> Iterator[Text]:
    """Yield the paragraphs and list items of a docstring, with **bold** words."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        items = re.split(r"\n(?=\* )", paragraph)
        lines = [" ".join(item.split()) for item in items]
        yield _style_bold("\n".join(re.sub(r"^\* ", "• ", line) for line in lines))


def _style_bold(text: str) -> Text:
    parts = re.split(r"\*\*(.+?)\*\*", text)
    return Text.assemble(*((part, "bold" * (index % 2)) for index, part in enumerate(parts)))


def _make_panel(title: str, rows: Sequence[tuple[str, str]]) -> Panel:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column(style="bold cyan", overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for name, help_text in rows:
        table.add_row(Text(name), Text(help_text))
    return Panel(table, title=title, title_align="left", border_style="dim", box=ROUNDED)
