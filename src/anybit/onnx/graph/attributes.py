# SPDX-License-Identifier: Apache-2.0
"""Attributes of standard operators, from files that may hold anything."""

from typing import TypeVar

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.names import describe

Value = TypeVar("Value", int, float, str, tuple[int, ...])

_TYPES = {
    int: (ir.AttributeType.INT, "an integer"),
    float: (ir.AttributeType.FLOAT, "a float"),
    str: (ir.AttributeType.STRING, "a string"),
    tuple: (ir.AttributeType.INTS, "a list of integers"),
}


def get_attribute(node: ir.Node, name: str, default: Value) -> Value:
    """Return an attribute, or its default; its type must be that of the default.

    Raises:
        ModelError: The attribute has another type, or is a parameter of a local function.
    """
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    expected, words = _TYPES[type(default)]
    if attribute.is_ref() or attribute.type is not expected:
        actual = "a reference" if attribute.is_ref() else attribute.type.name
        raise ModelError(
            f"{describe(node)}: {name} must be {words}, got {actual}; export the model again"
        )
    value: Value = tuple(attribute.value) if isinstance(default, tuple) else attribute.value
    return value
