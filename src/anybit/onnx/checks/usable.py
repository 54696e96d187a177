# SPDX-License-Identifier: Apache-2.0
"""Nodes that cannot be normalized: each is reported, and replaced so the others can be."""

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.checks.finding import Finding, make_error
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.passes import Normalize

UNUSABLE_DOMAIN = "not understood"
"""The domain of nodes with invalid inputs."""


def repair(model: ir.Model) -> Iterator[Finding]:
    """Yield everything that `Normalize` would refuse, node by node and attribute by attribute.

    The model is changed, so `Normalize` accepts it afterwards. Nodes with invalid inputs move to a
    separate domain; wrong attributes are removed, which leaves their defaults.
    """
    functions = [
        function
        for function in model.functions.values()
        if not find_versions(function.domain, function.name)
    ]
    for graph in (model.graph, *(function.graph for function in functions)):
        declared = dict(graph.opset_imports)
        usable: set[object] = set()
        for node in iter_nodes(graph):
            if not find_versions(node.domain, node.op_type):
                continue
            key = _make_key(node)
            if key in usable:
                continue
            findings = list(_repair_node(node, graph, declared))
            if not findings and key is not None:
                usable.add(key)
            yield from findings


def _make_key(node: ir.Node) -> object:
    """Return a key of the properties that `Normalize` checks; None if unknown.

    Only one of many nodes with the same key is tested.
    """
    attributes = tuple(
        (name, attribute.type, attribute.value) for name, attribute in node.attributes.items()
    )
    if not all(isinstance(value, int | float | str) for _, _, value in attributes):
        return None
    inputs = tuple(value is None for value in node.inputs)
    types = tuple(str(value.type) for value in node.outputs)
    return node.domain, node.op_type, inputs, attributes, types


def _repair_node(node: ir.Node, graph: ir.Graph, declared: Mapping[str, int]) -> Iterator[Finding]:
    count = len(node.outputs)
    refused = _explain_refusal(node) if count == 1 else f"must have 1 output, got {count}"
    if refused:
        yield _make_finding(node, "bad-inputs", refused, "export the model again")
        node.domain = UNUSABLE_DOMAIN
        return
    refused = _explain_refusal(node, imports=declared)
    if refused:
        yield _make_finding(node, "version-mismatch", refused, "correct the import")
        graph.opset_imports.pop(node.domain, None)
    for name in list(node.attributes):
        refused = _explain_refusal(node, [name])
        if refused:
            yield _make_finding(node, "bad-attribute", refused, "correct the attribute")
            del node.attributes[name]
    refused = _explain_refusal(node, list(node.attributes), result=node.outputs[0])
    if refused:
        yield _make_finding(node, "bad-type", refused, "correct one of the two")
        node.outputs[0].type = None


def _explain_refusal(
    node: ir.Node,
    attributes: Sequence[str] = (),
    *,
    imports: Mapping[str, int] | None = None,
    result: ir.Value | None = None,
) -> str:
    """Return why a model of that node alone, with those attributes alone, cannot be normalized."""
    inputs = [
        None if value is None else ir.Value(name=f"x{index}")
        for index, value in enumerate(node.inputs)
    ]
    output = ir.Value(name=node.outputs[0].name, type=None if result is None else result.type)
    copy = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        [node.attributes[name] for name in attributes],
        outputs=[output],
        name=node.name,
    )
    declared = [value for value in inputs if value is not None]
    graph = ir.Graph(declared, [output], nodes=[copy], opset_imports=dict(imports or {}))
    try:
        Normalize()(ir.Model(graph, ir_version=8))
    except ModelError as refusal:
        return str(refusal).removeprefix(describe(copy)).lstrip(": ")  # it may be renamed already
    return ""


def _make_finding(node: ir.Node, code: str, refused: str, remedy: str) -> Finding:
    problem, _, message = refused.partition("; ")
    return make_error(node, code, problem, message or remedy)
