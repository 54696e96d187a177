# SPDX-License-Identifier: Apache-2.0
"""Patterns of layer names: `blocks.*.proj`, `*/Conv`."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from anybit.text import escape_name


def match_names(pattern: str, layers: Sequence[Sequence[str]], where: str) -> set[int]:
    """Return the indices of the layers with a name that equals or matches the pattern.

    Args:
        pattern: A name, or a pattern: `*` matches any characters, `?` one, `[ab]` a or b.
        layers: All names of every layer.
        where: The parameter and the pattern, for the message.

    Raises:
        ValueError: No layer matches.

    >>> sorted(match_names("b*", [["a"], ["b.0", "first"], ["b.1"]], "keep='b*'"))
    [1, 2]
    """
    matches = {
        index
        for index, names in enumerate(layers)
        if any(name == pattern or fnmatchcase(name, pattern) for name in names)
    }
    if not matches:
        existing = [name for names in layers for name in names if name]
        close = difflib.get_close_matches(pattern, existing, n=3) or existing[:3]
        names = ", ".join(escape_name(name) for name in close)
        raise ValueError(f"{where}: no layer matches; there are {names}")
    return matches
