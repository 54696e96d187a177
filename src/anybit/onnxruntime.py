# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime with the operators of this package.

    session        an `onnxruntime.InferenceSession` for a model, ready to run
    register       the operators in `SessionOptions` of your own
    library_path   the native library, for any program that embeds ONNX Runtime 1.17 or newer

The library needs neither Python nor this package at run time. It holds every operator under all
names and domains that occur in files, for float32, float64, float16 and bfloat16 tensors, and runs
on the threads of the runtime. The runtime has two limits. If an attribute determines a type
(DynamicQuantize), ONNX Runtime 1.17 needs it declared in the file; newer versions need it for
tensors of unknown rank or rank 0. `session` declares it. Before 1.24 an optional input must be
omitted, not named "".
"""

from collections.abc import Sequence

import onnxruntime  # type: ignore[import-untyped]

from anybit.onnx import Source, prepare
from anybit.onnx.library import library_path, register
from anybit.onnx.runtime import Provider, make_session

__all__ = ["library_path", "register", "session"]


def session(
    model_or_path: Source,
    *,
    session_options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Provider] | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session for a model with operators of this package; constants are folded.

    By default it computes the graph as it is written, without graph optimization: see
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
    return make_session(prepare(model_or_path), session_options, providers)
