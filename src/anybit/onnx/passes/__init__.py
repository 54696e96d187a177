# SPDX-License-Identifier: Apache-2.0
"""One pass per file. A pass changes a model in place and names no operator."""

from anybit.onnx.passes.add_functions import AddFunctions
from anybit.onnx.passes.fold_constants import FoldConstants
from anybit.onnx.passes.infer_shapes import InferShapes
from anybit.onnx.passes.inline_functions import InlineFunctions
from anybit.onnx.passes.lower import Lower
from anybit.onnx.passes.normalize import Normalize
from anybit.onnx.passes.raise_opset import RaiseOpset
from anybit.onnx.passes.to_qdq import ToQdq

__all__ = [
    "AddFunctions",
    "FoldConstants",
    "InferShapes",
    "InlineFunctions",
    "Lower",
    "Normalize",
    "RaiseOpset",
    "ToQdq",
]
