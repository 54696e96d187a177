# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime with the operator library, given the file as it is.

Measured with ONNX Runtime 1.17 to 1.31.
"""

from collections.abc import Iterator

from anybit.onnx.checks.finding import Finding, error, warning
from anybit.onnx.checks.spelling import NEWEST_IR_VERSION, NEWEST_OPSET
from anybit.onnx.checks.subject import Subject
from anybit.onnx.operators.registry import versions_of


def findings(subject: Subject) -> Iterator[Finding]:
    file = subject.file
    if (subject.model.ir_version or 0) > NEWEST_IR_VERSION:
        problem = f"its types need IR version {subject.model.ir_version}, newer than it loads"
        yield error(None, "ir-version", problem, "use other types")
    elif (file.ir_version or 0) > NEWEST_IR_VERSION:
        problem = f"IR version {file.ir_version} is newer than it loads ({NEWEST_IR_VERSION})"
        yield error(None, "ir-version", problem, "run anybit clean")
    if file.graph.opset_imports.get("", 0) > NEWEST_OPSET:
        problem = f"opset {file.graph.opset_imports['']} is newer than it loads ({NEWEST_OPSET})"
        yield error(None, "opset", problem, "export with an older opset")
    for node in file.graph.all_nodes():
        operators = versions_of(node.domain, node.op_type)
        typed = any(operator.result_dtype is not None for operator in operators)
        if not typed or len(node.outputs) != 1 or node.outputs[0].dtype is not None:
            continue
        x = node.inputs[0] if node.inputs else None
        if x is None or x.shape is None or len(x.shape) == 0:
            problem = "the runtime cannot tell the type of the result, since the rank is unknown"
            yield warning(node, "type-not-declared", problem, "run anybit clean, which declares it")
