# SPDX-License-Identifier: Apache-2.0
"""Tests of hls4ml: models cleaned for it convert, and its C++ computes the same numbers."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("hls4ml", reason="hls4ml converts these models")
    torch = pytest.importorskip("torch", reason="PyTorch makes these models")
    pytest.importorskip("brevitas", reason="Brevitas makes these models")
    import brevitas.nn as qnn
    from brevitas.export import export_qonnx
    from brevitas.quant import Int16Bias
    from brevitas.quant.fixed_point import (
        Int8ActPerTensorFixedPoint,
        Int8WeightPerTensorFixedPoint,
        Uint8ActPerTensorFixedPoint,
    )
    from hls4ml_emulation import run_both
    from places import MODELS, needs_models

    import anybit
    from anybit.torch import export, quantize_model

pytestmark = pytest.mark.filterwarnings("ignore")

DOMAIN = "qonnx.custom_op.general"
INPUT = {"act_quant": Int8ActPerTensorFixedPoint, "bit_width": 6, "return_quant_tensor": True}
RELU = {"act_quant": Uint8ActPerTensorFixedPoint, "bit_width": 4, "return_quant_tensor": True}
WEIGHT = {
    "weight_quant": Int8WeightPerTensorFixedPoint,
    "weight_bit_width": 4,
    "return_quant_tensor": True,
}
BIASED = {**WEIGHT, "bias": True, "bias_quant": Int16Bias}
WORDS = {
    "weight": "int4 narrow power-of-two",
    "activation": "int4 power-of-two",
    "bias": "int16 accumulator",
}


def brevitas_mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        qnn.QuantIdentity(**INPUT),
        *(qnn.QuantLinear(16, 8, **BIASED), qnn.QuantReLU(**RELU)),
        qnn.QuantLinear(8, 4, **BIASED),
    )


def brevitas_cnn() -> torch.nn.Module:
    return torch.nn.Sequential(
        qnn.QuantIdentity(**INPUT),
        *(qnn.QuantConv2d(2, 4, 3, **BIASED), qnn.QuantReLU(**RELU), torch.nn.MaxPool2d(2)),
        *(qnn.QuantConv2d(4, 3, 3, padding=1, **BIASED), qnn.QuantReLU(**RELU)),
        *(torch.nn.Flatten(), qnn.QuantLinear(12, 4, **BIASED)),
    )


def torch_mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        *(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)),
    )


def torch_cnn() -> torch.nn.Module:
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(4, 3, 1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)),
        *(torch.nn.Flatten(), torch.nn.Linear(3, 4)),
    )


def export_brevitas(network: torch.nn.Module, x: torch.Tensor, path: Path) -> None:
    network.train()
    for _ in range(3):
        network(x)
    network.eval()
    names = {"input_names": ["input"], "output_names": ["output"]}
    export_qonnx(network, x[:1], export_path=str(path), **names)


def export_torch(network: torch.nn.Module, x: torch.Tensor, path: Path) -> None:
    quantized = quantize_model(network, WORDS)
    quantized(x)
    export(quantized, x, path, verify=False)


@pytest.mark.parametrize(
    ("make", "shape", "write"),
    [
        (brevitas_mlp, (16,), export_brevitas),
        (brevitas_cnn, (2, 6, 6), export_brevitas),
        (torch_mlp, (16,), export_torch),
        (torch_cnn, (2, 6, 6), export_torch),
    ],
)
def test_hls4ml_matches_trained_models(
    make: Callable[[], torch.nn.Module],
    shape: tuple[int, ...],
    write: Callable[[torch.nn.Module, torch.Tensor, Path], None],
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    write(make(), torch.randn(16, *shape), tmp_path / "exported.onnx")
    expected, got, findings = run_both(tmp_path / "exported.onnx", tmp_path)
    assert findings == []
    assert len(np.unique(expected)) > 50
    np.testing.assert_array_equal(got, expected)


@needs_models
def test_hls4ml_matches_logits_of_qkeras_model(tmp_path: Path) -> None:
    proto = onnx.load(MODELS / "qkeras_jettagging.onnx")
    softmax = proto.graph.node.pop()
    assert softmax.op_type == "Softmax"
    proto.graph.output[0].name = softmax.input[0]
    onnx.save(proto, tmp_path / "logits.onnx")
    expected, got, findings = run_both(tmp_path / "logits.onnx", tmp_path)
    assert findings == []
    np.testing.assert_array_equal(got, expected)


def float_cnn() -> onnx.ModelProto:
    """Return a float network whose input has a name that hls4ml reserves."""
    random = np.random.default_rng(0)
    shapes = {"w1": (4, 2, 3, 3), "b1": (4,), "w2": (3, 4, 2, 2), "g": (5, 12), "c": (5,)}
    constants = [
        numpy_helper.from_array(random.normal(size=shape).astype(np.float32) / 3, name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["input", "w1", "b1"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w2"], ["d"], "second"),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "g", "c"], ["y"], "head", transB=1),
    ]
    x = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 2, 6, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])
    graph = helper.make_graph(nodes, "float", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_hls4ml_matches_model_quantized_for_it(tmp_path: Path) -> None:
    data = np.random.default_rng(1).normal(size=(64, 2, 6, 6)).astype(np.float32)
    quantized = anybit.quantize(float_cnn(), data, weights="int4", target="hls4ml")
    quantized.save(tmp_path / "quantized.onnx")
    expected, got, findings = run_both(tmp_path / "quantized.onnx", tmp_path)
    assert findings == []
    np.testing.assert_array_equal(got, expected)


def quantized_product(bias: np.ndarray | None, scale: float) -> onnx.ModelProto:
    """Return a quantizer, a MatMul with quantized weights, and an optional float bias."""
    random = np.random.default_rng(2)
    constants = {"s": scale, "half": 0.5, "zero": 0.0, "six": 6.0, "w": random.normal(size=(8, 4))}
    nodes = [
        helper.make_node("IntQuant", ["x", "s", "zero", "six"], ["q"], "act", domain=DOMAIN),
        helper.make_node("IntQuant", ["w", "half", "zero", "six"], ["v"], "weight", domain=DOMAIN),
        helper.make_node("MatMul", ["q", "v"], ["y" if bias is None else "m"], "product"),
    ]
    if bias is not None:
        constants["offset"] = bias
        nodes.append(helper.make_node("Add", ["m", "offset"], ["y"], "bias"))
    stored = [numpy_helper.from_array(np.float32(value), key) for key, value in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "product", [x], [y], stored)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("proto", "code"),
    [
        (quantized_product(None, 0.3), "scale"),
        (quantized_product(np.full(4, 2.0**-12), 0.25), "float-constant"),
    ],
)
def test_hls4ml_rounding_is_reported(proto: onnx.ModelProto, code: str, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "product.onnx")
    expected, got, findings = run_both(tmp_path / "product.onnx", tmp_path)
    assert code in {finding.code for finding in findings}
    assert (got != expected).any()


def test_hls4ml_rounds_inputs_to_its_input_type(tmp_path: Path) -> None:
    """Use the default input type fixed<16,6>: steps of 2^-10, truncated."""
    onnx.save(quantized_product(None, 0.25), tmp_path / "product.onnx")
    x = np.full((1, 8), 0.125 + 2.0**-12, np.float32)
    expected, got, findings = run_both(tmp_path / "product.onnx", tmp_path, x)
    assert findings == []
    assert (got != expected).any()
