# SPDX-License-Identifier: Apache-2.0
"""Which form of a model runs where, from what the version matrix of the tests expects."""

import json
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

SUPPORTED = Path(__file__).resolve().parent.parent / "tests" / "matrix" / "supported.json"

Verdicts: TypeAlias = dict[str, str]

_WORDS = {"exact": "exact", "refused": "does not load", "differs": "differs"}


def support_table() -> str:
    """One row for all models of a form that fare alike in every version of the runtime."""
    found: dict[str, Verdicts] = json.loads(SUPPORTED.read_text(encoding="utf-8"))
    versions = list(dict.fromkeys(each for verdicts in found.values() for each in verdicts))
    if not versions:
        return "Not measured yet."
    lines = [
        f"| form | holds | {' | '.join(versions)} |",
        f"| --- | --- |{' --- |' * len(versions)}",
    ]
    for form, rows in _by_form(found).items():
        for verdicts, names in _alike(rows, versions).items():
            cells = [_WORDS.get(each, "not tested") for each in verdicts]
            lines.append(f"| `{form}` | {_together(names)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_form(found: dict[str, Verdicts]) -> dict[str, dict[str, Verdicts]]:
    forms: dict[str, dict[str, Verdicts]] = defaultdict(dict)
    for row, verdicts in found.items():
        form, _, name = row.partition(": ")
        forms[form][name] = verdicts
    return forms


def _alike(rows: dict[str, Verdicts], versions: list[str]) -> dict[tuple[str, ...], list[str]]:
    """The names of the rows by their verdicts."""
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, verdicts in rows.items():
        alike[tuple(verdicts.get(version, "") for version in versions)].append(name)
    return alike


def _together(names: list[str]) -> str:
    """The names of rows; of equal nodes the types in one list."""
    types: dict[str, list[str]] = defaultdict(list)
    told = []
    for name in names:
        node, linear, dtype = name.partition("Linear ")
        if linear:
            types[f"{node}Linear"].append(dtype)
        else:
            told.append(name)
    return "; ".join([*told, *(f"{node} {', '.join(each)}" for node, each in types.items())])
