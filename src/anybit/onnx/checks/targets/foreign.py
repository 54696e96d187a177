# SPDX-License-Identifier: Apache-2.0
"""Operators of other domains than ONNX's, and operators that read or write codes."""

from collections.abc import Iterator

import onnx_ir as ir

from anybit.onnx.checks.finding import Finding, make_error
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.usable import UNUSABLE_DOMAIN
from anybit.onnx.forms import Form
from anybit.onnx.graph.names import format_operator
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.dynamic_matmul import is_dynamic_matmul
from anybit.onnx.operators.integer_network import is_integer_network
from anybit.onnx.operators.known import STANDARD_DOMAINS
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.qdq.qlinear import is_integer_operator
from anybit.onnx.qdq.remedies import suggest_conversion
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize


def check(subject: Subject, form: Form) -> Iterator[Finding]:
    """Yield each operator that is not ONNX's and has no equivalent, including inner graphs."""
    for node in iter_nodes(subject.model.graph):
        if is_foreign(node) and not is_multi_threshold(node):  # becomes standard operators
            problem = f"{name_operator(node)} is not an ONNX operator"
            yield make_error(node, "foreign-operator", problem, suggest_remedy(node, form))


def is_foreign(node: ir.Node) -> bool:
    """Return whether an operator is neither ONNX's nor of this package."""
    domains = (*STANDARD_DOMAINS, UNUSABLE_DOMAIN)  # the latter is reported separately
    return node.domain not in domains and not find_versions(node.domain, node.op_type)


def is_quantized(node: ir.Node) -> bool:
    """Return whether an operator of another package reads or writes codes."""
    return is_quantize(node) or is_dequantize(node) or is_integer_operator(node)


def name_operator(node: ir.Node) -> str:
    """Return the operator of a node for a finding, without the domain that the checks set.

    Nothing is quoted: findings that differ only in quoted text are merged.
    """
    return node.op_type if node.domain == UNUSABLE_DOMAIN else format_operator(node)


def suggest_remedy(node: ir.Node, form: Form) -> str:
    """Return how to replace a node: convert it to the form if `convert` can, or start over."""
    if is_quantized(node):
        command = suggest_conversion(node, form)
        if command:
            return f"run {command}"
        return "quantize the float model another way: anybit quantize"
    if is_integer_network(node) or is_dynamic_matmul(node):
        return "use the model that was compiled"
    return "export the model with standard operators"
