# SPDX-License-Identifier: Apache-2.0
"""The header of a file, and spellings that only some tools support."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import onnx
import onnx_ir as ir

from anybit.onnx.checks.finding import Finding, make_error, make_warning
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.known import find_unknown_operators
from anybit.onnx.operators.registry import CANONICAL_DOMAINS, find_versions

# The newest versions that ONNX Runtime 1.32 loads.
NEWEST_IR_VERSION = 13
NEWEST_OPSET = 26

_CLEAN = "run anybit clean"
_STANDARD = ("", "ai.onnx")


def check(subject: Subject, names: Iterable[str] = ()) -> Iterator[Finding]:
    """Yield unusual properties of the file. `names` are the target's names of operators."""
    yield from _check_versions(subject.file)
    yield from _check_imports(subject.file)
    yield from _check_spellings(subject.file, set(names))
    yield from _check_names(subject.file)
    yield from _check_unknown(subject.file)


def _check_versions(file: ir.Model) -> Iterator[Finding]:
    if (file.ir_version or 0) > NEWEST_IR_VERSION:
        problem = f"IR version {file.ir_version} is newer than runtimes load ({NEWEST_IR_VERSION})"
        yield make_warning(
            None, "ir-version", problem, f"{_CLEAN}, which writes the lowest possible"
        )
    opset = file.graph.opset_imports.get("", 0)
    if opset > NEWEST_OPSET:
        problem = f"opset {opset} is newer than runtimes load ({NEWEST_OPSET})"
        report = make_error if opset > onnx.defs.onnx_opset_version() else make_warning
        yield report(None, "opset", problem, "export with an older opset")


def _check_imports(file: ir.Model) -> Iterator[Finding]:
    nodes = list(iter_nodes(file.graph))
    imported = file.graph.opset_imports
    if any(node.domain in _STANDARD for node in nodes) and not any(map(imported.get, _STANDARD)):
        problem = "no opset is imported for the standard operators"
        yield make_error(None, "missing-import", problem, "export the model again")
    for domain in dict.fromkeys(node.domain for node in nodes if _is_ours(node)):
        if imported.get(domain, 0) < 1:
            problem = f"domain {domain!r} is used but has no opset import, so checkers fail"
            yield make_warning(None, "missing-import", problem, _CLEAN)


def _check_spellings(file: ir.Model, names: set[str]) -> Iterator[Finding]:
    for node in iter_nodes(file.graph):
        if _is_ours(node):
            for code, problem in _find_legacy(node, names):
                yield make_warning(node, code, problem, f"{_CLEAN} (optional)")
    inputs = [value for value in file.graph.inputs if value.is_initializer()]
    if inputs:
        problem = (
            f"{len(inputs)} initializers are also graph inputs ({inputs[0].name!r} first), "
            "so runtimes do not treat them as constants"
        )
        yield make_warning(None, "initializer-as-input", problem, _CLEAN)


def _find_legacy(node: ir.Node, names: set[str]) -> Iterator[tuple[str, str]]:
    operator = find_versions(node.domain, node.op_type)[0]
    if node.domain in CANONICAL_DOMAINS:
        intended = CANONICAL_DOMAINS[node.domain]
        yield "legacy-domain", f"domain {node.domain!r} is a legacy name of {intended!r}"
    if node.op_type != operator.onnx_name and node.op_type not in names:
        yield "legacy-name", f"operator {node.op_type} is a legacy name of {operator.onnx_name}"
    for attribute in operator.attributes:
        for alias in attribute.aliases:
            if alias in node.attributes:
                yield (
                    "legacy-attribute",
                    f"{alias} is an alias of {attribute.onnx_name}",
                )
        value = getattr(node.attributes.get(attribute.onnx_name), "value", None)
        if attribute.is_mode and isinstance(value, str):
            with suppress(ValueError):  # not a mode: reported by the normalization
                mode = attribute.decode(value)
                if mode != value:
                    yield (
                        "rounding-mode-spelling",
                        f"rounding mode {value!r} is an alias of {mode!r}",
                    )


def _check_names(file: ir.Model) -> Iterator[Finding]:
    for graph in file.graphs():
        used: set[str] = set()
        for node in graph:
            if node.name and node.name in used:
                problem = f"two nodes are named {node.name!r}; ONNX Runtime rejects duplicate names"
                yield make_error(node, "duplicate-name", problem, _CLEAN)
            used.add(node.name or "")


def _check_unknown(file: ir.Model) -> Iterator[Finding]:
    for name in find_unknown_operators(file):
        domain, _, kind = name.partition("::")
        nodes: list[ir.Node | None] = [
            node
            for node in iter_nodes(file.graph)
            if (node.domain or "ai.onnx", node.op_type) == (domain, kind)
        ]
        problem = f"the operator {name} is not known"
        remedy = "convert it to standard operators, or register its library with the runtime"
        for node in nodes or [None]:  # it may occur in a local function only
            yield make_error(node, "unknown-operator", problem, remedy)


def _is_ours(node: ir.Node) -> bool:
    return bool(find_versions(node.domain, node.op_type))
