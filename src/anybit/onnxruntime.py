# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime with the operators of this package.

    session        an `onnxruntime.InferenceSession` for a model, ready to run
    register       the operators in `SessionOptions` of your own
    library_path   the library behind it, for any program that embeds ONNX Runtime 1.17 or newer

The library needs neither Python nor this package at run time. It holds every operator under all
names and domains found in files, for float32, float64, float16 and bfloat16 tensors, and works on
the threads of the runtime. Two limits come from the runtime: where a type follows from an
attribute (DynamicQuantize), the file must declare it if the runtime is 1.17 or the rank of the
tensor is unknown or 0, which `session` sees to; and before 1.24 an optional input is left out, not
given the name "".
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime  # type: ignore[import-untyped]

from anybit._native import _core
from anybit.onnx import Source, exact_session_options, prepare, serialize

# Results must not depend on how a graph is optimised. Fused quantized operators of the runtime
# round differently from the nodes that they replace (ONNX Runtime issue 32132). Where a caller
# allows them, MatMulNBits still quantizes x to 8 bits unless it is told to compute in float32 (1).
_EXACT = {
    "session.disable_quant_qdq": "1",
    "session.qdq_matmulnbits_accuracy_level": "1",
}

# Protobuf's limit of 2 GiB, less what the tensors' names and shapes take.
_LARGEST_MESSAGE = 2**31 - 2**24


def library_path() -> str:
    """The file to give to `register_custom_ops_library` of any language's ONNX Runtime."""
    folder = Path(_core.__file__).parent
    for suffix in (".so", ".dylib", ".dll"):
        path = folder / f"anybit_onnxruntime{suffix}"
        if path.exists():
            return str(path)
    raise FileNotFoundError(f"no anybit_onnxruntime library in {folder}; reinstall anybit")


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Add the operators to session options. Doing it again changes nothing."""
    session_options.register_custom_ops_library(library_path())


def session(
    model_or_path: Source,
    *,
    session_options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
) -> onnxruntime.InferenceSession:
    """A session for any model with operators of this package, constant weights quantized already.

    By default it computes the graph as it is written, without graph optimisation: see
    `anybit.onnx.exact_session_options` for what that costs and saves.

    Args:
        model_or_path: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        session_options: Options of your own instead. The operators are registered in them, and
            `session.disable_quant_qdq` is set to 1 unless it has a value: the runtime's fused
            integer operators are faster, but off by one step on ties. So is
            `session.qdq_matmulnbits_accuracy_level`: without it a product of floats with 2- to
            8-bit weights quantizes the floats, too.
        providers: Execution providers; the CPU's by default, the only one with exact operators.

    Raises:
        ModelError: The model cannot be read, or an operator refuses its constant inputs.
        Exception: Whatever ONNX Runtime raises for the model.
    """
    options = exact_session_options() if session_options is None else session_options
    register(options)
    for key, value in _EXACT.items():
        if not _has_entry(options, key):
            options.add_session_config_entry(key, value)
    message, tensors = serialize(prepare(model_or_path))
    if session_options is not None:
        message, tensors = _embedded(message, tensors)
    attach(tensors, options)
    return onnxruntime.InferenceSession(
        message,
        options,
        providers=["CPUExecutionProvider"] if providers is None else providers,
        enable_fallback=0,  # a failing provider is an error, not a banner and another provider
    )


def attach(tensors: Mapping[str, npt.NDArray[Any]], options: onnxruntime.SessionOptions) -> None:
    """Give tensors that `anybit.onnx.serialize` left out of a message to the options with it."""
    if tensors:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in tensors.values()]
        options.add_external_initializers(list(tensors), values)


def reason(error: Exception) -> str:
    """The runtime's message without its codes, source positions and C++ signatures."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    text = re.sub(r"/\S+\.(?:cc|h|cpp):\d+ .*?\)(?: const)? (?=[A-Z'])", "", text, flags=re.DOTALL)
    return text.removeprefix("Exception during initialization: ")


def _has_entry(options: onnxruntime.SessionOptions, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:
        return False
    return True


def _embedded(
    message: bytes, tensors: dict[str, npt.NDArray[np.generic]]
) -> tuple[bytes, dict[str, npt.NDArray[np.generic]]]:
    """The model with its tensors inside, as far as one message can hold them.

    Options that carry a model's tensors fail with every other model, so the options of a caller,
    who may use them again, get none if that can be avoided.
    """
    if len(message) + sum(array.nbytes for array in tensors.values()) > _LARGEST_MESSAGE:
        return message, tensors
    proto = onnx.load_model_from_string(message)
    for initializer in proto.graph.initializer:
        array = tensors.get(initializer.name)
        if array is not None:
            initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return proto.SerializeToString(), {}
