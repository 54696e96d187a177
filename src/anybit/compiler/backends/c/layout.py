# SPDX-License-Identifier: Apache-2.0
"""Indentation and line breaks of C code."""

import re
import textwrap
from collections.abc import Iterable

WIDTH = 100
"""Characters of the longest line."""

_STRING = re.compile(r'"(?:[^"\\\\]|\\\\.)*"|/\*.*?\*/')
_RANKS = ("&|", "?:", "<>!=", "+-", "*")
_BREAKS = re.compile(r", | (?=(?:&&|\|\||\?|:|\^|\||\+|-|\*|<|>=|!=) )|(?<= =) ")


def indent_code(text: str) -> str:
    """Indent statements by the depth of their braces; drop empty lines within functions."""
    lines, depth = [], 0
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("#"):
            lines.append(line)
            continue
        code = _STRING.sub("", line)
        if code.startswith("}"):
            depth -= 1
        if line or not depth:
            lines.append("    " * depth + line if line else "")
        depth += code.count("{") - code.count("}") + code.startswith("}")
    return "\n".join(lines)


def format_comment(lines: Iterable[str]) -> str:
    """Return lines as one comment."""
    wrapped = [part for line in lines for part in textwrap.wrap(line, WIDTH - 6) or [""]]
    if len(wrapped) == 1:
        return f"/* {wrapped[0]} */"
    return "\n * ".join([f"/* {wrapped[0]}", *wrapped[1:]]) + "\n */"


def wrap_lines(text: str) -> str:
    """Break lines that are too long, at the operators and commas within the fewest parentheses."""
    return "\n".join(part for line in text.split("\n") for part in _wrap(line))


def _wrap(line: str) -> list[str]:
    if len(line) <= WIDTH or line.startswith("#") or line.endswith("\\"):
        return [line]
    indent = len(line) - len(line.lstrip())
    parts, step = [], 8 if indent and line.endswith("{") else 4
    while len(line) > WIDTH and (place := _find_break(line, indent + step)):
        parts.append(line[:place].rstrip())
        line = " " * (indent + step) + line[place:].lstrip()
    return [*parts, line]


def _find_break(line: str, start: int) -> int | None:
    """Return where to break a line: as late as possible at the least depth."""
    depths, depth = [], 0
    for character in line:
        depth -= character in ")]}"
        depths.append(depth)
        depth += character in "([{"
    hidden = [match.span() for match in _STRING.finditer(line)]
    places = [
        match.end()
        for match in _BREAKS.finditer(line)
        if start < match.end() <= WIDTH
        and not any(first < match.start() < last for first, last in hidden)
    ]

    def rank(place: int) -> tuple[int, int, int]:
        return depths[place - 1], _find_precedence(line, place), -place

    return min(places, key=rank, default=None)


def _find_precedence(line: str, place: int) -> int:
    """Return how closely the operands of an operator belong together."""
    if line[place - 2] == "," or line[place - 2] == "=":
        return 0
    return next((rank for rank, symbols in enumerate(_RANKS) if line[place] in symbols), 9)
