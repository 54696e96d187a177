# SPDX-License-Identifier: Apache-2.0
"""Operators that a session can run, and that need the operator library."""

import onnx
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.layout import is_channels_last
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.dynamic_matmul import is_dynamic_matmul
from anybit.onnx.operators.integer_network import is_integer_network
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_versions

STANDARD_DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.training",
    "ai.onnx.preview.training",
)
"""Domains of the ONNX specification."""

RUNTIME_DOMAINS = ("ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft")
"""Domains of ONNX Runtime's own operators."""


def find_unknown_operators(model: ir.Model) -> list[str]:
    """Return the operators (`domain::name`) that are not standard, local, or of this package."""
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    unknown = set()
    for graph in graphs:
        opset = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", 1))
        for node in iter_nodes(graph):
            if not _is_known(node, model, opset):
                unknown.add(f"{node.domain or 'ai.onnx'}::{node.op_type}")
    return sorted(unknown)


def check_known(model: ir.Model, where: str) -> None:
    """Raise ModelError if a session cannot run an operator."""
    unknown = find_unknown_operators(model)
    if unknown:
        raise ModelError(
            f"{where} uses operators that are not known: {', '.join(unknown)}; convert them to "
            "standard operators, or register their library with anybit.onnxruntime.session"
        )


def _is_known(node: ir.Node, model: ir.Model, opset: int) -> bool:
    if node.op_identifier() in model.functions or node.domain in RUNTIME_DOMAINS:
        return True
    if not node.domain:
        # Operators newer than the installed onnx are left to the runtime.
        return opset > onnx.defs.onnx_opset_version() or onnx.defs.has(node.op_type, opset)
    if is_integer_network(node) or is_dynamic_matmul(node) or is_multi_threshold(node):
        return True
    return is_channels_last(node) or bool(find_versions(node.domain, node.op_type))
