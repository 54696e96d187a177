# SPDX-License-Identifier: Apache-2.0
"""Operators that end the process in ONNX Runtime if an input has no elements."""

from collections.abc import Mapping

import onnx_ir as ir

from anybit.errors import DataError
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.walk import iter_nodes

_RECURRENT = {("", "LSTM"), ("", "GRU"), ("com.microsoft", "DynamicQuantizeLSTM")}
"""They abort without a batch, GRU also without steps."""

_ATTENTION = {("com.microsoft", "GroupQueryAttention")}
"""It divides by the batch size; a cache may be empty."""


def find_fatal_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes, also of subgraphs and functions, that may end the process."""
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    fatal = _RECURRENT | _ATTENTION
    return [node for graph in graphs for node in iter_nodes(graph) if _get_operator(node) in fatal]


def check_fatal_nodes(nodes: list[ir.Node], feeds: Mapping[str, Array]) -> None:
    """Raise DataError if inputs without elements may end the process in one of the nodes."""
    for name, array in feeds.items():
        for node in nodes if not array.size else ():
            if _get_operator(node) in _RECURRENT or 0 in array.shape[:1]:
                raise DataError(
                    f"input {name!r} has shape {array.shape}: it has no elements, and ONNX Runtime "
                    f"ends the process in {node.op_type} on empty tensors; pass at least one row"
                )


def _get_operator(node: ir.Node) -> tuple[str, str]:
    return node.domain, node.op_type
