# SPDX-License-Identifier: Apache-2.0
"""Give the values of a model the types and shapes that follow from its inputs."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import ShapeInferencePass

from anybit.onnx._quiet import quiet
from anybit.onnx._schemas import register
from anybit.onnx.qdq.linear import dtype_of, is_dequantize, is_quantize


class InferShapes(InPlacePass):
    """ONNX's own inference, with the schemas of our operators. The model is normalised.

    What cannot be inferred stays as it is. Large tensors are not handed over.
    """

    @quiet()
    def call(self, model: ir.Model) -> PassResult:
        _type_foreign(model)
        try:
            register()  # which onnx before 1.19 cannot do
            modified = ShapeInferencePass(strict_mode=False, data_prop=True)(model).modified
        except Exception:  # a contradiction in the model, which whoever runs it will name
            modified = False
        return PassResult(model, modified)


def _type_foreign(model: ir.Model) -> None:
    """Type what ONNX Runtime's own QuantizeLinear and DequantizeLinear give.

    ONNX's inference does not know them, and stops there.
    """
    for node in model.graph.all_nodes():
        index = 1 if is_dequantize(node) else 2 if is_quantize(node) else None
        if node.domain == "" or index is None or index >= len(node.inputs):
            continue
        x, like, result = node.inputs[0], node.inputs[index], node.outputs[0]
        dtype = None if like is None else dtype_of(like)
        if result.type is None and dtype is not None:
            result.type = ir.TensorType(dtype)
        if result.shape is None and x is not None and x.shape is not None:
            result.shape = x.shape.copy()
