# SPDX-License-Identifier: Apache-2.0
"""Parsed docstrings of operators, which are their specification."""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

_SECTIONS = ("Args", "Returns", "Raises", "Source")


@dataclass(frozen=True)
class Documentation:
    """A docstring in parts, each on one line unless it keeps its lines.

    Attributes:
        description: All text before the sections, verbatim.
        arguments: The description of each parameter.
        raises: The condition of each error.
        examples: A doctest, verbatim.
    """

    description: str
    arguments: Mapping[str, str]
    returns: str
    raises: Mapping[str, str]
    source: str
    examples: str

    @property
    def summary(self) -> str:
        """Return the first paragraph on one line."""
        return _join_lines(self.description.partition("\n\n")[0])

    @property
    def body(self) -> str:
        """Return the text after the first paragraph, verbatim."""
        return self.description.partition("\n\n")[2]


def parse_documentation(docstring: str) -> Documentation:
    """Return the parts of a docstring without indentation, as from `inspect.getdoc`."""
    text, prompt, examples = docstring.partition(">>> ")
    description, *parts = re.split(rf"^({'|'.join(_SECTIONS)}):", text, flags=re.MULTILINE)
    sections = dict.fromkeys(_SECTIONS, "")
    sections |= {
        name: textwrap.dedent(part).strip()
        for name, part in zip(parts[::2], parts[1::2], strict=True)
    }
    return Documentation(
        description=description.strip(),
        arguments=_parse_entries(sections["Args"]),
        returns=_join_lines(sections["Returns"]),
        raises=_parse_entries(sections["Raises"]),
        source=_join_lines(sections["Source"]),
        examples=f"{prompt}{examples.strip()}",
    )


def _parse_entries(section: str) -> dict[str, str]:
    """Return the entries `name: text` and `name, name: text` of a section, by name."""
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", section):
        names, _, text = entry.partition(":")
        entries |= {name.strip(): _join_lines(text) for name in names.split(",") if text}
    return entries


def _join_lines(text: str) -> str:
    return " ".join(text.split())
