# SPDX-License-Identifier: Apache-2.0
"""Preparation of models for analyses and sessions."""

import contextlib
import os
from collections.abc import Iterator

import onnx_ir as ir

from anybit.errors import AnybitError
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.counts import check_counts
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.passes import (
    ExpandMultiThreshold,
    FixReshapes,
    FoldConstants,
    InferShapes,
    InlineFunctions,
    LiftOpset,
    NameLayers,
    Normalize,
    StandardLayout,
)
from anybit.onnx.passes.expand_multi_threshold import OPSET
from anybit.onnx.process import silence_onnx_logs
from anybit.onnx.report import Report

# In each round, Reshapes are resolved that depend on those of the last one.
_MOST_ROUNDS = 8


def prepare(source: Source) -> ir.Model:
    """Read a model, inline its local functions, normalize it and fold what is constant.

    Quantized weights are computed once, by the operators' own functions, bit-identical to every
    run: runtimes do not fold foreign operators. The source is not changed.

    Raises:
        ModelError: See `read`, `inline`, `Normalize` and `FoldConstants`.
    """
    return prepared(read_copy(source), source)


def prepared(model: ir.Model, source: Source, *, normalized: bool = False) -> ir.Model:
    """Prepare a model in place, as `prepare` does for a copy.

    `normalized` states that it is normalized already, except inside local functions.
    """
    called = bool(model.functions)
    inline(model, source)
    if called or not normalized:
        apply(model, source, Normalize(), StandardLayout())
    if any(_measures(node) for node in iter_nodes(model.graph)):
        apply(model, source, InferShapes())
    runnable(model, source)
    apply(model, source, FoldConstants(codes=True))
    return model


def runnable(model: ir.Model, source: Source) -> ir.Model:
    """Replace, in place, operators that neither ONNX Runtime nor the operator library computes.

    Raises:
        ModelError: See `LiftOpset` and `ExpandMultiThreshold`.
    """
    nodes = [node for node in iter_nodes(model.graph) if is_multi_threshold(node)]
    if nodes:
        apply(model, source, LiftOpset(OPSET))
        if any(
            value is not None and not is_constant(value) for n in nodes for value in n.inputs[1:]
        ):
            apply(model, source, FoldConstants(operators=False))
        apply(model, source, InferShapes(), ExpandMultiThreshold())
    return model


def followable(source: Source) -> ir.Model:
    """Return a copy for the analysis: normalized, with scales and widths folded, but not weights.

    Computed targets of Reshapes become constants where possible.

    Raises:
        ModelError: See `prepare`.
    """
    model = read_copy(source)
    inline(model, source)
    if any(is_multi_threshold(node) for node in iter_nodes(model.graph)):
        apply(model, source, LiftOpset(OPSET))
    apply(model, source, Normalize(), StandardLayout(), NameLayers(), InferShapes())
    for _ in range(_MOST_ROUNDS):
        (folded,) = apply(model, source, FoldConstants(operators=False))
        if folded.modified:
            apply(model, source, InferShapes())
        (fixed,) = apply(model, source, FixReshapes())
        if not fixed.modified:
            break
        apply(model, source, InferShapes())
    return model


def _measures(node: ir.Node) -> bool:
    """Return whether a node computes from the shape of other nodes' outputs."""
    x = node.inputs[0] if node.inputs else None
    return (node.domain, node.op_type) == ("", "Shape") and x is not None and not x.is_graph_input()


def inline(model: ir.Model, source: Source) -> None:
    """Inline local functions, then refuse nodes with a wrong number of inputs or outputs.

    Raises:
        ModelError: See `InlineFunctions` and `check_counts`.
    """
    apply(model, source, InlineFunctions())
    with errors_named_after(source):
        check_counts(model)


@silence_onnx_logs()
def apply(
    model: ir.Model, source: Source, *passes: ir.passes.InPlacePass
) -> tuple[ir.passes.PassResult, ...]:
    """Run passes in sequence. Errors name the source file of the model."""
    with errors_named_after(source):
        return tuple(pass_(model) for pass_ in passes)


def reported(model: ir.Model, source: Source, pass_: ir.passes.InPlacePass) -> Report:
    """Run a pass that returns a report."""
    (report,) = apply(model, source, pass_)
    assert isinstance(report, Report), "asked of such passes only"
    return report


@contextlib.contextmanager
def errors_named_after(source: Source) -> Iterator[None]:
    """Prefix model errors with the name of the source file, if there is one."""
    try:
        yield
    except AnybitError as error:
        if not isinstance(source, str | os.PathLike):
            raise
        raise type(error)(f"{os.fspath(source)}: {error}") from error
