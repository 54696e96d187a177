# SPDX-License-Identifier: Apache-2.0
"""Insertion of nodes and constants under unique names."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array, Content, is_constant, make_constant, make_content_key
from anybit.onnx.graph.names import make_name_generator
from anybit.onnx.graph.require import require_graph


class Editor:
    """Insertion of nodes and constants for passes. Constants go to the main graph.

    Existing values are never overwritten: files share initializers between nodes.
    """

    def __init__(self, model: ir.Model) -> None:
        self._main = model.graph
        self.unique = make_name_generator(model)
        self._shared: dict[tuple[str, Content], ir.Value] = {}

    def add_constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Add an initializer under a unique name."""
        value = make_constant(self.unique(name), tensor)
        self._main.register_initializer(value)
        return value

    def share_parameter(self, owner: str, role: str, array: Array, dtype: ir.DataType) -> ir.Value:
        """Return an initializer of these values; equal parameters of one role are shared."""
        return self.share_constant(role, f"{owner}_{role}", np.asarray(array).astype(dtype.numpy()))

    def share_constant(self, role: str, name: str, values: Array) -> ir.Value:
        """Return a shared initializer, with the name and type chosen by the caller."""
        key = role, make_content_key(values)
        if key not in self._shared:
            self._shared[key] = self.add_constant(name, ir.Tensor(values))
        return self._shared[key]

    def insert(
        self,
        before: ir.Node,
        kind: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        *,
        like: ir.Value,
        dtype: ir.DataType,
        attributes: Sequence[ir.Attr] = (),
        domain: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> ir.Value:
        """Insert a node before another; return its output, which has the shape of `like`."""
        node = ir.Node(domain, kind, inputs, attributes, name=self.unique(name))
        node.metadata_props.update(metadata or {})
        result = node.outputs[0]
        result.name = self.unique(name)
        result.dtype = dtype
        result.shape = like.shape.copy() if like.shape is not None else None
        require_graph(before).insert_before(before, node)
        return result

    def insert_copy(
        self,
        before: ir.Node,
        node: ir.Node,
        inputs: Sequence[ir.Value | None],
        *,
        like: ir.Value,
        dtype: ir.DataType,
        name: str = "",
    ) -> ir.Value:
        """Insert the operator of a node, with its attributes and other inputs, before another.

        The name is that of the node by default.
        """
        return self.insert(
            before,
            node.op_type,
            inputs,
            name or str(node.name or node.op_type),
            like=like,
            dtype=dtype,
            attributes=list(node.attributes.values()),
            domain=node.domain,
        )

    def replace(self, node: ir.Node, result: ir.Value, *, shared: bool = False) -> None:
        """Replace a node's only output by another value, under the same name.

        A `shared` result has other readers, or lies in an outer graph: it keeps its name. Inputs of
        the node that nothing else reads are dropped, so that weights are freed.
        """
        graph, old = require_graph(node), node.outputs[0]
        inputs = [value for value in node.inputs if value is not None]
        if shared and old.is_graph_output():
            name, dtype = f"{old.name}_copy", result.dtype or ir.DataType.FLOAT
            result = self.insert(node, "Identity", [result], name, like=result, dtype=dtype)
            shared = False
        if not shared:
            result.type = old.type if old.type is not None else result.type
            result.shape = old.shape if old.shape is not None else result.shape
            result.metadata_props.update(old.metadata_props)
        replace_value(old, result)
        graph.remove(node, safe=True)
        if old.name and not shared:
            result.name = old.name
        for value in inputs:
            drop_if_unread(value)


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Redirect all readers of a value, and the outputs it stands for, to another value.

    onnx_ir's `replace_graph_outputs` scans all outputs, and a diff has thousands.
    """
    while old.graph is not None and old.is_graph_output():
        outputs = old.graph.outputs
        outputs[outputs.index(old)] = new
    old.replace_all_uses_with(new)


def drop_if_unread(value: ir.Value) -> None:
    """Remove a constant from its graph if no node reads it and it is not an output.

    Its memory is released at once. Otherwise, values removed from a graph, and graphs replaced by a
    converter, would keep whole files mapped until the garbage collector runs.
    """
    unread = is_constant(value) and not is_read(value) and not value.is_graph_output()
    if unread and value.graph is not None and value.name is not None:
        del value.graph.initializers[value.name]
        if isinstance(value.const_value, ir.ExternalTensor):
            with suppress(BufferError):  # someone still has its array
                value.const_value.release()
        value.const_value = None


def is_read(value: ir.Value) -> bool:
    """Return whether any node reads a value.

    `Value.uses` copies all readers; long models have thousands.
    """
    readers: object = getattr(value, "_uses", None)
    return bool(value.uses() if readers is None else readers)
