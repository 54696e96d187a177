# SPDX-License-Identifier: Apache-2.0
"""GELUs among the nodes of a chain: of the error function, and of tanh.

x * (1 + erf(x / sqrt 2)) / 2, and its approximation x * (1 + tanh(sqrt(2/pi) (x + c x^3))) / 2 with
c = 0.044715.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
import onnx_ir as ir

from anybit.compiler.program import program as p
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import is_onnx_op

_LENGTHS = (9, 8, 5)
_CLOSE = 1e-6
_CUBIC = 0.044715

_NUMBERS = {
    "1": 1.0,
    "1/2": 0.5,
    "3": 3.0,
    "c": _CUBIC,
    "sqrt 2": np.sqrt(2),
    "1/sqrt 2": np.sqrt(0.5),
    "sqrt(2/pi)": np.sqrt(2 / np.pi),
}

_RULES: dict[tuple[str, ...], str] = {
    ("Div", "x", "sqrt 2"): "z",
    ("Mul", "1/sqrt 2", "x"): "z",
    ("Erf", "z"): "f",
    ("Pow", "x", "3"): "x^3",
    ("Mul", "x", "x"): "x^2",
    ("Mul", "x", "x^2"): "x^3",
    ("Mul", "c", "x^3"): "cx^3",
    ("Mul", "c", "x"): "cx",
    ("Mul", "cx", "x"): "cx^2",
    ("Mul", "cx^2", "x"): "cx^3",
    ("Add", "cx^3", "x"): "x + cx^3",
    ("Mul", "sqrt(2/pi)", "x + cx^3"): "u",
    ("Tanh", "u"): "f",
    ("Add", "1", "f"): "1 + f",
    ("Mul", "1 + f", "1/2"): "(1 + f)/2",
    ("Mul", "1 + f", "x"): "x(1 + f)",
    ("Mul", "1/2", "x"): "x/2",
    ("Mul", "(1 + f)/2", "x"): "gelu",
    ("Mul", "1/2", "x(1 + f)"): "gelu",
    ("Mul", "1 + f", "x/2"): "gelu",
}
"""Terms by the operator and its operands; those of Add and Mul are sorted."""


class Gelu(Enum):
    """A form of GELU: the function that it is made of."""

    ERF = "none"
    TANH = "tanh"

    def make_steps(self) -> list[p.Step]:
        """Return the steps from x, which is kept before those of the tanh form.

        (1 + tanh u) / 2 is the sigmoid of 2 u.
        """
        unread = np.zeros(1, np.float32)
        if self == Gelu.ERF:
            return [p.Step(p.Operation.GELU, unread)]
        linear = np.sqrt(8 / np.pi)
        steps = (
            (p.Operation.MULTIPLY_KEPT, 0.0),
            (p.Operation.MULTIPLY, linear * _CUBIC),
            (p.Operation.ADD, linear),
            (p.Operation.MULTIPLY_KEPT, 0.0),
            (p.Operation.SIGMOID, 0.0),
            (p.Operation.MULTIPLY_KEPT, 0.0),
        )
        return [p.Step(operation, np.array([x], np.float32)) for operation, x in steps]


def find_gelu(nodes: Sequence[ir.Node], x: ir.Value) -> Gelu | None:
    """Return the form of the GELU of x that nodes compute; None for another function."""
    if len(nodes) == 1 and is_onnx_op(nodes[0], "Gelu"):
        stated = get_attribute(nodes[0], "approximate", Gelu.ERF.value)
        return next((form for form in Gelu if form.value == stated), None)
    terms = {x: "x"}
    for node in nodes:
        term = None if node.domain else _find_term(node, terms)
        if term is None:
            return None
        terms[node.outputs[0]] = term
    if not nodes or terms[nodes[-1].outputs[0]] != "gelu":
        return None
    return Gelu.TANH if any(node.op_type == "Tanh" for node in nodes) else Gelu.ERF


def split_gelus(
    nodes: Sequence[ir.Node], x: ir.Value
) -> list[tuple[ir.Value, tuple[ir.Node, ...]]]:
    """Return the nodes of a chain from x one by one, those of a GELU together, with their input."""
    parts, at = [], 0
    while at < len(nodes):
        some = _take_gelu(nodes[at:], x) or (nodes[at],)
        parts.append((x, some))
        at += len(some)
        x = some[-1].outputs[0]
    return parts


def _take_gelu(nodes: Sequence[ir.Node], x: ir.Value) -> tuple[ir.Node, ...] | None:
    """Return the first nodes if they compute the GELU of x, and later ones read only that."""
    for length in _LENGTHS:
        some = tuple(nodes[:length])
        is_gelu = len(some) == length and find_gelu(some, x) is not None
        if is_gelu and not _is_read_again(some, nodes[length:]):
            return some
    return None


def _find_term(node: ir.Node, terms: dict[ir.Value, str]) -> str | None:
    operands = [
        "" if value is None else terms.get(value) or _find_number(value) for value in node.inputs
    ]
    if node.op_type in ("Add", "Mul"):
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
