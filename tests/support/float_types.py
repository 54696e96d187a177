# SPDX-License-Identifier: Apache-2.0
"""Models in another type of floats."""

import onnx
from onnx import TensorProto, helper, numpy_helper


def change_float_type(proto: onnx.ModelProto, type: int) -> onnx.ModelProto:
    """Return the model in another float type."""
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(type))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = type
    return proto
