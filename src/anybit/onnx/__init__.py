# SPDX-License-Identifier: Apache-2.0
"""Models in ONNX files: read them, bring them into one form, hand them to a runtime.

    read        a checked `onnx_ir.Model` from a path, bytes, a proto or a model
    prepare     the same, with every operator under its one name and constants folded
    save        a model to a file, wholly or not at all
    serialize   what a runtime takes: a small proto, and the large tensors beside it
    exact_session_options   how to set the runtime up so that it computes what is written
    register        schemas, so that the checker and shape inference of `onnx` know the operators
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
