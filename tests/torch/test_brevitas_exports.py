# SPDX-License-Identifier: Apache-2.0
"""Whatever Brevitas exports runs, and gives what PyTorch gave."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import anybit
from anybit import inspect
from anybit.model import load

torch = pytest.importorskip("torch", reason="Brevitas and PyTorch make these models")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("brevitas", reason="Brevitas makes these models")
    from brevitas import nn as qnn
    from brevitas.export import export_qonnx
    from brevitas.quant import Int32Bias, SignedBinaryActPerTensorConst
    from brevitas.quant import SignedBinaryWeightPerTensorConst as BinaryWeight
    from brevitas.quant.experimental.float_quant_ocp import (
        Fp8e4m3OCPActPerTensorFloat,
        Fp8e4m3OCPWeightPerTensorFloat,
    )

pytestmark = pytest.mark.filterwarnings("ignore")


def fully_connected() -> torch.nn.Module:
    return torch.nn.Sequential(
        qnn.QuantIdentity(bit_width=4),
        qnn.QuantLinear(16, 8, bias=True, weight_bit_width=3),
        qnn.QuantReLU(bit_width=4),
        qnn.QuantLinear(8, 4, bias=False, weight_bit_width=4),
    )


def convolutional() -> torch.nn.Module:
    return torch.nn.Sequential(
        qnn.QuantIdentity(bit_width=8),
        qnn.QuantConv2d(4, 8, 3, bias=False, weight_quant=BinaryWeight),
        torch.nn.BatchNorm2d(8),
        qnn.QuantIdentity(act_quant=SignedBinaryActPerTensorConst),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        qnn.QuantLinear(72, 4, bias=False, weight_quant=BinaryWeight),
    )


def depthwise() -> torch.nn.Module:
    weight = {"weight_bit_width": 4, "weight_scaling_per_output_channel": True}
    return torch.nn.Sequential(
        qnn.QuantIdentity(bit_width=4),
        qnn.QuantConv2d(
            4, 4, 3, groups=4, weight_bit_width=4, weight_scaling_per_output_channel=True
        ),
        qnn.QuantReLU(bit_width=4),
        qnn.QuantConv2d(4, 8, 1, **weight),
    )


def minifloat() -> torch.nn.Module:
    return torch.nn.Sequential(
        qnn.QuantIdentity(act_quant=Fp8e4m3OCPActPerTensorFloat),
        qnn.QuantLinear(16, 8, bias=True, weight_quant=Fp8e4m3OCPWeightPerTensorFloat),
    )


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = qnn.QuantIdentity(bit_width=4)
        self.conv = qnn.QuantConv2d(4, 4, 3, padding=1, weight_bit_width=4)
        self.after = qnn.QuantIdentity(bit_width=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return self.after(self.conv(x)) + x


class QuantizedBias(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quantize = qnn.QuantIdentity(bit_width=4, return_quant_tensor=True)
        self.linear = qnn.QuantLinear(16, 8, bias=True, weight_bit_width=4, bias_quant=Int32Bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.quantize(x))


class Pooling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quantize = qnn.QuantIdentity(bit_width=8, return_quant_tensor=True)
        self.pool = qnn.TruncAvgPool2d(4, bit_width=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.quantize(x)).value


NETWORKS = {
    "fully connected": (fully_connected, (1, 16), {"IntQuant"}),
    "convolutional": (convolutional, (1, 4, 8, 8), {"IntQuant", "BipolarQuant"}),
    "depthwise": (depthwise, (1, 4, 8, 8), {"IntQuant"}),
    "minifloat": (minifloat, (1, 16), {"FloatQuant"}),
    "quantized bias": (QuantizedBias, (1, 16), {"IntQuant"}),
    "residual": (Residual, (1, 4, 8, 8), {"IntQuant"}),
    "pooling": (Pooling, (1, 4, 8, 8), {"IntQuant", "Trunc"}),
}


@pytest.mark.parametrize("dynamo", [False, True], ids=["script", "dynamo"])
@pytest.mark.parametrize(("make", "shape", "operators"), NETWORKS.values(), ids=NETWORKS.keys())
def test_brevitas_exports_run_and_compile(
    make, shape, operators, dynamo: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        expected = network(x).numpy()
    path = tmp_path / "model.onnx"
    try:
        export_qonnx(network, x, export_path=str(path), dynamo=dynamo)
    except torch.onnx.OnnxExporterError as error:
        pytest.skip(f"Brevitas cannot export this: {type(error).__name__}")
    result = load(path).run(x.numpy())
    np.testing.assert_allclose(next(iter(result.values())), expected, rtol=0, atol=1e-6)
    assert {
        quantizer.operator for quantizer in inspect(path, layers=False).summary.quantizers
    } == operators
    compiled = anybit.compile(path)
    exact = compiled.run(x.numpy())
    for name, array in result.items():
        # Sums of products of any scales: float32 rounds them, integers do not.
        np.testing.assert_allclose(exact[name], array, rtol=0, atol=1e-6)
    assert all(layer.guarantee for layer in compiled.report.layers) == (
        "FloatQuant" not in operators
    )
