# SPDX-License-Identifier: Apache-2.0
"""Conversion of expressions to nodes with unique names."""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from anybit.onnx.expansion.traced import TracedValue
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.names import NameGenerator
from anybit.ops.expression import iterate_operands_first


class Body:
    """Nodes that compute expressions, in execution order.

    Equal expressions are written once.
    """

    def __init__(
        self, constant: Callable[[str, Array], ir.Value], unique: NameGenerator, prefix: str
    ):
        self.nodes: list[ir.Node] = []
        self._constant = constant
        self._unique = unique
        self._prefix = prefix
        self._written: dict[TracedValue, ir.Value] = {}
        self._bound: dict[TracedValue, ir.Value] = {}
        self._alike: dict[tuple[object, ...], ir.Value] = {}

    def make_branch(self) -> "Body":
        """Return a body inside a node of this one. Its constants go here, before that node.

        ONNX Runtime 1.24 to 1.26 fail if a large constant leaves a branch that is always taken.
        """
        return Body(self._constant, self._unique, self._prefix)

    def bind(self, traced: TracedValue, value: ir.Value) -> None:
        """Bind an input of the expression to a value, which may come from another node."""
        self._bound[traced] = value

    def write(self, result: TracedValue) -> ir.Value:
        """Write the nodes of an expression; return its value."""
        for part in iterate_operands_first(result, self._written):
            self._written[part] = self._write_part(part)
        return self._written[result]

    def _write_part(self, part: TracedValue) -> ir.Value:
        if part.value is not None:
            value = self._bound.get(part, part.value)
            return self._write_parameter(read_array(value)) if is_constant(value) else value
        if part.constant is not None:
            return self._write_parameter(part.constant)
        operands = [self._written[operand] for operand in part.operands]
        alike = (part.operation, *operands, *sorted(part.attributes.items()))
        if alike not in self._alike:
            self._alike[alike] = self.append(
                part.operation, operands, ir.DataType.from_numpy(part.dtype), part.attributes
            )
        return self._alike[alike]

    def _write_parameter(self, array: Array) -> ir.Value:
        return self._constant(f"{self._prefix}/constant", array)

    def append(
        self,
        operation: str,
        operands: list[ir.Value],
        dtype: ir.DataType | None,
        attributes: Mapping[str, int | ir.Attr] | None = None,
    ) -> ir.Value:
        """Append a node with one output."""
        node = ir.node(
            operation,
            operands,
            attributes=attributes,
            name=self._unique(f"{self._prefix}/{operation}"),
        )
        value = node.outputs[0]
        value.name = self._unique(f"{node.name}_out")
        value.type = None if dtype is None else ir.TensorType(dtype)
        self.nodes.append(node)
        return value
