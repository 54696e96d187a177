# SPDX-License-Identifier: Apache-2.0
"""Give the values of a model the types and shapes that follow from its inputs."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import ShapeInferencePass

from anybit.onnx.files.quiet import quiet
from anybit.onnx.operators.registry import operator_of
from anybit.onnx.operators.schemas import register
from anybit.onnx.qdq.nodes import dtype_of, is_dequantize, is_quantize


class InferShapes(InPlacePass):
    """ONNX's own inference, with the schemas of our operators. The model is normalised.

    What cannot be inferred stays as it is. Large tensors are not handed over.
    """

    @quiet()
    def call(self, model: ir.Model) -> PassResult:
        modified = _type_unknown(model)
        try:
            register()  # which onnx before 1.19 cannot do
            while True:
                modified |= _inferred(model)
                if not _type_unknown(model):
                    break
        except Exception:  # a contradiction in the model, which whoever runs it will name
            modified = False
        return PassResult(model, modified)


def _inferred(model: ir.Model) -> bool:
    imports = model.graph.opset_imports
    # ONNX asks for an import of every domain; before their first version it skips the operators.
    undeclared = {node.domain for node in model.graph.all_nodes()} - imports.keys()
    imports.update(dict.fromkeys(undeclared, 0))
    try:
        return bool(ShapeInferencePass(strict_mode=False, data_prop=True)(model).modified)
    finally:
        for domain in undeclared:
            del imports[domain]


def _type_unknown(model: ir.Model) -> bool:
    """Type what nodes give at which ONNX's inference stops, and tell whether that gave a type.

    They are the QuantizeLinear and DequantizeLinear of ONNX Runtime's own domain, and our operators
    in a file that has two versions of one, and so imports none.
    """
    typed = False
    for node in model.graph.all_nodes():
        like = _of_same_type(node)
        x = node.inputs[0] if node.inputs else None
        if like is None or x is None or len(node.outputs) != 1:
            continue
        result, dtype = node.outputs[0], dtype_of(like)
        if result.type is None and dtype is not None:
            result.type = ir.TensorType(dtype)
            typed = True
        if result.shape is None and x.shape is not None:
            result.shape = x.shape.copy()
    return typed


def _of_same_type(node: ir.Node) -> ir.Value | None:
    """The input whose type the result has; None for what ONNX's inference knows, and the rest."""
    operator = operator_of(node)
    if operator is not None:
        return node.inputs[0] if operator.result_dtype is None else None
    index = 1 if is_dequantize(node) else 2 if is_quantize(node) else None
    if index is None or index >= len(node.inputs) or node.domain == "":
        return None
    return node.inputs[index]
