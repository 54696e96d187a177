# SPDX-License-Identifier: Apache-2.0
"""Everything between a file and a session."""

import contextlib
import os
from collections.abc import Iterator

import onnx_ir as ir

from anybit.errors import AnybitError
from anybit.onnx.files.quiet import quiet
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.walk import nodes_in
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
from anybit.onnx.report import Report

# In each, Reshapes are followed whose sizes depend on what those of the last one give.
_MOST_ROUNDS = 8


def prepare(source: Source) -> ir.Model:
    """Read a model, inline its local functions, normalize it and fold what is constant.

    Quantized weights are computed once, here, by the operators' own functions, and bit for bit
    what they would be at every run: a runtime does not fold operators that are not its own. The
    source itself is not changed.

    Raises:
        ModelError: As `read`, `inline`, `Normalize` and `FoldConstants`.
    """
    return prepared(read_copy(source), source)


def prepared(model: ir.Model, source: Source, *, normalized: bool = False) -> ir.Model:
    """The same of a model that has been read, in place.

    `normalized` says that it has its one form already, apart from what is in local functions.
    """
    called = bool(model.functions)
    inline(model, source)
    if called or not normalized:
        apply(model, source, Normalize(), StandardLayout())
    if any(_measures(node) for node in nodes_in(model.graph)):
        apply(model, source, InferShapes())
    runnable(model, source)
    apply(model, source, FoldConstants(codes=True))
    return model


def runnable(model: ir.Model, source: Source) -> ir.Model:
    """Express in place, and return, what neither ONNX Runtime nor our library computes.

    Raises:
        ModelError: As `LiftOpset` and `ExpandMultiThreshold`.
    """
    nodes = [node for node in nodes_in(model.graph) if is_multi_threshold(node)]
    if nodes:
        apply(model, source, LiftOpset(OPSET))
        if any(
            value is not None and not is_constant(value) for n in nodes for value in n.inputs[1:]
        ):
            apply(model, source, FoldConstants(operators=False))
        apply(model, source, InferShapes(), ExpandMultiThreshold())
    return model


def followable(source: Source) -> ir.Model:
    """A copy as the analysis takes it: one spelling, scales and widths folded, weights not.

    Reshapes to sizes that the graph computes are made ones to constants where they can be.

    Raises:
        ModelError: As `prepare`.
    """
    model = read_copy(source)
    inline(model, source)
    if any(is_multi_threshold(node) for node in nodes_in(model.graph)):
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
    """Whether it computes from the shape of what other nodes make."""
    x = node.inputs[0] if node.inputs else None
    return (node.domain, node.op_type) == ("", "Shape") and x is not None and not x.is_graph_input()


def inline(model: ir.Model, source: Source) -> None:
    """Inline local functions, and refuse nodes with a wrong number of inputs or outputs then.

    Raises:
        ModelError: As `InlineFunctions` and `check_counts`.
    """
    apply(model, source, InlineFunctions())
    with errors_named_after(source):
        check_counts(model)


@quiet()
def apply(
    model: ir.Model, source: Source, *passes: ir.passes.InPlacePass
) -> tuple[ir.passes.PassResult, ...]:
    """Run passes in turn. Errors get the name of the file that the model comes from."""
    with errors_named_after(source):
        return tuple(each(model) for each in passes)


def reported(model: ir.Model, source: Source, each: ir.passes.InPlacePass) -> Report:
    """Run a pass that says what it did."""
    (report,) = apply(model, source, each)
    assert isinstance(report, Report), "asked of such passes only"
    return report


@contextlib.contextmanager
def errors_named_after(source: Source) -> Iterator[None]:
    """Put the name of the file, if it is one, before the errors of models."""
    try:
        yield
    except AnybitError as error:
        if not isinstance(source, str | os.PathLike):
            raise
        raise type(error)(f"{os.fspath(source)}: {error}") from error
