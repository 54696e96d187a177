# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime with the operator library, running the file as it is.

Files of only standard operators that include QuantizeLinear or DequantizeLinear are loaded and run
in the installed version, with default options. Nodes that may become integer operators with other
values in any supported version (see `anybit.onnx.qdq.integer_kernels`) are named as well.
"""

from collections.abc import Iterator

import onnxruntime  # type: ignore[import-untyped]

from anybit.onnx.checks.finding import Finding, make_error, make_warning
from anybit.onnx.checks.spelling import NEWEST_IR_VERSION, NEWEST_OPSET
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.qdq.integer_kernels import Rewrite, can_fence, find_rewrites
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.trial import DISABLE, try_model


def check(subject: Subject) -> Iterator[Finding]:
    file = subject.file
    if (subject.model.ir_version or 0) > NEWEST_IR_VERSION:
        problem = f"its types need IR version {subject.model.ir_version}, newer than it loads"
        yield make_error(None, "ir-version", problem, "use other types")
    elif (file.ir_version or 0) > NEWEST_IR_VERSION:
        problem = f"IR version {file.ir_version} is newer than it loads ({NEWEST_IR_VERSION})"
        yield make_error(None, "ir-version", problem, "run anybit clean")
    if file.graph.opset_imports.get("", 0) > NEWEST_OPSET:
        problem = f"opset {file.graph.opset_imports['']} is newer than it loads ({NEWEST_OPSET})"
        yield make_error(None, "opset", problem, "export with an older opset")
    for node in file.graph.all_nodes():
        if is_multi_threshold(node):
            problem = "the operator library has no MultiThreshold"
            yield make_error(node, "operator", problem, "run anybit convert --to standard")
        operators = find_versions(node.domain, node.op_type)
        typed = any(operator.result_dtype is not None for operator in operators)
        if not typed or len(node.outputs) != 1 or node.outputs[0].dtype is not None:
            continue
        x = node.inputs[0] if node.inputs else None
        if x is None or x.shape is None or len(x.shape) == 0:
            problem = "the runtime cannot infer the type of the result, since the rank is unknown"
            yield make_warning(
                node, "type-not-declared", problem, "run anybit clean, which declares it"
            )
    yield from _check_default_options(subject)


def _check_default_options(subject: Subject) -> Iterator[Finding]:
    """Yield differences that the runtime's integer operators cause."""
    if not any(is_quantize(node) or is_dequantize(node) for node in subject.file.graph.all_nodes()):
        return
    yield from _check_integer_operators(subject)
    trial = try_model(subject.file, subject.model)
    if trial is None or not trial.problem:
        return
    problem = f"with default options ONNX Runtime {onnxruntime.__version__} {trial.problem}"
    remedy = f"give the session {trial.setting}" if trial.setting else "use another form"
    if trial.setting:
        remedy += ", or run anybit convert --for onnxruntime"
    yield make_warning(None, "default-options", problem, remedy)


def _check_integer_operators(subject: Subject) -> Iterator[Finding]:
    """Yield nodes whose integer operators may have other values, on some x86 or ARM CPU."""
    for rewrite in find_rewrites(subject.file):
        if rewrite.reason is not None:
            problem = f"with default options ONNX Runtime {rewrite.reason.value}"
            yield make_warning(rewrite.node, "integer-operator", problem, _suggest_remedy(rewrite))


def _suggest_remedy(rewrite: Rewrite) -> str:
    """Return the session option, and the form without the rewrite, if there is one."""
    remedy = f"give the session {DISABLE} = 1"
    if all(map(can_fence, (*rewrite.pairs, *rewrite.quantizers))):
        return f"{remedy}, or convert it with anybit convert --to qdq"
    weights = (node.inputs[0] for node in rewrite.pairs)
    if any(codes is not None and is_constant(codes) for codes in weights):
        return f"{remedy}, or convert it with anybit convert --to standard"
    return remedy
