# SPDX-License-Identifier: Apache-2.0
"""Preparation of models for analyses and sessions."""

import contextlib
import os
from collections.abc import Iterator

import onnx_ir as ir

from anybit.errors import AnybitError
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.op_traits import is_onnx_op
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
    SplitSequences,
    StandardLayout,
)
from anybit.onnx.passes.expand_multi_threshold import OPSET
from anybit.onnx.process import silence_onnx_logs
from anybit.onnx.report import ConversionReport

# In each round, Reshapes are resolved that depend on those of the last one.
_MOST_ROUNDS = 8


def prepare(source: Source) -> ir.Model:
    """Read a model, inline its local functions, normalize it and fold what is constant.

    Quantized weights are computed once, by the operators' own functions, bit-identical to every
    run: runtimes do not fold foreign operators. The source is not changed.

    Raises:
        ModelError: See `read`, `inline_functions`, `Normalize` and `FoldConstants`.
    """
    return prepare_in_place(read_copy(source), source)


def prepare_in_place(model: ir.Model, source: Source, *, normalized: bool = False) -> ir.Model:
    """Prepare a model in place, as `prepare` does for a copy.

    `normalized` states that it is normalized already, except inside local functions.
    """
    called = bool(model.functions)
    inline_functions(model, source)
    if called or not normalized:
        apply_passes(model, source, Normalize(), StandardLayout())
    if any(_computes_from_shapes(node) for node in iter_nodes(model.graph)):
        apply_passes(model, source, InferShapes())
    make_runnable(model, source)
    apply_passes(model, source, FoldConstants(codes=True))
    return model


def make_runnable(model: ir.Model, source: Source) -> ir.Model:
    """Replace, in place, operators that neither ONNX Runtime nor the operator library computes.

    Raises:
        ModelError: See `LiftOpset` and `ExpandMultiThreshold`.
    """
    nodes = [node for node in iter_nodes(model.graph) if is_multi_threshold(node)]
    if nodes:
        apply_passes(model, source, LiftOpset(OPSET))
        if any(
            value is not None and not is_constant(value) for n in nodes for value in n.inputs[1:]
        ):
            apply_passes(model, source, FoldConstants(operators=False))
        apply_passes(model, source, InferShapes(), ExpandMultiThreshold())
    return model


def prepare_for_analysis(source: Source) -> ir.Model:
    """Return a copy for the analysis: normalized, with scales and widths folded, but not weights.

    Computed targets of Reshapes become constants where possible.

    Raises:
        ModelError: See `prepare`.
    """
    model = read_copy(source)
    inline_functions(model, source)
    if any(is_multi_threshold(node) for node in iter_nodes(model.graph)):
        apply_passes(model, source, LiftOpset(OPSET))
    apply_passes(model, source, Normalize(), StandardLayout(), NameLayers(), InferShapes())
    for _ in range(_MOST_ROUNDS):
        (folded,) = apply_passes(model, source, FoldConstants(operators=False))
        (split,) = apply_passes(model, source, SplitSequences())
        if folded.modified or split.modified:
            apply_passes(model, source, InferShapes())
        (fixed,) = apply_passes(model, source, FixReshapes())
        if not fixed.modified:
            break
        apply_passes(model, source, InferShapes())
    return model


def _computes_from_shapes(node: ir.Node) -> bool:
    """Return whether a node computes from the shape of other nodes' outputs."""
    x = node.inputs[0] if node.inputs else None
    return is_onnx_op(node, "Shape") and x is not None and not x.is_graph_input()


def inline_functions(model: ir.Model, source: Source) -> None:
    """Inline local functions, then refuse nodes with a wrong number of inputs or outputs.

    Raises:
        ModelError: See `InlineFunctions` and `check_counts`.
    """
    apply_passes(model, source, InlineFunctions())
    with name_errors_after(source):
        check_counts(model)


@silence_onnx_logs()
def apply_passes(
    model: ir.Model, source: Source, *passes: ir.passes.InPlacePass
) -> tuple[ir.passes.PassResult, ...]:
    """Run passes in sequence. Errors name the source file of the model."""
    with name_errors_after(source):
        return tuple(pass_(model) for pass_ in passes)


def run_pass(model: ir.Model, source: Source, pass_: ir.passes.InPlacePass) -> ConversionReport:
    """Run a pass that returns a report."""
    (report,) = apply_passes(model, source, pass_)
    if not isinstance(report, ConversionReport):
        raise TypeError(f"{type(pass_).__name__} returns no report")
    return report


@contextlib.contextmanager
def name_errors_after(source: Source) -> Iterator[None]:
    """Prefix model errors with the name of the source file, if there is one."""
    try:
        yield
    except AnybitError as error:
        if not isinstance(source, str | os.PathLike):
            raise
        raise type(error)(f"{os.fspath(source)}: {error}") from error
