# SPDX-License-Identifier: Apache-2.0
"""Names of nodes and tensors after the parts of the module."""

from collections.abc import Collection, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import InPlacePass, PassResult
from torch.utils import _pytree

from anybit.onnx.graph.names import NameGenerator
from anybit.onnx.operators.registry import find_operator


class NameAfterModules(InPlacePass):
    """Pass that names nodes, their outputs and constants after the parts of the module.

    The name of a node and its output is that of the part and the operator: "conv1.Conv". Constants
    of the state dict keep their names. Others are named after their first use as a parameter:
    "conv1.weight_quantizer.scale".
    """

    def __init__(
        self, stored: Collection[str], inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """Initialize from the names of the state dict, and the new names of inputs and outputs."""
        self._interface = (*inputs, *outputs)
        self._stored = set(stored) - set(self._interface)

    def call(self, model: ir.Model) -> PassResult:
        graph = model.graph
        kept = {value.name for value in graph.initializers.values() if value.name in self._stored}
        unique = NameGenerator(kept | set(self._interface) | {value.name for value in graph.inputs})
        renamed: dict[ir.Value, str] = {}
        opset = graph.opset_imports[""]
        for node in graph:
            node.name = unique(_join_path(_get_path(node), node.op_type))
            results = [value for value in node.outputs if value.name]
            for index, result in enumerate(results):
                if not result.is_graph_output():
                    renamed[result] = node.name if index == 0 else unique(f"{node.name}_{index}")
            for index, value in enumerate(node.inputs):
                if value is None or not value.is_initializer() or value.is_graph_output():
                    continue
                if value.name not in self._stored and value not in renamed:
                    renamed[value] = unique(
                        _join_path(_get_path(node), _get_role(node, index, opset))
                    )
        renamed |= zip((*graph.inputs, *graph.outputs), self._interface, strict=True)
        # Two steps, because a new name may be the old name of another value.
        for number, value in enumerate(renamed):
            value.name = f"renamed {number}"
        for value, name in renamed.items():
            value.name = name
        return PassResult(model, True)


def name_outputs(outputs: Any, inputs: Collection[str]) -> list[str]:
    """Return the names of the tensors that forward returns: keys of mappings, else numbers.

    "output" for a single tensor; "logits" for that key, "heads.logits" for a nested one.
    """
    paths = [
        path
        for path, leaf in _pytree.tree_flatten_with_path(outputs)[0]
        if isinstance(leaf, torch.Tensor)
    ]
    unique = NameGenerator(inputs)
    if len(paths) == 1 and not _join_keys(paths[0]):
        return [unique("output")]
    return [unique(_join_keys(path) or f"output_{index}") for index, path in enumerate(paths)]


def _join_keys(path: Sequence[Any]) -> str:
    """Return the keys of the path to a tensor, "" if none of them is a printable name."""
    # Entries of a path have `key` for mappings, `name` for objects, and `idx` for sequences.
    keys = [
        next((getattr(entry, kind) for kind in ("key", "name", "idx") if hasattr(entry, kind)), "")
        for entry in path
    ]
    names = [key for key in keys if isinstance(key, str)]
    printable = all(name and name.isprintable() for name in names)
    return ".".join(map(str, keys)) if names and printable else ""


def _get_path(node: ir.Node) -> str:
    """Return the innermost part of the module that has the node; "" for the module itself."""
    origin = node.meta.get("node")
    stack = origin.meta.get("nn_module_stack") if origin is not None else None
    paths = [path for path, _ in (stack or {}).values()]
    path = paths[-1] if paths else ""
    return "" if path.startswith("_") else str(path)


def _get_role(node: ir.Node, index: int, opset: int) -> str:
    """Return the name of an input of a node in its schema."""
    operator = find_operator(node)
    if operator is not None:
        return operator.inputs[index].name
    declared = onnx.defs.get_schema(node.op_type, max_inclusive_version=opset).inputs
    return f"{node.op_type}.{declared[min(index, len(declared) - 1)].name}"


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
