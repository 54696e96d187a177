# SPDX-License-Identifier: Apache-2.0
"""Cleanup of models: one spelling, no leftovers, all shapes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from anybit.errors import OptionError
from anybit.onnx.checks.targets import TARGETS
from anybit.onnx.checks.targets.hls4ml_names import is_usable
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.files.writer import ModelResult
from anybit.onnx.passes import (
    AbsorbTransposes,
    BatchNormToAffine,
    ChangeBatch,
    ChannelsLast,
    DynamicSizes,
    ExtractConvBias,
    FoldConstants,
    GemmToMatMul,
    Identifiers,
    InferShapes,
    JoinConvBias,
    MeanToConv,
    MeanToPool,
    MoveTransposes,
    NameNodes,
    Normalize,
    OneScale,
    OwnConstants,
    Simplify,
    StandardLayout,
    TrimConstants,
    UseNames,
)
from anybit.onnx.preparation import apply_passes, inline_functions, run_pass
from anybit.onnx.process import relax_gc, silence_onnx_logs

_Steps: TypeAlias = tuple[Callable[[], InPlacePass], ...]

_STEPS: Mapping[str, _Steps] = {
    "finn": (GemmToMatMul, ExtractConvBias, BatchNormToAffine),
    "hls4ml": (
        *(GemmToMatMul, JoinConvBias, BatchNormToAffine, MeanToPool, MeanToConv),
        *(ChannelsLast, MoveTransposes, InferShapes, AbsorbTransposes, OneScale, TrimConstants),
    ),
}
"""The passes for each compiler, besides names and a fixed batch."""


@dataclass(frozen=True)
class CleanResult(ModelResult):
    """The result of `clean`: a model, which can be saved and used as a source.

    Attributes:
        model: The model. `onnx_ir.to_proto` turns it into an `onnx.ModelProto`.
        remarks: Remarks about the model, one line each.
    """

    model: ir.Model = field(repr=False)
    remarks: tuple[str, ...] = ()


@silence_onnx_logs()
@relax_gc()
def clean(
    source: Source,
    *,
    batch: int | str | None = None,
    keep_quantizers: bool = False,
    target: str | None = None,
) -> CleanResult:
    """Return an equivalent model with everything removed that does not affect its values.

    * Operators under one name, with all attributes; no local functions; the lowest IR version.
    * Constants computed: quantized weights, scales, shapes.
    * No dead nodes, no identities, no unused constants and imports.
    * Every node has a unique name, every value its inferred type and shape; sizes that depend on
      the data are dynamic. Inputs and outputs keep their names and their order.

    Results are equal bit for bit. Cleaning is idempotent.

    Args:
        source: See `anybit.onnx.read`. It is not changed.
        batch: The batch size of the model, or "dynamic" for any; see `ChangeBatch`.
        keep_quantizers: Leave quantizers of weights as they are, for compilers that need them.
        target: A compiler, "finn" or "hls4ml". Quantizers are kept, under its names; a dynamic
            batch becomes 1; Gemm becomes MatMul and Add; BatchNormalization becomes Mul and Add if
            that is bit-identical. For finn, the bias of a convolution becomes an Add. For hls4ml,
            an Add of a constant becomes a bias, and a mean of 2^k values a convolution.
            Convolutions, pooling and their model inputs have channels last. Inputs, constants and
            nodes have C++ names, and each input of a node has a constant of its own.

    Raises:
        ModelError: The model cannot be read, an operator refuses its parameters, or the batch
            cannot be changed.
        OptionError: There is no such target.
    """
    names, steps = _list_names(target), _STEPS.get(target or "", ())
    model = read_copy(source)
    inline_functions(model, source)
    apply_passes(model, source, Normalize())
    if StandardLayout()(model).modified and ChannelsLast not in steps:
        apply_passes(model, source, InferShapes(), MoveTransposes())
    if batch is None and names and _has_dynamic_batch(model):
        batch = 1
    if batch is not None:
        apply_passes(model, source, ChangeBatch(batch))
    simplify = Simplify(FoldConstants(operators=not (keep_quantizers or names)))
    apply_passes(model, source, simplify)
    if steps:
        apply_passes(model, source, *(step() for step in steps), simplify)
    apply_passes(model, source, RemoveUnusedOpsetsPass(), NameNodes(), Normalize(), InferShapes())
    remarks = run_pass(model, source, DynamicSizes()).remarks
    if target == "hls4ml":
        remarks += _prepare_for_cpp(model, source)
    if names:
        apply_passes(model, source, UseNames(names))
        _sort_constants(model.graph)
    return CleanResult(model, remarks)


def _prepare_for_cpp(model: ir.Model, source: Source) -> tuple[str, ...]:
    """Give each reader separate constants, and inputs, constants and nodes C++ names."""
    apply_passes(model, source, OwnConstants())
    return run_pass(model, source, Identifiers(is_usable)).remarks


def _sort_constants(graph: ir.Graph) -> None:
    """Sort constants by their first readers, whatever the order of the rewrites."""
    constants = graph.initializers
    read = [value for node in graph.all_nodes() for value in node.inputs if value is not None]
    used = [value for value in dict.fromkeys(read) if value.graph is graph]
    used = [value for value in used if value.is_initializer()]
    kept = [value for value in constants.values() if value not in set(used)]
    constants.clear()
    for value in (*used, *kept):
        graph.register_initializer(value)


def _has_dynamic_batch(model: ir.Model) -> bool:
    shapes = [value.shape for value in model.graph.inputs[:1]]
    return any(shape and not isinstance(shape[0], int) for shape in shapes)


def _list_names(target: str | None) -> frozenset[str]:
    if target is None:
        return frozenset()
    names = {name: rules.names for name, rules in TARGETS.items() if rules.names}
    if target not in names:
        raise OptionError(f"target must be one of {', '.join(names)}, got {target!r}")
    return names[target]
