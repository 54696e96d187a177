# SPDX-License-Identifier: Apache-2.0
"""Activations in `uint8 dynamic per-tensor` beside DynamicQuantizeLinear of ONNX.

Scales and zero-points are equal, codes are not. So conversions write explicit nodes.
"""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from dynamic_graphs import make_quantizer_graph
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from small_models import model_of_floats, node

import anybit
from anybit.ptq.specs.dynamic_grid import DynamicIntegerGrid
from anybit.ptq.specs.quantize import fit_dynamic_grid

GRID = DynamicIntegerGrid(range(256), asymmetric=True, axes=())
TIE = np.float32([-1, 0.5, 254])
LARGEST = np.finfo(np.float32).max


def make_onnx_quantizer() -> onnx.ModelProto:
    """Return a model of DynamicQuantizeLinear: codes, scale and zero-point."""
    names, types = (
        ("q", "scale", "zeropt"),
        (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8),
    )
    outputs = [
        helper.make_tensor_value_info(name, dtype, shape)
        for name, dtype, shape in zip(names, types, (["n"], [], []), strict=True)
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], names)]
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes, scale and zero-point of our activations."""
    with np.errstate(over="ignore"):
        grid = fit_dynamic_grid(x, GRID)
        scale, zeropt = np.float32(grid.scale), np.float32(grid.zeropt)
        codes = np.round(np.clip(x / scale + zeropt, np.float32(0), np.float32(255)))
    return codes, scale.reshape(()), zeropt.reshape(())


def draw_tensors(count: int, seed: int) -> list[np.ndarray]:
    """Return normal and shifted numbers of all magnitudes, with zeros, ties and subnormals."""
    rng = np.random.default_rng(seed)
    tensors = []
    for index in range(count):
        x = rng.normal(size=33) + rng.choice([0, 0, 1, -3])
        x = (x * 10.0 ** rng.uniform(-32, 37)).astype(np.float32)
        x[:3] = 0, 1e-41, -1e-41
        if index % 4 == 0:  # a scale of a power of two, codes and their midpoints
            x = rng.integers(-200, 310, 33).astype(np.float32) / 2
            x[:2] = x.max() - 255, x.max()
            x *= np.float32(2) ** np.float32(rng.integers(-100, 110))
        tensors.append(x)
    return tensors


def check_scales(count: int, seed: int) -> None:
    proto = make_onnx_quantizer()
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=providers)
    evaluator = ReferenceEvaluator(proto)
    for x in draw_tensors(count, seed):
        codes, scale, zeropt = quantize(x)
        for run in (session.run, evaluator.run):
            onnx_codes, onnx_scale, onnx_zeropt = run(None, {"x": x})
            np.testing.assert_array_equal(scale, onnx_scale, strict=True)
            np.testing.assert_array_equal(zeropt, onnx_zeropt)
            assert np.abs(codes - onnx_codes).max() <= 1


def test_dynamic_uint8_has_scales_and_zero_points_of_dynamic_quantize_linear() -> None:
    check_scales(300, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_dynamic_uint8_has_scales_of_dynamic_quantize_linear_in_more_tensors(seed: int) -> None:
    check_scales(5000, seed)


def test_dynamic_quantize_linear_has_other_codes_at_ties() -> None:
    """Test the counterexample of docs/deviations.md: the zero-point is added before rounding."""
    codes, scale, zeropt = quantize(TIE)
    assert (codes.tolist(), float(scale), float(zeropt)) == ([0, 2, 255], 1, 1)
    proto = make_onnx_quantizer()
    expected = anybit.load(proto).run(TIE)
    assert [expected[name].tolist() for name in expected] == [[0, 1, 255], 1, 1]
    evaluated = ReferenceEvaluator(proto).run(None, {"x": TIE})
    assert [np.asarray(y).tolist() for y in evaluated] == [[0, 1, 255], 1, 1]


@pytest.mark.parametrize("form", ["qdq", "standard", "portable"])
@pytest.mark.parametrize(
    "x",
    [
        TIE,
        [0, 0, -0.0],
        [1e-41, -1e-41, 0],
        [1e-38, 2e-38, -1e-38],
        [LARGEST, 1, -1],
        [LARGEST, -LARGEST, 1],
        [np.nan, 1, 2],
        [np.inf, 1, 2],
        [-np.inf, np.nan, 2],
    ],
    ids=["tie", "zeros", "subnormal", "tiny", "largest", "wide", "nan", "inf", "both"],
)
def test_convert_keeps_dynamic_uint8_with_explicit_nodes(form: str, x: list[float]) -> None:
    network = make_quantizer_graph(GRID, [None])
    converted = ir.to_proto(anybit.convert(network, to=form).model)
    assert "DynamicQuantizeLinear" not in {node.op_type for node in converted.graph.node}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(converted.SerializeToString(), options, providers)
    feed = np.float32(x)
    expected = anybit.load(network).run(feed)["y"]
    np.testing.assert_array_equal(session.run(None, {"x": feed})[0], expected)


def test_convert_writes_float_products_of_dynamic_uint8() -> None:
    """Exact sums of MatMulInteger are not the sums that a MatMul of floats rounds."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(64, 8)).astype(np.float32)
    floats = model_of_floats([node("MatMul", "x w", "y", domain="")], {"w": w}, ["n", 64], ["n", 8])
    quantized = anybit.quantize(floats, activations="uint8 dynamic per-tensor").model
    for form in ("qdq", "standard"):
        types = {node.op_type for node in anybit.convert(quantized, to=form).model.graph}
        assert "MatMul" in types
        assert not types & {"MatMulInteger", "DynamicQuantizeLinear"}
    x = rng.normal(size=(5, 64)).astype(np.float32)
    compiled = anybit.load(anybit.compile(quantized).model).run(x)["y"]
    assert (compiled != anybit.load(quantized).run(x)["y"]).any()
