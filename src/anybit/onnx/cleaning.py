# SPDX-License-Identifier: Apache-2.0
"""A model with the same values and nothing else: one spelling, no leftovers, all shapes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from anybit.errors import OptionError
from anybit.onnx.checks.targets import TARGETS
from anybit.onnx.checks.targets.hls4ml_names import is_usable
from anybit.onnx.files.collection import seldom_collected
from anybit.onnx.files.quiet import quiet
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.files.writer import Result
from anybit.onnx.passes import (
    AbsorbTransposes,
    BatchNormToAffine,
    ChangeBatch,
    ChannelsLast,
    ExtractConvBias,
    FoldConstants,
    FreeSizes,
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
from anybit.onnx.preparation import apply, inline, reported

_Steps: TypeAlias = tuple[Callable[[], InPlacePass], ...]

_STEPS: Mapping[str, _Steps] = {
    "finn": (GemmToMatMul, ExtractConvBias, BatchNormToAffine),
    "hls4ml": (
        *(GemmToMatMul, JoinConvBias, BatchNormToAffine, MeanToPool, MeanToConv),
        *(ChannelsLast, MoveTransposes, InferShapes, AbsorbTransposes, OneScale, TrimConstants),
    ),
}
"""What the model is made of for each compiler, besides names and a fixed batch."""


@dataclass(frozen=True)
class Cleaned(Result):
    """The result of `clean`: a model, which can be saved and used as a source.

    Attributes:
        model: The model. `onnx_ir.to_proto` turns it into an `onnx.ModelProto`.
        remarks: What there is to know of it, one line each.
    """

    model: ir.Model = field(repr=False)
    remarks: tuple[str, ...] = ()


@quiet()
@seldom_collected()
def clean(
    source: Source,
    *,
    batch: int | str | None = None,
    keep_quantizers: bool = False,
    target: str | None = None,
) -> Cleaned:
    """The model with the same values, and nothing in it that does not help to compute them.

    * Operators under one name, with all attributes; no local functions; the lowest IR version.
    * Constants computed: quantized weights, scales, shapes.
    * No dead nodes, no identities, no unused constants and imports.
    * Every node has a name of its own, every value the type and shape that can be inferred; sizes
      that depend on the data are free. Inputs and outputs keep their names and their order.

    Every result is bit for bit what it was. Cleaning twice gives the same bytes.

    Args:
        source: As for `anybit.onnx.read`. It is not changed.
        batch: The number of rows that the model takes, or "dynamic" for any; see `ChangeBatch`.
        keep_quantizers: Leave quantizers of weights as they are, for compilers that want them.
        target: A compiler, "finn" or "hls4ml". Quantizers are kept, under the names that it looks
            for; a free batch becomes 1; Gemm becomes MatMul and Add, BatchNormalization Mul and
            Add where that gives the same bits. For finn, a bias of a convolution becomes an Add.
            For hls4ml, an Add of a constant becomes a bias, and a mean of 2^k values a
            convolution; convolutions and pooling have channels last, and so have inputs that they
            read; inputs, constants and nodes have names of C++, and each input of a node a
            constant of its own.

    Raises:
        ModelError: The model cannot be read, an operator refuses its parameters, or the batch
            cannot be changed.
        OptionError: There is no such target.
    """
    names, steps = _names_of(target), _STEPS.get(target or "", ())
    model = read_copy(source)
    inline(model, source)
    apply(model, source, Normalize())
    if StandardLayout()(model).modified and ChannelsLast not in steps:
        apply(model, source, InferShapes(), MoveTransposes())
    if batch is None and names and _has_free_batch(model):
        batch = 1
    if batch is not None:
        apply(model, source, ChangeBatch(batch))
    simplify = Simplify(FoldConstants(operators=not (keep_quantizers or names)))
    apply(model, source, simplify)
    if steps:
        apply(model, source, *(step() for step in steps), simplify)
    apply(model, source, RemoveUnusedOpsetsPass(), NameNodes(), Normalize(), InferShapes())
    remarks = reported(model, source, FreeSizes()).remarks
    if target == "hls4ml":
        remarks += _for_cpp(model, source)
    if names:
        apply(model, source, UseNames(names))
        _sort_constants(model.graph)
    return Cleaned(model, remarks)


def _for_cpp(model: ir.Model, source: Source) -> tuple[str, ...]:
    """Give each reader constants of its own, and inputs, constants and nodes names of C++."""
    apply(model, source, OwnConstants())
    return reported(model, source, Identifiers(is_usable)).remarks


def _sort_constants(graph: ir.Graph) -> None:
    """Constants in the order of their first readers, however many rewrites brought them there."""
    constants = graph.initializers
    read = [value for node in graph.all_nodes() for value in node.inputs if value is not None]
    wanted = [value for value in dict.fromkeys(read) if value.graph is graph]
    wanted = [value for value in wanted if value.is_initializer()]
    kept = [value for value in constants.values() if value not in set(wanted)]
    constants.clear()
    for value in (*wanted, *kept):
        graph.register_initializer(value)


def _has_free_batch(model: ir.Model) -> bool:
    shapes = [value.shape for value in model.graph.inputs[:1]]
    return any(shape and not isinstance(shape[0], int) for shape in shapes)


def _names_of(target: str | None) -> frozenset[str]:
    if target is None:
        return frozenset()
    names = {name: each.names for name, each in TARGETS.items() if each.names}
    if target not in names:
        raise OptionError(f"target must be one of {', '.join(names)}, got {target!r}")
    return names[target]
