# SPDX-License-Identifier: Apache-2.0
"""Identification of operators by domain, name and number of inputs."""

from collections import defaultdict
from typing import Any

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.walk import iter_nodes
from anybit.ops import OPERATORS, Attribute, Operator

CANONICAL_DOMAINS = {
    "finn.custom_op.general": "qonnx.custom_op.general",
    "onnx.brevitas": "qonnx.custom_op.general",
}
"""Domains that exporters have used, and the one of the operators."""


def _collect_versions() -> dict[tuple[str, str], tuple[Operator, ...]]:
    named: dict[tuple[str, str], tuple[Operator, ...]] = defaultdict(tuple)
    for operator in OPERATORS:
        for name in (operator.onnx_name, *operator.onnx_aliases):
            named[operator.onnx_domain, name] += (operator,)
    return dict(named)


_VERSIONS = _collect_versions()


def find_versions(domain: str, name: str) -> tuple[Operator, ...]:
    """Return all versions of an operator by any of its names; () for other operators."""
    return _VERSIONS.get((CANONICAL_DOMAINS.get(domain, domain), name), ())


def find_operator(node: ir.Node) -> Operator | None:
    """Return the operator of a node, or None. The number of inputs distinguishes versions.

    Raises:
        ModelError: The name is known, but no version has that number of inputs.
    """
    versions = find_versions(node.domain, node.op_type)
    if not versions:
        return None
    count = len(node.inputs)
    while count and node.inputs[count - 1] is None:
        count -= 1
    for operator in versions:
        if operator.required_inputs <= count <= len(operator.inputs):
            needed = node.inputs[: operator.required_inputs]
            if None in needed:
                name = operator.inputs[needed.index(None)].name
                raise ModelError(f"{describe(node)} lacks its input {name}")
            return operator
    expected = " or ".join(str(operator.required_inputs) for operator in reversed(versions))
    raise ModelError(f"{describe(node)} must have {expected} inputs, got {count}")


def get_keywords(node: ir.Node, operator: Operator) -> dict[str, Any]:
    """Return the attributes of a normalized node as keywords of the operator's function."""
    return {
        attribute.name: attribute.decode(node.attributes[attribute.onnx_name].value)
        for attribute in operator.attributes
    }


def get_attribute_type(declared: Attribute) -> ir.AttributeType:
    """Return the type of an attribute in files."""
    is_text = isinstance(declared.default, str)
    return ir.AttributeType.STRING if is_text else ir.AttributeType.INT


def make_attribute(declared: Attribute, value: bool | int | str) -> ir.Attr:
    """Return an attribute of that value, as a file has it."""
    return ir.Attr(declared.onnx_name, get_attribute_type(declared), declared.encode(value))


def find_operators(model: ir.Model) -> list[tuple[ir.Node, Operator]]:
    """Return the nodes with an operator of this package, including inner graphs.

    Raises:
        ModelError: See `find_operator`.
    """
    pairs = ((node, find_operator(node)) for node in iter_nodes(model.graph))
    return [(node, operator) for node, operator in pairs if operator is not None]
