# SPDX-License-Identifier: Apache-2.0
"""A finding of a check."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import onnx_ir as ir

from anybit.onnx.graph.names import get_label
from anybit.text import format_count

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """A problem of a model, in general or for a target.

    Attributes:
        severity: "error" for failures and certain mistakes, "warning" for possible mistakes.
        node: The node's name, or that of its output; empty for a problem of the whole model. The
            first of several nodes with the same problem.
        operator: The node's operator, as the file spells it.
        problem: The problem, with the value.
        remedy: The remedy.
        code: A short name of the problem, stable across versions.
        nodes: All nodes with that problem, `node` first.
    """

    severity: Severity
    node: str
    operator: str
    problem: str
    remedy: str
    code: str
    nodes: tuple[str, ...] = ()


def make_error(node: ir.Node | None, code: str, problem: str, remedy: str) -> Finding:
    return _make_finding("error", node, code, problem, remedy)


def make_warning(node: ir.Node | None, code: str, problem: str, remedy: str) -> Finding:
    return _make_finding("warning", node, code, problem, remedy)


def _make_finding(
    severity: Severity, node: ir.Node | None, code: str, problem: str, remedy: str
) -> Finding:
    name = get_name(node)
    nodes = (name,) if name else ()
    return Finding(severity, name, get_operator_name(node), problem, remedy, code, nodes)


def get_name(node: ir.Node | None) -> str:
    return "" if node is None else get_label(node)


def get_operator_name(node: ir.Node | None) -> str:
    return "" if node is None else node.op_type


def group_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings that differ only in names and numbers."""
    kinds: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for finding in dict.fromkeys(findings):
        # Digits in names of operators stay: MatMulBnb4.
        operator = finding.operator if finding.operator in finding.problem else ""
        words = (_VALUES.sub("", text) for text in (finding.problem, finding.remedy))
        kinds[finding.severity, finding.code, operator, *words].append(finding)
    return [_merge(alike) for alike in kinds.values()]


# Quoted text, lists and numbers.
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\[\]]*\]|[-+]?\d[\d.]*(?:e[-+]?\d+)?")


def _merge(alike: Sequence[Finding]) -> Finding:
    first, more = alike[0], len(alike) - 1
    if not more:
        return first
    nodes = tuple(dict.fromkeys(name for finding in alike for name in finding.nodes))
    words = f"also in {format_count(more, 'more node')}" if first.node else f"and {more} more"
    return replace(first, problem=f"{first.problem} ({words})", nodes=nodes)
