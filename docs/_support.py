# SPDX-License-Identifier: Apache-2.0
"""Table of model forms and runtime versions, from the expectations of the version matrix."""

import json
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

from anybit.ops import OPERATORS

SUPPORTED = Path(__file__).resolve().parent.parent / "tests" / "matrix" / "supported.json"

Verdicts: TypeAlias = dict[str, str]

_OPERATORS = tuple(operator.name for operator in OPERATORS)
# Names of rows that are not those of operators, nodes or files.
_LABELS = {
    "int_quant with ": "IntQuant, ",
    "fusible with ": "fused layers, ",
    "opset_limit=": "opset up to ",
    "regions and float nodes": "partly compiled models",
}
_WORDS = {"exact": "exact", "refused": "does not load", "differs": "differs"}


def support_table() -> str:
    """Return the table, one row for all models of a form with the same verdicts."""
    verdicts_by_row: dict[str, Verdicts] = json.loads(SUPPORTED.read_text(encoding="utf-8"))
    versions = list(
        dict.fromkeys(version for verdicts in verdicts_by_row.values() for version in verdicts)
    )
    if not versions:
        return "Not measured yet."
    lines = ["| form | holds | exact in |", "|---|---|---|"]
    for form, rows in _by_form(verdicts_by_row).items():
        for verdicts, names in _alike(rows, versions).items():
            lines.append(
                f"| `{form}` | {_together(names)} | {_exact_versions(versions, verdicts)} |"
            )
    return "\n".join(lines)


def _exact_versions(versions: list[str], verdicts: tuple[str, ...]) -> str:
    """Return the versions with exact results, and the verdict on all others."""
    exact = [
        version for version, verdict in zip(versions, verdicts, strict=True) if verdict == "exact"
    ]
    others = {_WORDS.get(verdict, "not tested") for verdict in verdicts} - {"exact"}
    if not exact:
        return f"none: {', '.join(sorted(others))}"
    if exact == versions:
        return "all"
    if exact == versions[-len(exact) :]:
        return f"{exact[0]} and newer; before: {', '.join(sorted(others))}"
    return f"{', '.join(exact)}; others: {', '.join(sorted(others))}"


def _by_form(verdicts_by_row: dict[str, Verdicts]) -> dict[str, dict[str, Verdicts]]:
    forms: dict[str, dict[str, Verdicts]] = defaultdict(dict)
    for row, verdicts in verdicts_by_row.items():
        form, _, name = row.partition(": ")
        forms[form][name] = verdicts
    return forms


def _alike(rows: dict[str, Verdicts], versions: list[str]) -> dict[tuple[str, ...], list[str]]:
    """Return the names of the rows by their verdicts."""
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, verdicts in rows.items():
        alike[tuple(verdicts.get(version, "") for version in versions)].append(name)
    return alike


def _label(name: str) -> str:
    """Return the words for a row."""
    for part, label in _LABELS.items():
        name = name.replace(part, label)
    return name


def _together(names: list[str]) -> str:
    """Return the names of rows, joining all operators, and the types of the same node."""
    types: dict[str, list[str]] = defaultdict(list)
    entries = []
    if set(_OPERATORS) <= set(names):
        entries.append("all operators")
        names = [name for name in names if name not in _OPERATORS]
    for name in names:
        node, linear, dtype = name.partition("Linear ")
        if linear:
            types[f"{node}Linear"].append(dtype)
        else:
            entries.append(_label(name))
    nodes: dict[str, list[str]] = defaultdict(list)
    for node, dtypes in types.items():
        nodes[", ".join(dtypes)].append(node)
    return "; ".join([*entries, *(f"{', '.join(of)} {dtypes}" for dtypes, of in nodes.items())])
