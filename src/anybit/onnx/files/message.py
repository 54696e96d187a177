# SPDX-License-Identifier: Apache-2.0
"""Serialization for runtimes: one small message, and the large tensors besides."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array, load_tensor, read_array
from anybit.onnx.graph.walk import iter_initializers
from anybit.onnx.process import silence_onnx_logs

# Smaller tensors stay in the message, where every optimization of a runtime sees them.
_LARGE = 64 * 1024


@silence_onnx_logs()
def serialize(model: ir.Model, *, spare: bool = False) -> tuple[bytes, dict[str, Array]]:
    """Return the bytes of a model without its large initializers, and those by name.

    In the message they are external data without a file; a session takes them with
    `SessionOptions.add_external_initializers`. Memory-mapped tensors are not copied, and models may
    exceed the 2 GiB limit of one message. The model is not changed, except with `spare`.

    Raises:
        ModelError: The remaining message exceeds 2 GiB.
    """
    slimmer = any(map(_is_outside, iter_initializers(model)))
    slim = model.clone() if slimmer and not spare else model
    large: dict[str, Array] = {}
    for name, value in slim.graph.initializers.items() if slimmer else ():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.nbytes < _LARGE or not _is_plain(tensor.dtype):
            value.const_value = load_tensor(tensor)
            continue
        large[name] = np.ascontiguousarray(read_array(value))
        value.const_value = ir.ExternalTensor(
            "external", None, None, tensor.dtype, shape=ir.Shape(large[name].shape), name=name
        )
    try:
        return ir.to_proto(slim).SerializeToString(), large
    except ValueError as error:
        raise ModelError(f"the model is too large to hand over: {error}") from error


@silence_onnx_logs()
def deserialize(message: bytes, tensors: Mapping[str, Array]) -> ir.Model:
    """Return the model that `serialize` was called with, from its message and tensors."""
    model = ir.from_proto(onnx.load_model_from_string(message))
    for name, array in tensors.items():
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return model


def _is_outside(value: ir.Value) -> bool:
    """Return whether a tensor cannot stay in the message as it is."""
    tensor = value.const_value
    return tensor is not None and (isinstance(tensor, ir.ExternalTensor) or tensor.nbytes >= _LARGE)


def _is_plain(dtype: ir.DataType) -> bool:
    """Return whether NumPy itself, and so every version of the runtime, has the type."""
    return dtype != ir.DataType.STRING and dtype.numpy().isbuiltin == 1
