# SPDX-License-Identifier: Apache-2.0
"""One line of what a check says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from anybit.onnx.graph.names import label_of

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a model, or that a target cannot take.

    Attributes:
        severity: "error" for what fails or cannot be meant, "warning" for what may be meant.
        node: The node's name, or that of its output; empty where the whole model is concerned.
        operator: The node's operator, as the file spells it.
        problem: What is wrong, with the value.
        remedy: What to do about it.
        code: A short name of the problem that stays the same from version to version.
    """

    severity: Severity
    node: str
    operator: str
    problem: str
    remedy: str
    code: str


def error(node: ir.Node | None, code: str, problem: str, remedy: str) -> Finding:
    return Finding("error", name_of(node), operator_name(node), problem, remedy, code)


def warning(node: ir.Node | None, code: str, problem: str, remedy: str) -> Finding:
    return Finding("warning", name_of(node), operator_name(node), problem, remedy, code)


def name_of(node: ir.Node | None) -> str:
    return "" if node is None else label_of(node)


def operator_name(node: ir.Node | None) -> str:
    return "" if node is None else node.op_type


def others(nodes: Sequence[ir.Node]) -> str:
    """What to add to a problem that the first of these nodes stands for."""
    count = len(nodes) - 1
    return f" (and so in {count} more node{'s' * (count > 1)})" if count else ""
