# SPDX-License-Identifier: Apache-2.0
"""Sessions compute QuantizeLinear and DequantizeLinear as written, with every optimization on."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from ort_backend import model

import anybit.onnxruntime

F32 = np.float32


@pytest.mark.parametrize("entries", [{}, {"session.disable_quant_qdq": "0"}], ids=["ours", "fused"])
@pytest.mark.parametrize("block", [0, 16])
def test_onnxruntime_products_with_narrow_weights_are_those_of_floats(
    entries: dict[str, str], block: int
) -> None:
    """Avoid MatMulNBits, which quantizes x to 8 bits; powers of two make sums exact."""
    random = np.random.default_rng(0)
    x = random.integers(-1000, 1000, (5, 64)).astype(F32) / 8
    codes = random.integers(-8, 8, (64, 32))
    scale = F32(2.0 ** random.integers(-3, 4, (64 // block, 32) if block else 32))
    layout = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["w"], **layout),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    proto = onnx.load_model_from_string(
        model(nodes, {"x": (F32, [5, 64])}, {"y": (F32, [5, 32])}, {"scale": scale})
    )
    for name, values in (("codes", codes), ("zero", np.zeros(scale.shape, int))):
        tensor = helper.make_tensor(name, onnx.TensorProto.INT4, values.shape, values.ravel())
        proto.graph.initializer.append(tensor)
    proto.opset_import[0].version, proto.ir_version = 21, 10
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    (y,) = anybit.onnxruntime.session(proto, session_options=options).run(None, {"x": x})
    weights = codes * (np.repeat(scale, block, 0) if block else scale)
    np.testing.assert_array_equal(y, x.astype(np.float64) @ weights)
