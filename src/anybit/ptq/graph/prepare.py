# SPDX-License-Identifier: Apache-2.0
"""Preparation of a float model for quantization."""

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.files.reader import Source as ModelSource
from anybit.onnx.files.reader import read_copy
from anybit.onnx.graph.constants import follows_from_constants
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.passes import (
    AskTypes,
    FixReshapes,
    FoldBatchNorm,
    FoldConstants,
    FuseLayerNorm,
    InferShapes,
    NameLayers,
    NameNodes,
    Normalize,
    Simplify,
    StandardLayout,
)
from anybit.onnx.preparation import apply_passes, inline_functions, name_errors_after
from anybit.onnx.quantizers.nodes import is_quantize
from anybit.ptq.graph.branches import separate_branches
from anybit.ptq.graph.precision import compute_in_float32
from anybit.ptq.graph.stored_weights import has_stored_weights, is_quantizer


def prepare(source: ModelSource, name: str) -> tuple[ir.Model, tuple[str, ...]]:
    """Return a normalized float32 copy of a model, and remarks on changes of its types.

    Local functions are inlined, constants folded, and batch normalization is folded into the
    weights of convolutions. The primitive operators of a layer normalization become one operator.
    Shapes and types are inferred.

    Args:
        source: The model.
        name: Its name in messages.

    Weights that are quantized already stay as they are, for `find_targets`.

    Raises:
        ModelError: The model cannot be read, has quantizers of activations, or computes in float64.
    """
    model = read_copy(source)
    inline_functions(model, source)
    # Files of old versions list constants among the inputs; as inputs they would not be folded.
    model.graph.inputs[:] = [value for value in model.graph.inputs if not value.is_initializer()]
    apply_passes(model, source, Normalize(), StandardLayout(), NameLayers())
    _check_float(model, name)
    with name_errors_after(source):
        remarks = compute_in_float32(model)
    fold = FoldConstants(operators=not has_stored_weights(model))
    apply_passes(model, source, Simplify(fold, FixReshapes()))
    apply_passes(model, source, FoldBatchNorm(), FuseLayerNorm(), NameNodes())
    separate_branches(model)
    *_, asked_types = apply_passes(model, source, Normalize(), InferShapes(), AskTypes())
    if asked_types.modified:
        apply_passes(model, source, InferShapes())
    return model, remarks


def _check_float(model: ir.Model, name: str) -> None:
    """Raise ModelError if a model has quantizers of values that it computes."""
    quantizers = [
        node
        for node in iter_nodes(model.graph)
        if (is_quantize(node) or is_quantizer(node) or is_multi_threshold(node))
        and not _reads_constant(node)
    ]
    if quantizers:
        raise ModelError(
            f"{name} has quantizers already ({quantizers[0].op_type}); quantize the float model "
            "from which it was made"
        )


def _reads_constant(node: ir.Node) -> bool:
    x = node.inputs[0] if node.inputs else None
    return x is not None and follows_from_constants(x)
