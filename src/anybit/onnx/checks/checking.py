# SPDX-License-Identifier: Apache-2.0
"""Check of a model, in general and for a target."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import onnx_ir as ir

from anybit.errors import ModelError, OptionError
from anybit.onnx.checks import (
    arithmetic,
    connections,
    declared,
    parameters,
    schemas,
    spelling,
)
from anybit.onnx.checks.finding import Finding, get_name, group_findings, make_error
from anybit.onnx.checks.subject import Subject, make_subject
from anybit.onnx.checks.targets import TARGETS
from anybit.onnx.checks.usable import repair
from anybit.onnx.files.reader import Source, read
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.passes import (
    FoldConstants,
    InferShapes,
    InlineFunctions,
    Normalize,
    StandardLayout,
)
from anybit.onnx.process import relax_gc, silence_onnx_logs

__all__ = ["TARGETS", "Finding", "check"]


@silence_onnx_logs()
@relax_gc()
def check(source: Source, target: str | None = None) -> tuple[Finding, ...]:
    """Return everything that is wrong with a model, in one pass; it is not changed.

    * Versions and spellings that some tools do not support.
    * Errors of operators: numbers of inputs, attributes, bit-widths that are not integers, scales
      that are not positive and finite, shapes that do not broadcast.
    * Valid but unusual parameters: see the remarks of each operator.
    * Errors of the checker of `onnx`.
    * Wrong declared shapes.
    * Sums that float32 does not compute exactly.
    * Inputs that no output needs, and outputs that depend on no input.
    * Obstacles for the target, one of `TARGETS`. For "onnxruntime", a small model with
      QuantizeLinear is loaded and run there.

    Errors come first, then warnings, both in the order of the list. The same problem in several
    nodes is one finding, which names them all.

    Args:
        source: See `anybit.onnx.read`.
        target: "onnxruntime", "standard", "qdq", "finn" or "hls4ml".

    Raises:
        ModelError: The source is not a model that can be read.
        OptionError: There is no such target.
    """
    if target is not None and target not in TARGETS:
        raise OptionError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    file = read(source)
    model = file.clone()
    findings = list(repair(model))
    findings += _normalize(model)
    subject = make_subject(file, model)
    findings += _check_target(subject, target)
    spelled = {get_name(node): node.op_type for node in iter_nodes(file.graph)}
    findings = [
        replace(finding, operator=spelled.get(finding.node, finding.operator))
        for finding in findings
    ]
    return tuple(sorted(group_findings(findings), key=lambda finding: finding.severity))


def _normalize(model: ir.Model) -> Iterator[Finding]:
    """Normalize the model for the rules, and report failures."""
    passes: tuple[Callable[[], ir.passes.InPlacePass], ...] = (
        InlineFunctions,
        Normalize,
        StandardLayout,
        InferShapes,
        lambda: FoldConstants(operators=False),
        InferShapes,
    )
    for make in passes:
        try:
            make()(model)
        except ModelError as refusal:
            problem, _, remedy = str(refusal).partition("; ")
            yield make_error(None, "unusable", problem, remedy or "export the model again")


def _check_target(subject: Subject, target: str | None) -> Iterator[Finding]:
    entry = TARGETS[target] if target is not None else None
    yield from spelling.check(subject, entry.names if entry is not None else ())
    yield from declared.check(subject)
    yield from parameters.check(subject)
    yield from schemas.check(subject)
    if entry is not None:
        yield from entry.rules(subject)
    yield from connections.check(subject)
    yield from arithmetic.check(subject)
