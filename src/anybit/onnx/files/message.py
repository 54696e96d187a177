# SPDX-License-Identifier: Apache-2.0
"""A model as a runtime takes it: one small message, and the large tensors beside it."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array, array_of, in_memory
from anybit.onnx.graph.walk import initializers_in
from anybit.onnx.process import silence_onnx_logs

# Below this a tensor travels in the message, where every optimization of a runtime sees it.
_LARGE = 64 * 1024


@silence_onnx_logs()
def serialize(model: ir.Model, *, spare: bool = False) -> tuple[bytes, dict[str, Array]]:
    """The bytes of the model without its large initializers, and those initializers by name.

    In the bytes they are external data of no file; a session takes them with
    `SessionOptions.add_external_initializers`. Memory-mapped tensors stay so: nothing is copied,
    and models beyond the 2 GiB that one message can hold work. The model is not changed, unless
    it is a copy to spare.

    Raises:
        ModelError: What is left is still more than one message can hold.
    """
    slimmer = any(map(_is_elsewhere, initializers_in(model)))
    slim = model.clone() if slimmer and not spare else model
    large: dict[str, Array] = {}
    for name, value in slim.graph.initializers.items() if slimmer else ():
        tensor = value.const_value
        if tensor is None:
            continue
        if tensor.nbytes < _LARGE or not _is_plain(tensor.dtype):
            value.const_value = in_memory(tensor)
            continue
        large[name] = np.ascontiguousarray(array_of(value))
        value.const_value = ir.ExternalTensor(
            "beside", None, None, tensor.dtype, shape=ir.Shape(large[name].shape), name=name
        )
    try:
        return ir.to_proto(slim).SerializeToString(), large
    except ValueError as error:
        raise ModelError(f"the model is too large to hand over: {error}") from error


@silence_onnx_logs()
def restored(message: bytes, tensors: Mapping[str, Array]) -> ir.Model:
    """The model of which `serialize` made a message, and tensors beside it."""
    model = ir.from_proto(onnx.load_model_from_string(message))
    for name, array in tensors.items():
        model.graph.initializers[name].const_value = ir.tensor(array, name=name)
    return model


def _is_elsewhere(value: ir.Value) -> bool:
    """Whether its tensor cannot stand in the message as it is."""
    tensor = value.const_value
    return tensor is not None and (isinstance(tensor, ir.ExternalTensor) or tensor.nbytes >= _LARGE)


def _is_plain(dtype: ir.DataType) -> bool:
    """Whether NumPy itself, and so every version of the runtime, has the type."""
    return dtype != ir.DataType.STRING and dtype.numpy().isbuiltin == 1
