# SPDX-License-Identifier: Apache-2.0
"""Modules for training, exported: the file computes the same bits, in every form.

Scales are powers of two and codes have few bits, so that every sum is exact in any order: where
there is no other comment, all numbers are equal.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anybit
from anybit import inspect

torch = pytest.importorskip("torch", reason="PyTorch makes these models")

from anybit.torch import export, nn, quantize_model  # noqa: E402  needs torch

words = nn.quantizer


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_bits(path: Path, module: torch.nn.Module, *inputs: torch.Tensor) -> None:
    """Assert that the file computes the module's bits for other inputs, too."""
    with torch.no_grad():
        expected = module.eval()(*inputs)
    model = anybit.load(path)
    feeds = {value.name: x.numpy() for value, x in zip(model.inputs, inputs, strict=True)}
    (result,) = model.run(feeds).values()
    assert result.dtype == expected.numpy().dtype
    np.testing.assert_array_equal(result.view("u4"), expected.numpy().view("u4"))


QUANTIZERS: dict[str, Callable[[], torch.nn.Module]] = {
    "int": lambda: nn.IntQuantizer(4, signed=False, narrow=True, rounding_mode="FLOOR", scale=0.3),
    "int learned": lambda: words("int4 narrow"),
    "int per channel": lambda: nn.IntQuantizer(
        5, granularity="per-channel", axis=1, channels=3, scale=torch.tensor([0.1, 0.2, 0.3])
    ),
    "int with zero-point": lambda: nn.IntQuantizer(4, signed=False, zeropt=7, scale=0.1),
    "int ema": lambda: words("uint8 ema power-of-two"),
    "int absmax": lambda: words("int8 absmax"),
    "float8": lambda: nn.FloatQuantizer("float8_e4m3fn", scale=0.5),
    "float learned": lambda: nn.FloatQuantizer("float4_e2m1fn", power_of_two=True),
    "float of any widths": lambda: words("e3m2 ema"),
    "bipolar": lambda: nn.BipolarQuantizer(scale=0.7),
    "bipolar learned": lambda: nn.BipolarQuantizer(power_of_two=True),
    "trunc": lambda: nn.Trunc(8, 4, scale=2.0**-4),
    "trunc unsigned": lambda: nn.Trunc(
        8, 3, scale=2.0**-4, shift=2, signed=False, narrow=True, rounding_mode="HALF_UP"
    ),
}


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_export_of_a_quantizer_is_exact(kind: str, tmp_path: Path) -> None:
    module, path = QUANTIZERS[kind](), tmp_path / "model.onnx"
    module(random(4, 3, 50))  # where a scale has to be found
    result = export(module, random(4, 3, 50, seed=1), path)
    assert result.equal, str(result)
    assert module.training
    assert_bits(path, module, random(7, 3, 50, seed=2) * 3)
    if "absmax" not in kind:
        assert len(result.model.graph) == 1


def quantizers() -> dict[str, Any]:
    return {
        "weight_quantizer": words("int4 per-channel narrow absmax power-of-two"),
        "bias_quantizer": words("int16 accumulator"),
        "input_quantizer": words("int4 power-of-two ema"),
        "output_quantizer": words("uint8 power-of-two ema"),
    }


