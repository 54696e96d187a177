# SPDX-License-Identifier: Apache-2.0
"""Errors of the checker of `onnx`."""

import re
from collections.abc import Iterator

from onnx_ir.passes.common import CheckerPass

from anybit.onnx.checks.finding import Finding, make_error
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.counts import REMEDY, find_wrong_counts
from anybit.onnx.operators.known import STANDARD_DOMAINS
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.operators.schemas import register

_NODE = re.compile(r"(?:node name: |Name: )([^\s)]+)")
_OPERATOR = re.compile(r"(?:op_type:|OpType: )([^\s,)]+)")
_LONGEST = 300


def check(subject: Subject) -> Iterator[Finding]:
    """Yield wrong numbers of inputs and outputs, or else the first error of the checker.

    The checker stops at its first error. It gets no large tensors.
    """
    counts = list(find_wrong_counts(subject.model))
    for node, problem in counts:
        yield make_error(node, "bad-inputs", problem, REMEDY)
    if counts:  # the checker would stop there
        return
    try:
        register()
    except RuntimeError:  # this onnx has no schemas from Python
        return
    model = subject.model
    nodes = list(iter_nodes(model.graph))
    ours = {node.domain for node in nodes if find_versions(node.domain, node.op_type)}
    foreign = {node.domain for node in nodes} - ours - set(STANDARD_DOMAINS)
    if not (ours | foreign) <= model.graph.opset_imports.keys():
        # Two versions of one operator (the checker knows one), or nodes that are reported
        # already.
        return
    try:
        CheckerPass(full_check=True, check_custom_domain=not foreign)(model)
    except Exception as refusal:  # the checker has several classes, onnx_ir wraps them
        yield _make_finding(refusal)


def _make_finding(refusal: BaseException) -> Finding:
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
