# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages: blocks of data, and the one template that shows them.

Jinja2 escapes all text. The page allows its own script only, and works offline, in light and dark
schemes, on narrow screens and from the keyboard.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias

from anybit.text import escape_name

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

# Narrow screens break lines at the hyphens of options.
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]{0,24}(?![\w-])")


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: The text.
        bars: Shares from 0 to 1, drawn as bars below the text.
        link: Anchor that the text leads to.
    """

    text: str
    bars: tuple[float, ...] = ()
    link: str = ""


@dataclass(frozen=True)
class HtmlTable:
    """A table; `numbers` are aligned right, `classes` are the CSS classes of rows."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: Sequence[str] = ()
    classes: Sequence[str] = ()
    sortable: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Items:
    """A list of lines; pairs are a text and its emphasized remedy."""

    lines: Sequence[str | tuple[str, str]]
    kind: str = "items"


@dataclass(frozen=True)
class Facts:
    """Terms with their descriptions."""

    pairs: Mapping[str, str]
    kind: str = "facts"


@dataclass(frozen=True)
class Figure:
    """A chart with a title above it and labels below it, from left to right."""

    chart: "Markup"
    title: str = ""
    labels: Sequence[str] = ()
    legend: Sequence[tuple[str, str]] = ()
    kind: str = "figure"


@dataclass(frozen=True)
class Strip:
    """Segments of a network: width, class, tooltip, anchor; and a legend of classes."""

    segments: Sequence[tuple[float, str, str, str]]
    legend: Sequence[tuple[str, str]]
    kind: str = "strip"


@dataclass(frozen=True)
class Details:
    """Blocks that a click opens."""

    title: str
    about: str
    blocks: Sequence["Block"]
    anchor: str = ""
    kind: str = "details"


Block: TypeAlias = HtmlTable | Items | Facts | Figure | Strip | Details | str


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; strings are paragraphs."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: Heading of the page.
        tool: Command that it is from.
        lead: Main result in a sentence.
        failed: Whether the result is bad.
        figures: Label, previous value (or empty) and value of the main figures.
        blocks: Blocks before the first section.
        sections: The sections.
    """

    title: str
    tool: str
    lead: str
    failed: bool = False
    figures: Sequence[tuple[str, str, str]] = ()
    blocks: Sequence[Block] = ()
    sections: Sequence[Section] = ()


def render(page: Page) -> str:
    """Return a page as HTML, with style and script inlined."""
    style, script = _read_asset("page.css"), _read_asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _load_template().render(page=page, style=style, script=script, digest=digest)


def _read_asset(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


@cache
def _load_template() -> "Template":
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    def words(text: str) -> Markup:
        """Return text with control characters escaped and options unbroken."""
        option = r'<span class="option">\g<0></span>'
        return Markup(_OPTION.sub(option, str(escape(escape_name(str(text))))))

    def figure(text: str) -> str:
        """Return a number that stays in one line with its unit."""
        return escape_name(text).replace(" ", "\u00a0")

    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {"words": words, "figure": figure}
    return environment.from_string(_read_asset("page.html"))
