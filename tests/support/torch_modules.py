# SPDX-License-Identifier: Apache-2.0
"""Modules, tensors and comparisons for the tests of PyTorch."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import anybit.torch as ours


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> Any:
        return self.function(x, *others)


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    """Return normally distributed numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sqnr(expected: torch.Tensor, result: torch.Tensor) -> float:
    """Return the signal to quantization noise ratio in dB."""
    noise = (expected - result).detach().double().square().sum()
    return float(10 * torch.log10(expected.detach().double().square().sum() / noise))


def copy_with_quantized_weights(layer: Any, floats: Any) -> Any:
    """Return a copy of a float layer with the quantized weights of a layer."""
    floats = copy.deepcopy(floats)
    with torch.no_grad():
        for path, part in layer.named_modules():
            if hasattr(part, "quantized_parameters"):
                for name, weight, quantizer in part.quantized_parameters():
                    getattr(floats.get_submodule(path), name).copy_(quantizer(weight))
    return floats


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Multiples of 1/16, ties of most grids among them."""
    made = torch.Generator().manual_seed(0)
    return (torch.randint(-150, 150, shape, generator=made) / 16).to(dtype)


def bits(array: Any) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def check_file(path: Path) -> onnx.ModelProto:
    """Check a file with onnx and the schemas of our operators."""
    from anybit.onnx import register

    register()
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True, check_custom_domain=True)
    return model


class Scaled(torch.nn.Module):
    """A quantizer whose scale takes some computing."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([-3.3, 0.1, 2.2]))
        self.register_buffer("smallest", torch.tensor(0.01))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.nn.functional.softplus(self.scale).clamp(min=self.smallest).exp()
        return ours.int_quant(x, scale / scale.std(), 0, 4)


class Weighted(torch.nn.Module):
    """A quantized weight with its scale from the weight, and the scale itself quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)
        self.quantizer = Scaled()
        self.register_buffer("mask", torch.ones(3, 6).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = self.layer.weight.abs().amax(1, keepdim=True)
        scale = ours.float_quant(largest / 7, 1.0, 8, 0, 127)
        weight = ours.int_quant(self.layer.weight, scale, 0, 4, narrow=True)
        offset = torch.zeros(3)
        offset[1] = self.layer.bias.abs().max()
        return self.quantizer(torch.nn.functional.linear(x, weight * self.mask) + offset)
