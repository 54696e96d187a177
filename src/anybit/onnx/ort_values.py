# SPDX-License-Identifier: Apache-2.0
"""Arrays in ONNX Runtime's form, also of types that NumPy lacks."""

import ctypes
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]

from anybit.onnx.graph.constants import Array


def is_numpy_dtype(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is NumPy's own, not one of ml_dtypes, also after pickling."""
    return dtype.type.__module__ == np.__name__


def to_ort_value(array: Array) -> Any:
    """Return an array for the runtime, without a copy if it is contiguous."""
    array = np.asarray(array, order="C")  # not ascontiguousarray, which adds an axis to 0-d arrays
    if is_numpy_dtype(array.dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    dtype = ir.DataType.from_numpy(array.dtype)
    if not hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"):
        return _cast(array, dtype)
    if dtype.bitwidth < 8:
        return _pack(array, dtype)
    bits = array.view(f"u{array.dtype.itemsize}")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(dtype))


def _pack(array: Array, dtype: ir.DataType) -> Any:
    """Return an array of a type below 8 bits, several elements per byte."""
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), int(dtype))
    data = ir.Tensor(array).tobytes()
    ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def _cast(array: Array, dtype: ir.DataType) -> Any:
    """Return an array of 8- or 16-bit floats from a Cast.

    The binding before 1.20 does not accept such arrays.
    """
    x, y = (
        onnx.helper.make_tensor_value_info(name, int(kind), array.shape)
        for name, kind in (("x", ir.DataType.FLOAT), ("y", dtype))
    )
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=int(dtype), saturate=0)
    imports = [onnx.helper.make_opsetid("", 19)]
    graph = onnx.helper.make_graph([node], "cast", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    floats = onnxruntime.OrtValue.ortvalue_from_numpy(array.astype(np.float32))
    return session.run_with_ort_values(["y"], {"x": floats})[0]


def to_array(value: Any) -> Array:
    """Return the array of an output, also of types that the runtime cannot convert."""
    dtype = ir.DataType(value.element_type())
    if is_numpy_dtype(dtype.numpy()):
        return np.asarray(value.numpy())
    shape = value.shape()
    size = -(-int(np.prod(shape)) * dtype.bitwidth // 8)
    data = bytes((ctypes.c_char * size).from_address(value.data_ptr()))
    tensor = onnx.TensorProto(dims=shape, data_type=int(dtype), raw_data=data)
    return np.asarray(ir.TensorProtoTensor(tensor).numpy())
