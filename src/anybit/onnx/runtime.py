# SPDX-License-Identifier: Apache-2.0
"""How sessions are set up so that they compute the graph that is written."""

import onnxruntime  # type: ignore[import-untyped]


def exact_session_options() -> onnxruntime.SessionOptions:
    """Options under which ONNX Runtime evaluates every node as it stands.

    No graph optimisation is on. From ENABLE_BASIC on, the runtime merges batch normalisation into
    the weights before it, so that other floats are quantized next: measured, 10 to 22 % of them
    in the small networks of the QONNX zoo, 69 % in a 1-bit CNN, 16 % in a 4-bit MobileNet. It
    also drops additions of 0, and ENABLE_EXTENDED and ENABLE_ALL reorder sums. A float that moves
    across a rounding boundary moves the quantized value by a step. Without optimisation, the zoo's
    networks with exact arithmetic equal QONNX's executor in every bit.

    The price is small, since constants have been folded before: 1 to 3 us per run of the small
    networks against ENABLE_BASIC, 1 to 3 % of the CNNs. ENABLE_ALL would run their convolutions
    1.2 to 2 times faster, in another memory layout; who prefers that passes options to
    `anybit.onnxruntime.session`.

    What the runtime would log it also raises, so it logs nothing.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return options
