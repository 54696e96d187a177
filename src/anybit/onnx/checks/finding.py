# SPDX-License-Identifier: Apache-2.0
"""One line of what a check says."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import onnx_ir as ir

from anybit.onnx.graph.names import label_of
from anybit.text import counted

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a model, or that a target cannot take.

    Attributes:
        severity: "error" for what fails or cannot be meant, "warning" for what may be meant.
        node: The node's name, or that of its output; empty where the whole model is concerned.
            Of several nodes with one problem it is the first.
        operator: The node's operator, as the file spells it.
        problem: What is wrong, with the value.
        remedy: What to do about it.
        code: A short name of the problem that stays the same from version to version.
        nodes: All nodes with that problem, `node` first.
    """

    severity: Severity
    node: str
    operator: str
    problem: str
    remedy: str
    code: str
    nodes: tuple[str, ...] = ()


def error(node: ir.Node | None, code: str, problem: str, remedy: str) -> Finding:
    return _finding("error", node, code, problem, remedy)


def warning(node: ir.Node | None, code: str, problem: str, remedy: str) -> Finding:
    return _finding("warning", node, code, problem, remedy)


def _finding(
    severity: Severity, node: ir.Node | None, code: str, problem: str, remedy: str
) -> Finding:
    name = name_of(node)
    nodes = (name,) if name else ()
    return Finding(severity, name, operator_name(node), problem, remedy, code, nodes)


def name_of(node: ir.Node | None) -> str:
    return "" if node is None else label_of(node)


def operator_name(node: ir.Node | None) -> str:
    return "" if node is None else node.op_type


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for all of one kind: those that differ in names and numbers only."""
    kinds: dict[tuple[str, ...], list[Finding]] = defaultdict(list)
    for each in dict.fromkeys(findings):
        # Names of operators may have digits, which do not go: MatMulBnb4.
        operator = each.operator if each.operator in each.problem else ""
        words = (_VALUES.sub("", text) for text in (each.problem, each.remedy))
        kinds[each.severity, each.code, operator, *words].append(each)
    return [_together(alike) for alike in kinds.values()]


# What is quoted, lists, and numbers.
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\[\]]*\]|[-+]?\d[\d.]*(?:e[-+]?\d+)?")


def _together(alike: Sequence[Finding]) -> Finding:
    first, more = alike[0], len(alike) - 1
    if not more:
        return first
    nodes = tuple(dict.fromkeys(name for each in alike for name in each.nodes))
    what = f"also in {counted(more, 'more node')}" if first.node else f"and {more} more"
    return replace(first, problem=f"{first.problem} ({what})", nodes=nodes)
