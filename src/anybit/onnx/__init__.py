# SPDX-License-Identifier: Apache-2.0
"""ONNX models: reading, normalization, and running.

    read        a checked `onnx_ir.Model` from a path, bytes, a proto or a model
    prepare     the same, with operators under canonical names and constants folded
    save        a model to a file, atomically
    serialize   a small proto for a runtime, and the large tensors besides
    exact_session_options   options with which a runtime computes exactly the graph
    register        schemas for the checker and the shape inference of `onnx`
    reference_ops   the operators for `onnx.reference.ReferenceEvaluator`

Nothing here names an operator: the passes loop over `anybit.ops.OPERATORS`.
"""

from anybit.onnx.files.message import serialize
from anybit.onnx.files.reader import Source, read
from anybit.onnx.files.writer import save
from anybit.onnx.operators.reference_ops import reference_ops
from anybit.onnx.operators.schemas import register
from anybit.onnx.preparation import prepare
from anybit.onnx.runtime import exact_session_options

__all__ = [
    "Source",
    "exact_session_options",
    "prepare",
    "read",
    "reference_ops",
    "register",
    "save",
    "serialize",
]