LAYERS: dict[str, tuple[Callable[..., torch.nn.Module], tuple[int, ...], str]] = {
    "linear": (lambda **q: nn.QuantLinear(6, 5, **q), (4, 6), "Gemm"),
    "linear of sequences": (lambda **q: nn.QuantLinear(6, 5, **q), (4, 7, 6), "MatMul"),
    "linear without bias": (lambda **q: nn.QuantLinear(6, 5, bias=False, **q), (4, 6), "Gemm"),
    "conv1d": (lambda **q: nn.QuantConv1d(4, 6, 3, groups=2, **q), (4, 4, 9), "Conv"),
    "conv2d": (lambda **q: nn.QuantConv2d(4, 6, 3, 2, 1, dilation=2, **q), (4, 4, 9, 8), "Conv"),
    "conv2d reflecting": (
        lambda **q: nn.QuantConv2d(4, 6, 3, padding=1, padding_mode="reflect", **q),
        (4, 4, 9, 8),
        "Conv",
    ),
    "transposed": (
        lambda **q: nn.QuantConvTranspose2d(4, 6, 3, 2, 1, 1, **q),
        (4, 4, 5, 6),
        "ConvTranspose",
    ),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_export_of_a_layer_is_exact(kind: str, tmp_path: Path) -> None:
    """Export all quantizers of a layer, where QONNX's tools look for them."""
    torch.manual_seed(0)
    make, shape, operator = LAYERS[kind]
    inputs = quantizers()
    if "without bias" in kind:
        del inputs["bias_quantizer"]
    layer, path = make(**inputs), tmp_path / "model.onnx"
    layer(random(*shape))
    result = export(layer, random(*shape, seed=1), path)
    assert result.equal, str(result)
    assert not result.findings
    nodes = {node.op_type: node for node in result.model.graph}
    assert operator in nodes
    roles = {quantizer.role for quantizer in inspect(path, layers=False).summary.quantizers}
    assert roles >= {"weight", "input"}
    weight = next(n for n in result.model.graph if n.name == "weight_quantizer.IntQuant")
    assert [value.name for value in weight.inputs] == [
        "weight",
        "weight_quantizer.scale",
        "weight_quantizer.zeropt",
        "weight_quantizer.bitwidth",
    ]
    assert_bits(path, layer, random(9, *shape[1:], seed=2))
    assert_bits(path, layer, random(1, *shape[1:], seed=3))


@pytest.mark.parametrize("kind", ["int2 narrow", "bipolar", "float8_e4m3fn", "e2m1", "int8"])
def test_export_of_weights_of_every_kind(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.QuantConv2d(
        3,
        4,
        3,
        bias=False,
        weight_quantizer=words(f"{kind} per-channel power-of-two"),
        input_quantizer=words("int4 power-of-two ema"),
    )
    path = tmp_path / "model.onnx"
    layer(random(4, 3, 6, 6))
    assert export(layer, random(4, 3, 6, 6, seed=1), path).equal
    assert_bits(path, layer, random(2, 3, 6, 6, seed=2))


class Residual(torch.nn.Module):
    """A network of standard parts: normalization, pooling, a sum of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.second = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.pool = torch.nn.MaxPool2d(2)
        self.mean = torch.nn.AvgPool2d(2)
        self.last = torch.nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.first(x))))
        x = self.mean(x + self.second(x).relu())
        return self.last(x.flatten(1))


SPEC = {
    "weight": "int4 per-channel narrow absmax power-of-two",
    "activation": "uint4 power-of-two",
    "bias": "int16 accumulator",
    "first/last": "int8 power-of-two",
    "skip": ["add"],
}


@pytest.fixture
def network() -> torch.nn.Module:
    """Return an initialized network; the parameters of its norm are powers of two."""
    torch.manual_seed(0)
    network = quantize_model(Residual(), SPEC)
    network(random(16, 1, 8, 8))
    network.norm.eps = 0.0
    with torch.no_grad():
        network.norm.running_mean.copy_(torch.tensor([0.5, 0.0, -0.25, 0.125]))
        network.norm.running_var.copy_(torch.tensor([0.25, 1.0, 4.0, 0.0625]))
        network.norm.weight.copy_(torch.tensor([1.0, 0.5, 2.0, 0.25]))
        network.norm.bias.copy_(torch.tensor([0.0, 0.5, -0.5, 1.0]))
    return network


def test_export_of_a_network_is_exact(network: torch.nn.Module, tmp_path: Path) -> None:
    """Compare all tensors between quantizers, and several batches."""
    path = tmp_path / "model.onnx"
    result = export(network, random(3, 1, 8, 8, seed=1), path)
    assert result.equal, str(result)
    assert len(result.quantized) >= 6
    kinds = [node.op_type for node in result.model.graph]
    assert set(kinds) == {
        *("IntQuant", "Conv", "BatchNormalization", "Relu", "MaxPool", "AveragePool"),
        *("Add", "Reshape", "Gemm"),
    }
    for batch in (1, 2, 5):
        assert_bits(path, network, random(batch, 1, 8, 8, seed=batch))


def test_export_names_follow_the_module(network: torch.nn.Module) -> None:
    graph = export(network, random(3, 1, 8, 8), verify=False).model.graph
    names = [node.name for node in graph]
    assert len(set(names)) == len(names)
    for expected in (
        *("first.input_quantizer.IntQuant", "first.weight_quantizer.IntQuant", "first.Conv"),
        *("norm.BatchNormalization", "pool.MaxPool", "last.Gemm", "Relu", "Relu_1", "Add"),
    ):
        assert expected in names
    stored = set(graph.initializers)
    assert {"first.weight", "norm.running_var", "last.bias"} <= stored
    assert {"second.weight_quantizer.scale", "second.weight_quantizer.bitwidth"} <= stored
    for node in graph:
        for value in node.outputs:
            assert value.name == node.name or value.is_graph_output()


@pytest.mark.parametrize("to", ["qdq", "standard", "portable"])
def test_export_converts_to_other_forms(to: str, network: torch.nn.Module, tmp_path: Path) -> None:
    """Compare other forms of the file."""
    path = tmp_path / "model.onnx"
    export(network, random(3, 1, 8, 8), path)
    conversion = anybit.convert(path, to=to)
    assert conversion.exact
    x = random(4, 1, 8, 8, seed=5)
    with torch.no_grad():
        expected = network.eval()(x).numpy()
    (result,) = anybit.load(conversion.model).run(x.numpy()).values()
    np.testing.assert_array_equal(result, expected)
    if to == "qdq":
        again = anybit.convert(conversion.model, to="qonnx")
        (result,) = anybit.load(again.model).run(x.numpy()).values()
        np.testing.assert_array_equal(result, expected)


def test_export_runs_in_qonnx(network: torch.nn.Module, tmp_path: Path) -> None:
    """QONNX's own executor agrees, tensor by tensor."""
    pytest.importorskip("qonnx", reason="it is the other side")
    path = tmp_path / "model.onnx"
    export(network, random(3, 1, 8, 8), path)
    result = anybit.diff(
        path, None, random(3, 1, 8, 8, seed=2).numpy(), runners=("anybit", "qonnx")
    )
    assert result.equal


def test_export_with_inexact_scales_differs_by_at_most_a_step(tmp_path: Path) -> None:
    """Products round there: quantized tensors may differ by a step, and the report says so."""
    torch.manual_seed(0)
    network = quantize_model(
        Residual(),
        {
            "weight": "int4 per-channel",
            "activation": "uint4",
            "first/last": "int8",
            "skip": ["add"],
        },
    )
    network(random(16, 1, 8, 8))
    result = export(network, random(64, 1, 8, 8, seed=1))
    assert result.steps is not None
    assert result.steps <= 1
    assert "products-round" in {finding.code for finding in result.findings}
    for tensor in result.quantized:
        assert tensor.name in str(result) or tensor.differing == 0


@pytest.mark.parametrize("wrap", [partial(torch.compile, backend="eager"), torch.nn.DataParallel])
def test_export_of_wrapped_modules(wrap: Any, network: torch.nn.Module) -> None:
    """Export the module inside of a compiled or replicated one."""
    result = export(wrap(network), random(3, 1, 8, 8))
    assert result.equal
    assert "first.weight" in result.model.graph.initializers


def test_export_refuses_uninitialized_scales() -> None:
    """Raise the error of an uninitialized quantizer."""
    with pytest.raises(RuntimeError, match="scale"):
        export(words("int4 ema"), random(3, 4))
