# SPDX-License-Identifier: Apache-2.0
"""A quantized model records the sizes of its data, which `compile` proposes."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import anybit
from anybit.onnx.files.sample_shapes import SHAPES_KEY

SAMPLES = np.random.default_rng(0).normal(0, 1, (8, 3, 16, 24)).astype(np.float32)


def make_convolution(*sizes: int | str) -> onnx.ModelProto:
    """Return a convolution of an image of these sizes."""
    w = np.random.default_rng(1).normal(0, 1, (4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, None, None])],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def find_reason(model: ir.Model) -> str:
    (layer,) = anybit.compile(model).report.layers
    return str(layer.reason)


def test_compile_proposes_sizes_of_calibration_data() -> None:
    quantized = anybit.quantize(make_convolution("h", "w"), SAMPLES, effort="fast").model
    assert json.loads(quantized.metadata_props[SHAPES_KEY]) == {"x": [1, 3, 16, 24]}
    assert find_reason(quantized).endswith("give sizes such as --shape x=1,3,16,24")
    compiled = anybit.compile(quantized, shapes={"x": (1, 3, 16, 24)})
    assert compiled.report.coverage == "1 of 1 layer, 100 % of MACs"


def test_static_sizes_are_not_recorded() -> None:
    quantized = anybit.quantize(make_convolution(16, 24), SAMPLES, effort="fast").model
    assert SHAPES_KEY not in quantized.metadata_props


@pytest.mark.parametrize(
    "recorded",
    [
        *("", "[", "[" * 100_000, "3", '{"x": 3}', '{"x": [1, 3, 16]}', '{"x": [1, 4, 16, 24]}'),
        *('{"x": [1, 3, 0, 24]}', '{"x": [1, 3, 16, 1e9]}', '{"x": [1, 3, 16, 99999999999]}'),
        *('{"x": [true, 3, 16, 24]}', '{"y": [1, 3, 16, 24]}'),
    ],
)
def test_wrong_records_are_ignored(recorded: str) -> None:
    quantized = anybit.quantize(make_convolution("h", "w"), SAMPLES, effort="fast").model
    quantized.metadata_props[SHAPES_KEY] = recorded
    assert find_reason(quantized).endswith("give sizes such as --shape x=1,3,224,224")
