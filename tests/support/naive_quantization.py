# SPDX-License-Identifier: Apache-2.0
"""Quantization by the whole range of everything that is multiplied, written down without our code.

Weights have 8 bits and a scale per channel, activations 8 bits and a zero-point.
"""

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from small_models import DOMAIN

_DENSE = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_RECURRENT = ("LSTM", "GRU", "RNN")


def quantize_naively(proto: onnx.ModelProto, x: np.ndarray) -> onnx.ModelProto:
    """Insert quantizers whose ranges are those of the tensors for x."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    values = {"x": x, **_values(proto, x)}
    nodes: list[onnx.NodeProto] = []
    quantized: dict[str, str] = {}
    for node in proto.graph.node:
        count = 2 if node.op_type in _DENSE else 3 if node.op_type in _RECURRENT else 0
        for index in range(count if node.domain == "" else 0):
            name = node.input[index]
            if name in constants:
                axes = _channels(node, index, constants[name].ndim)
                parameters = _of_weight(constants[name], axes)
            else:
                parameters = _of_activation(values[name])
            if name not in quantized:
                quantized[name] = f"{name}_naive"
                names = [f"{name}_naive_{suffix}" for suffix in ("scale", "zero", "bits")]
                for parameter, array in zip(names, (*parameters[:2], 8), strict=True):
                    tensor = numpy_helper.from_array(np.asarray(array, np.float32), parameter)
                    proto.graph.initializer.append(tensor)
                nodes.append(
                    helper.make_node(
                        *("Quant", [name, *names], [quantized[name]], quantized[name]),
                        domain=DOMAIN,
                        signed=parameters[2],
                        narrow=parameters[2],
                        rounding_mode="ROUND",
                    )
                )
            node.input[index] = quantized[name]
        nodes.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return proto


def _values(proto: onnx.ModelProto, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return every tensor that the model computes."""
    every = onnx.ModelProto.FromString(proto.SerializeToString())
    names = [name for node in every.graph.node for name in node.output]
    del every.graph.output[:]
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(every.SerializeToString(), options)
    return dict(zip(names, session.run(None, {"x": x}), strict=True))


def _channels(node: onnx.NodeProto, index: int, rank: int) -> tuple[int, ...]:
    if node.op_type in _RECURRENT:
        return (0, 1)
    if node.op_type == "MatMul":
        return (rank - 1 if index == 1 else rank - 2,)
    if node.op_type == "Gemm":
        turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        return (0 if turned else 1,)
    return (0 if node.op_type == "Conv" else 1,)


def _of_weight(array: np.ndarray, channels: tuple[int, ...]) -> tuple[np.ndarray, float, int]:
    others = tuple(axis for axis in range(array.ndim) if axis not in channels)
    reach = np.abs(array).max(axis=others, keepdims=True)
    return np.where(reach > 0, reach, 1) / 127, 0.0, 1


def _of_activation(array: np.ndarray) -> tuple[float, float, int]:
    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    return scale, float(np.rint(-low / scale)), 0
