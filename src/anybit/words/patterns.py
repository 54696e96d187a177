# SPDX-License-Identifier: Apache-2.0
"""Names of layers, and patterns that stand for several: `blocks.*.proj`, `*/Conv`."""

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from anybit.text import shown


def matching(pattern: str, layers: Sequence[Sequence[str]], where: str) -> set[int]:
    """The layers, each with all of its names, of which a name is the pattern or matches it.

    `*` stands for any characters, `?` for one, `[ab]` for one of these.

    Raises:
        ValueError: There are none. `where` says who asked.

    >>> sorted(matching("b*", [["a"], ["b.0", "first"], ["b.1"]], "keep"))
    [1, 2]
    """
    found = {
        index
        for index, names in enumerate(layers)
        if any(name == pattern or fnmatchcase(name, pattern) for name in names)
    }
    if not found:
        known = [name for names in layers for name in names]
        close = difflib.get_close_matches(pattern, known, n=3) or known[:3]
        there = ", ".join(shown(name) for name in close)
        raise ValueError(f"{where}: no layer matches {pattern!r}; there are {there}")
    return found
