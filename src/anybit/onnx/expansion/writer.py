# SPDX-License-Identifier: Apache-2.0
"""Turn expressions into nodes, under names that are not taken."""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from anybit.onnx.expansion.traced import Traced
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.names import Names
from anybit.ops.expression import operands_first


class Body:
    """Nodes that give the values of expressions, in an order in which they can run.

    Equal expressions are written once.
    """

    def __init__(self, constant: Callable[[str, Array], ir.Value], unique: Names, prefix: str):
        self.nodes: list[ir.Node] = []
        self._constant = constant
        self._unique = unique
        self._prefix = prefix
        self._written: dict[Traced, ir.Value] = {}
        self._bound: dict[Traced, ir.Value] = {}
        self._alike: dict[tuple[object, ...], ir.Value] = {}

    def branch(self) -> "Body":
        """A body inside a node of this one. Its constants go here, before that node.

        ONNX Runtime 1.24 to 1.26 fail where a large constant leaves a branch that is always taken.
        """
        return Body(self._constant, self._unique, self._prefix)

    def bind(self, traced: Traced, value: ir.Value) -> None:
        """Take this value for an input of the expression, which another node may have left."""
        self._bound[traced] = value

    def write(self, result: Traced) -> ir.Value:
        """The value of an expression, after the nodes that give it."""
        for each in operands_first(result, self._written):
            self._written[each] = self._value(each)
        return self._written[result]

    def _value(self, each: Traced) -> ir.Value:
        if each.value is not None:
            value = self._bound.get(each, each.value)
            return self._parameter(array_of(value)) if is_constant(value) else value
        if each.known is not None:
            return self._parameter(each.known)
        operands = [self._written[operand] for operand in each.operands]
        alike = (each.operation, *operands, *sorted(each.attributes.items()))
        if alike not in self._alike:
            self._alike[alike] = self.append(
                each.operation, operands, ir.DataType.from_numpy(each.dtype), each.attributes
            )
        return self._alike[alike]

    def _parameter(self, array: Array) -> ir.Value:
        return self._constant(f"{self._prefix}/constant", array)

    def append(
        self,
        operation: str,
        operands: list[ir.Value],
        dtype: ir.DataType | None,
        attributes: Mapping[str, int | ir.Attr] | None = None,
    ) -> ir.Value:
        """A further node with one output."""
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
