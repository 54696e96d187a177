# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a model, and what a target cannot take."""

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
from anybit.onnx.checks.finding import Finding, error, grouped, name_of
from anybit.onnx.checks.subject import Subject, subject_of
from anybit.onnx.checks.targets import TARGETS
from anybit.onnx.checks.usable import made_usable
from anybit.onnx.files.collection import seldom_collected
from anybit.onnx.files.quiet import quiet
from anybit.onnx.files.reader import Source, read
from anybit.onnx.graph.walk import nodes_in
from anybit.onnx.passes import (
    FoldConstants,
    InferShapes,
    InlineFunctions,
    Normalize,
    StandardLayout,
)

__all__ = ["TARGETS", "Finding", "check"]


@quiet()
@seldom_collected()
def check(source: Source, target: str | None = None) -> tuple[Finding, ...]:
    """Everything that is wrong with a model, in one pass; it is not changed.

    * Versions and spellings that some tools do not understand.
    * What the operators refuse: numbers of inputs, attributes, bit-widths that are not integers,
      scales that are not positive and finite, shapes that do not broadcast.
    * What they take but few mean: see the remarks of each operator.
    * What the checker of `onnx` refuses.
    * Shapes that a value is declared with, and does not have.
    * Sums that float32 does not compute exactly.
    * Inputs that no output needs, and outputs that depend on no input.
    * What the target cannot take, if one is given: one of `TARGETS`. For "onnxruntime" a model that
      holds QuantizeLinear is loaded and run there, if it is small.

    Errors come first, then warnings, each kind in the order of the list. What is wrong in one way
    in several nodes is one finding, which names them all.

    Args:
        source: As for `anybit.onnx.read`.
        target: "onnxruntime", "standard", "qdq", "finn" or "hls4ml".

    Raises:
        ModelError: The source is not a model that can be read.
        OptionError: There is no such target.
    """
    if target is not None and target not in TARGETS:
        raise OptionError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    file = read(source)
    model = file.clone()
    found = list(made_usable(model))
    found += _prepared(model)
    subject = subject_of(file, model)
    found += _of_target(subject, target)
    spelled = {name_of(node): node.op_type for node in nodes_in(file.graph)}
    found = [replace(each, operator=spelled.get(each.node, each.operator)) for each in found]
    return tuple(sorted(grouped(found), key=lambda each: each.severity))


def _prepared(model: ir.Model) -> Iterator[Finding]:
    """Bring the model into the form that the rules see. What fails is reported."""
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
            yield error(None, "unusable", problem, remedy or "export the model again")


def _of_target(subject: Subject, target: str | None) -> Iterator[Finding]:
    wanted = TARGETS[target] if target is not None else None
    yield from spelling.findings(subject, wanted.names if wanted is not None else ())
    yield from declared.findings(subject)
    yield from parameters.findings(subject)
    yield from schemas.findings(subject)
    if wanted is not None:
        yield from wanted.rules(subject)
    yield from connections.findings(subject)
    yield from arithmetic.findings(subject)
