# SPDX-License-Identifier: Apache-2.0
"""Inference of types and shapes from the inputs of a model."""

from contextlib import suppress

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.inference import infer_types
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.propagation import propagates_little
from anybit.onnx.graph.shapes import iter_declarable, merge_shapes, record_shape
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.multi_threshold import SPELLINGS
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.operators.schemas import register
from anybit.onnx.process import silence_onnx_logs
from anybit.onnx.quantizers.nodes import get_dtype

_MOST_AXES = 64
"""A file may claim any number of sizes."""


class InferShapes(InPlacePass):
    """ONNX's shape inference with the schemas of this package, on a normalized model.

    Shapes are inferred from inputs and initializers only. Inferred shapes replace declared ones;
    other declarations stay, marked as such (see `anybit.onnx.graph.shapes`). Large tensors are not
    passed on.
    """

    @silence_onnx_logs()
    def call(self, model: ir.Model) -> PassResult:
        with suppress(RuntimeError):  # onnx before 1.19 cannot do this
            register()
        values = list(iter_declarable(model))
        before = [(value.type, value.shape) for value in values]
        for value in values:
            value.shape = None
        _infer_remaining_types(model)
        while True:
            _infer(model)
            if not _infer_remaining_types(model):
                break
        for value, (_, declared) in zip(values, before, strict=True):
            record_shape(value, value.shape)
            value.shape = merge_shapes(value.shape, declared)
        after = [(value.type, value.shape) for value in values]
        return PassResult(model, before != after)


def _infer(model: ir.Model) -> None:
    imports = model.graph.opset_imports
    # ONNX requires an import of every domain; it skips operators of earlier versions.
    undeclared = {node.domain for node in iter_nodes(model.graph)} - imports.keys()
    imports.update(dict.fromkeys(undeclared, 0))
    try:
        infer_types(model, propagate=propagates_little(model), like_first=SPELLINGS)
    finally:
        for domain in undeclared:
            del imports[domain]


def _infer_remaining_types(model: ir.Model) -> bool:
    """Infer types of nodes at which ONNX's inference stops; return whether any was inferred.

    These are operators of this package in a file with two versions of one, which imports neither,
    and the rank of a Reshape to computed sizes.
    """
    typed = False
    for node in iter_nodes(model.graph):
        typed |= _infer_rank(node)
        like = _find_same_type_input(node)
        x = node.inputs[0] if node.inputs else None
        if like is None or x is None or len(node.outputs) != 1:
            continue
        result, dtype = node.outputs[0], get_dtype(like)
        if result.type is None and dtype is not None:
            result.type = ir.TensorType(dtype)
            typed = True
        if result.shape is None and x.shape is not None:
            result.shape = x.shape.copy()
    return typed


def _infer_rank(node: ir.Node) -> bool:
    """Infer the rank of a Reshape of unknown sizes; return whether it was unknown."""
    sizes = node.inputs[1] if is_onnx_op(node, "Reshape") and len(node.inputs) > 1 else None
    if sizes is None or sizes.shape is None or len(sizes.shape) != 1:
        return False
    rank, result = sizes.shape[0], node.outputs[0]
    if result.shape is not None or not isinstance(rank, int) or rank > _MOST_AXES:
        return False
    result.shape = ir.Shape([None] * rank)
    return True


def _find_same_type_input(node: ir.Node) -> ir.Value | None:
    """Return the input with the type of the output; None if ONNX infers it, and otherwise."""
    operator = find_operator(node)
    return None if operator is None or operator.result_dtype is not None else node.inputs[0]
