# SPDX-License-Identifier: Apache-2.0
"""From PyTorch to the compilers for hardware: one line each, nothing left to say, equal bits."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from clean_checks import clean

from anybit.model import load
from anybit.onnx.checks.checking import check

torch = pytest.importorskip("torch")
from anybit.torch import export, quantize_model  # noqa: E402

WANTED = {
    "weight": "int4 narrow power-of-two",
    "activation": "int4 power-of-two",
    "bias": "int16 accumulator",
}


def convolutional() -> torch.nn.Module:
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()),
        *(torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 4, 3, padding=1), torch.nn.ReLU()),
        *(torch.nn.Flatten(), torch.nn.Linear(36, 10)),
    )


def pooled() -> torch.nn.Module:
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3), torch.nn.ReLU()),
        *(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 10)),
    )


def dense() -> torch.nn.Module:
    return torch.nn.Sequential(
        *(torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh()),
        *(torch.nn.Linear(8, 8, bias=False), torch.nn.Tanh(), torch.nn.Linear(8, 4)),
    )


@pytest.mark.parametrize(
    ("make", "shape", "target"),
    [
        (convolutional, (3, 8, 8), "finn"),
        (convolutional, (3, 8, 8), "hls4ml"),
        (pooled, (3, 8, 8), "hls4ml"),
        (dense, (16,), "finn"),
        (dense, (16,), "hls4ml"),
    ],
)
def test_torch_export_to_compiler(
    make: type[torch.nn.Module], shape: tuple[int, ...], target: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = quantize_model(make(), WANTED)
    x = torch.randn(8, *shape)
    network(x)
    path = tmp_path / "network.onnx"
    export(network, x, path, verify=False)
    cleaned = ir.to_proto(clean(path, target=target))
    assert [item for item in check(cleaned, target) if item.severity == "error"] == []
    one, last = x[:1].numpy(), cleaned.graph.input[0].type.tensor_type.shape.dim
    images = one if last[-1].dim_value == shape[-1] else np.moveaxis(one, 1, -1)
    (expected,), (got,) = (load(file).run(rows).values()
                         for file, rows in ((path, one), (cleaned, images)))  # fmt: skip
    assert (got.shape, got.tobytes()) == (expected.shape, expected.tobytes())
    assert {entry.op_type for entry in cleaned.graph.node} <= {
        *("Quant", "IntQuant", "MatMul", "Add", "Mul", "Conv", "Relu", "MaxPool", "Tanh"),
        *("Reshape", "Flatten", *["Transpose", "GlobalAveragePool"] * (make is pooled)),
    }
