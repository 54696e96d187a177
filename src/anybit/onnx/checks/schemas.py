# SPDX-License-Identifier: Apache-2.0
"""Errors of the checker of `onnx`."""

import re
from collections.abc import Iterator

from onnx_ir.passes.common import CheckerPass

from anybit.onnx.checks.finding import Finding, error
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.counts import REMEDY, wrong_counts
from anybit.onnx.operators.known import STANDARD_DOMAINS
from anybit.onnx.operators.registry import versions_of
from anybit.onnx.operators.schemas import register

_NODE = re.compile(r"(?:node name: |Name: )([^\s)]+)")
_OPERATOR = re.compile(r"(?:op_type:|OpType: )([^\s,)]+)")
_LONGEST = 300


def findings(subject: Subject) -> Iterator[Finding]:
    """Yield wrong numbers of inputs and outputs, or else the first error of the checker.

    The checker stops at its first error. It gets no large tensors.
    """
    counts = list(wrong_counts(subject.model))
    for node, problem in counts:
        yield error(node, "bad-inputs", problem, REMEDY)
    if counts:  # the checker would stop there
        return
    try:
        register()
    except RuntimeError:  # this onnx has no schemas from Python
        return
    model = subject.model
    nodes = list(iter_nodes(model.graph))
    ours = {node.domain for node in nodes if versions_of(node.domain, node.op_type)}
    foreign = {node.domain for node in nodes} - ours - set(STANDARD_DOMAINS)
    if not (ours | foreign) <= model.graph.opset_imports.keys():
        # Two versions of one operator (the checker knows one), or nodes that are reported
        # already.
        return
    try:
        CheckerPass(full_check=True, check_custom_domain=not foreign)(model)
    except Exception as refusal:  # the checker has several classes, onnx_ir wraps them
        yield _finding(refusal)


def _finding(refusal: BaseException) -> Finding:
    while refusal.__cause__ is not None:
        refusal = refusal.__cause__
    text = " ".join(str(refusal).split())
    node, operator = _NODE.search(text), _OPERATOR.search(text)
    return Finding(
        "error",
        node[1] if node else "",
        operator[1] if operator else "",
        f"the checker of onnx refuses it: {text[:_LONGEST]}",
        "correct the node, or export the model again with another opset",
        "schema",
    )
