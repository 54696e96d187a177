# SPDX-License-Identifier: Apache-2.0
"""GELUs of the error function among the nodes of a chain: x * (1 + erf(x / sqrt 2)) / 2."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant, read_array

_LENGTH = 5
_CLOSE = 1e-6

_NUMBERS = {"1": 1.0, "1/2": 0.5, "sqrt 2": np.sqrt(2), "1/sqrt 2": np.sqrt(0.5)}

_RULES: dict[tuple[str, ...], str] = {
    ("Div", "x", "sqrt 2"): "z",
    ("Mul", "1/sqrt 2", "x"): "z",
    ("Erf", "z"): "erf",
    ("Add", "1", "erf"): "1 + erf",
    ("Mul", "1 + erf", "1/2"): "(1 + erf)/2",
    ("Mul", "1 + erf", "x"): "x(1 + erf)",
    ("Mul", "1/2", "x"): "x/2",
    ("Mul", "(1 + erf)/2", "x"): "gelu",
    ("Mul", "1/2", "x(1 + erf)"): "gelu",
    ("Mul", "1 + erf", "x/2"): "gelu",
}
"""Terms by the operator and its operands; those of Add and Mul are sorted."""


def split_gelus(
    nodes: Sequence[ir.Node], x: ir.Value
) -> list[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """Return the nodes of a chain from x one by one, those of a GELU together, with their input."""
    parts, at = [], 0
    while at < len(nodes):
        some = tuple(nodes[at : at + _LENGTH])
        if not _is_gelu(some, x) or _is_read_again(some, nodes[at + _LENGTH :]):
            some = some[:1]
        parts.append((x, some))
        at += len(some)
        x = some[-1].outputs[0]
    return parts


def _is_gelu(nodes: Sequence[ir.Node], x: ir.Value) -> bool:
    """Return whether nodes compute the GELU of x."""
    terms = {x: "x"}
    for node in nodes:
        term = None if node.domain else _find_term(node, terms)
        if term is None:
            return False
        terms[node.outputs[0]] = term
    return bool(nodes) and terms[nodes[-1].outputs[0]] == "gelu"


def _find_term(node: ir.Node, terms: dict[ir.Value, str]) -> str | None:
    operands = [
        "" if value is None else terms.get(value) or _find_number(value) for value in node.inputs
    ]
    if node.op_type != "Div":
        operands.sort()
    return _RULES.get((node.op_type, *operands))


def _find_number(value: ir.Value) -> str:
    """Return the name of a constant; none if it is another one."""
    array = read_array(value) if is_constant(value) else np.zeros(0)
    if array.size != 1:
        return ""
    close = (name for name, x in _NUMBERS.items() if abs(array.item() - x) <= _CLOSE * x)
    return next(close, "")


def _is_read_again(nodes: Sequence[ir.Node], later: Sequence[ir.Node]) -> bool:
    """Return whether later nodes read other results of nodes than the last one."""
    inner = {node.outputs[0] for node in nodes[:-1]}
    return any(value in inner for node in later for value in node.inputs)
