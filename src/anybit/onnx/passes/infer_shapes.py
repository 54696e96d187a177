# SPDX-License-Identifier: Apache-2.0
"""Give the values of a model the types and shapes that follow from its inputs."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import ShapeInferencePass

from anybit.onnx._quiet import quiet
from anybit.onnx._schemas import register


class InferShapes(InPlacePass):
    """ONNX's own inference, with the schemas of our operators. The model is normalised.

    What cannot be inferred stays as it is. Large tensors are not handed over.
    """

    @quiet()
    def call(self, model: ir.Model) -> PassResult:
        try:
            register()  # which onnx before 1.19 cannot do
            modified = ShapeInferencePass(strict_mode=False, data_prop=True)(model).modified
        except Exception:  # a contradiction in the model, which whoever runs it will name
            modified = False
        return PassResult(model, modified)
