# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime sessions on one thread, with inputs and outputs bound in place."""

import numpy as np
import onnx
import onnxruntime
from _measure import Call


def session(
    model: onnx.ModelProto, options: onnxruntime.SessionOptions | None = None
) -> onnxruntime.InferenceSession:
    """Create a session on one thread; `options` may have custom operators registered."""
    options = options or onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def bound_run(
    model: onnx.ModelProto, x: np.ndarray, options: onnxruntime.SessionOptions | None = None
) -> Call:
    """Return a run of the model that neither looks names up nor allocates its output."""
    runner = session(model, options)
    (source,), (target,) = runner.get_inputs(), runner.get_outputs()
    binding = runner.io_binding()
    binding.bind_ortvalue_input(source.name, onnxruntime.OrtValue.ortvalue_from_numpy(x))
    (y,) = runner.run(None, {source.name: x})
    binding.bind_ortvalue_output(target.name, onnxruntime.OrtValue.ortvalue_from_numpy(y))
    return lambda: runner.run_with_iobinding(binding)
