# SPDX-License-Identifier: Apache-2.0
"""The table of public names of `anybit.onnx`; see `anybit._public`."""

from anybit._lazy import PublicName

PUBLIC = {
    "read": PublicName(
        "anybit.onnx.files.reader", "Functions", "Read and check a model, as an `onnx_ir.Model`."
    ),
    "prepare": PublicName(
        "anybit.onnx.preparation",
        "Functions",
        "Read a model, normalize operators and fold constants.",
        "models.md#what-is-done-to-a-model-before-it-runs",
    ),
    "save": PublicName("anybit.onnx.files.writer", "Functions", "Write a model."),
    "serialize": PublicName(
        "anybit.onnx.files.message",
        "Functions",
        "Return a small message for a runtime, and the large tensors beside it.",
    ),
    "exact_session_options": PublicName(
        "anybit.onnx.runtime",
        "Functions",
        "Return options of ONNX Runtime that compute the graph as it is written.",
    ),
    "register": PublicName(
        "anybit.onnx.operators.schemas",
        "Functions",
        "Register schemas for the checker and shape inference of `onnx`.",
        "schemas.md",
    ),
    "reference_ops": PublicName(
        "anybit.onnx.operators.reference_ops",
        "Functions",
        "Return the operators for `onnx.reference.ReferenceEvaluator`.",
    ),
    "Source": PublicName(
        "anybit.onnx.files.reader", "Types", "Anything that holds a model: a path, bytes, ..."
    ),
}
