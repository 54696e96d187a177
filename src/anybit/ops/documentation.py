# SPDX-License-Identifier: Apache-2.0
"""The docstring of an operator, taken apart: it is the specification, and read in one place."""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

_SECTIONS = ("Args", "Returns", "Raises", "Source")


@dataclass(frozen=True)
class Documentation:
    """A docstring in parts, each on one line but for those that keep their lines.

    Attributes:
        description: All before the sections, as it stands.
        arguments: What is said of each parameter.
        raises: When each error is raised.
        examples: A doctest, as it stands.
    """

    description: str
    arguments: Mapping[str, str]
    returns: str
    raises: Mapping[str, str]
    source: str
    examples: str

    @property
    def summary(self) -> str:
        """The first paragraph on one line."""
        return _on_one_line(self.description.partition("\n\n")[0])

    @property
    def body(self) -> str:
        """What follows the first paragraph, as it stands."""
        return self.description.partition("\n\n")[2]


def documentation_of(docstring: str) -> Documentation:
    """The parts of a docstring without indentation, as `inspect.getdoc` gives it."""
    text, prompt, examples = docstring.partition(">>> ")
    description, *parts = re.split(rf"^({'|'.join(_SECTIONS)}):", text, flags=re.MULTILINE)
    sections = dict.fromkeys(_SECTIONS, "")
    sections |= {
        name: textwrap.dedent(part).strip()
        for name, part in zip(parts[::2], parts[1::2], strict=True)
    }
    return Documentation(
        description=description.strip(),
        arguments=_entries(sections["Args"]),
        returns=_on_one_line(sections["Returns"]),
        raises=_entries(sections["Raises"]),
        source=_on_one_line(sections["Source"]),
        examples=f"{prompt}{examples.strip()}",
    )


def _entries(section: str) -> dict[str, str]:
    """The entries `name: text` and `name, name: text` of a section, by name."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", section):
        names, _, text = entry.partition(":")
        found |= {name.strip(): _on_one_line(text) for name in names.split(",") if text}
    return found


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
