# SPDX-License-Identifier: Apache-2.0
"""Which operator a node stands for, by its domain, name and number of inputs."""

from collections import defaultdict
from typing import Any

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.names import described
from anybit.onnx.graph.walk import nodes_in
from anybit.ops import OPERATORS, Attribute, Operator

CANONICAL_DOMAINS = {
    "finn.custom_op.general": "qonnx.custom_op.general",
    "onnx.brevitas": "qonnx.custom_op.general",
}
"""Domains that exporters have used, and the one that the operators belong to."""


def _versions() -> dict[tuple[str, str], tuple[Operator, ...]]:
    named: dict[tuple[str, str], tuple[Operator, ...]] = defaultdict(tuple)
    for operator in OPERATORS:
        for name in (operator.onnx_name, *operator.onnx_aliases):
            named[operator.onnx_domain, name] += (operator,)
    return dict(named)


_VERSIONS = _versions()


def versions_of(domain: str, name: str) -> tuple[Operator, ...]:
    """All versions of the operator of that name, legacy names included; () if it is not ours."""
    return _VERSIONS.get((CANONICAL_DOMAINS.get(domain, domain), name), ())


def operator_of(node: ir.Node) -> Operator | None:
    """The operator that a node stands for, or None. Versions are told apart by their inputs.

    Raises:
        ModelError: One of our names with a number of inputs that no version has.
    """
    versions = versions_of(node.domain, node.op_type)
    if not versions:
        return None
    given = len(node.inputs)
    while given and node.inputs[given - 1] is None:
        given -= 1
    for operator in versions:
        if operator.required_inputs <= given <= len(operator.inputs):
            needed = node.inputs[: operator.required_inputs]
            if None in needed:
                name = operator.inputs[needed.index(None)].name
                raise ModelError(f"{described(node)} lacks its input {name}")
            return operator
    wanted = " or ".join(str(operator.required_inputs) for operator in reversed(versions))
    raise ModelError(f"{described(node)} must have {wanted} inputs, got {given}")


def keywords_of(node: ir.Node, operator: Operator) -> dict[str, Any]:
    """The attributes of a normalized node as keywords of the operator's function."""
    return {
        each.name: each.restored(node.attributes[each.onnx_name].value)
        for each in operator.attributes
    }


def attribute_type(declared: Attribute) -> ir.AttributeType:
    """The type of an attribute in files."""
    is_text = isinstance(declared.default, str)
    return ir.AttributeType.STRING if is_text else ir.AttributeType.INT


def stored_attribute(declared: Attribute, value: bool | int | str) -> ir.Attr:
    """An attribute of that value, as a file has it."""
    return ir.Attr(declared.onnx_name, attribute_type(declared), declared.stored(value))


def operators_in(model: ir.Model) -> list[tuple[ir.Node, Operator]]:
    """The nodes that stand for an operator of ours, those of subgraphs included.

    Raises:
        ModelError: As `operator_of`.
    """
    found = ((node, operator_of(node)) for node in nodes_in(model.graph))
    return [(node, operator) for node, operator in found if operator is not None]
