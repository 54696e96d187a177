# SPDX-License-Identifier: Apache-2.0
"""Inputs that no output needs, and outputs that are the same for every input."""

from collections.abc import Iterator

import onnx_ir as ir

from anybit.onnx.checks.finding import Finding, make_warning
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.walk import get_inner_graphs


def check(subject: Subject) -> Iterator[Finding]:
    graph = subject.file.graph
    inputs = [value for value in graph.inputs if not value.is_initializer()]
    needed = _find_needed_values(graph)
    for value in inputs:
        if value not in needed:
            problem = f"the input {value.name!r} is not used by any output"
            remedy = "leave it out, or look for the node that should read it"
            yield make_warning(None, "unread-input", problem, remedy)
    if not inputs:
        return
    # Constants are folded here, so values that only depend on a fixed shape are constants.
    graph = subject.model.graph
    varying = _find_varying_values(graph)
    for value in graph.outputs:
        if value not in varying:
            problem = f"the output {value.name!r} does not depend on any input: it is constant"
            remedy = (
                "look for the node that should read the input; the exporter took it for constant"
            )
            yield make_warning(value.producer(), "constant-output", problem, remedy)


def _find_needed_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that outputs depend on."""
    needed: set[ir.Value] = set()
    waiting = list(graph.outputs)
    while waiting:
        value = waiting.pop()
        if value in needed:
            continue
        needed.add(value)
        producer = value.producer()
        if producer is not None and producer.graph is graph:
            waiting += _iter_read_values(producer)
    return needed


def _find_varying_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that depend on an input."""
    varying = {value for value in graph.inputs if not value.is_initializer()}
    for node in graph:
        if any(value in varying for value in _iter_read_values(node)):
            varying.update(node.outputs)
    return varying


def _iter_read_values(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads, including branches and bodies."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        yield from (value for value in inner.inputs if value is not None)
        for graph in get_inner_graphs(inner):
            yield from graph.outputs
            waiting += graph
