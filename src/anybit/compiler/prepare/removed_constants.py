# SPDX-License-Identifier: Apache-2.0
"""Inputs of nodes that are replaced, to put these back."""

from dataclasses import dataclass

import onnx_ir as ir

from anybit.onnx.graph.editor import Editor


@dataclass(frozen=True, eq=False)
class RemovedInputs:
    """The inputs of a node, and the tensors of constant ones, which may leave the graph."""

    values: tuple[ir.Value | None, ...]
    names: tuple[str | None, ...]
    tensors: tuple[ir.TensorProtocol | None, ...]

    @classmethod
    def of(cls, node: ir.Node) -> "RemovedInputs":
        """Return the inputs of a node."""
        values = tuple(node.inputs)
        return cls(
            values,
            tuple(None if value is None else value.name for value in values),
            tuple(None if value is None else value.const_value for value in values),
        )

    def add_back(self, model: ir.Model, editor: Editor) -> list[ir.Value | None]:
        """Return the inputs; constants that were removed are added to the graph again."""
        return [
            value if value is None or tensor is None else _add_back(name, tensor, model, editor)
            for value, name, tensor in zip(self.values, self.names, self.tensors, strict=True)
        ]


def _add_back(
    name: str | None, tensor: ir.TensorProtocol, model: ir.Model, editor: Editor
) -> ir.Value:
    value = model.graph.initializers.get(str(name))
    if value is not None and value.const_value is tensor:
        return value
    return editor.add_constant(str(name), tensor)
