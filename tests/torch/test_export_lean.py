# SPDX-License-Identifier: Apache-2.0
"""Exported files hold what the module computes and no leftovers of how it is written."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anybit

torch = pytest.importorskip("torch", reason="PyTorch makes these models")

from torch_modules import numbers  # noqa: E402  needs torch

from anybit.torch import export, quantize_model  # noqa: E402


class Recurrent(torch.nn.Module):
    """The sequence that a recurrent layer gives, without its last states."""

    def __init__(self, kind: type[torch.nn.Module], **options: Any) -> None:
        super().__init__()
        self.layer = kind(3, 4, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


MODULES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], list[str]]] = {
    "conv1d": (lambda: torch.nn.Conv1d(1, 2, 3, bias=False), (2, 1, 8), ["Conv"]),
    "conv2d": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3, bias=False), torch.nn.Conv2d(2, 3, 3, bias=False)
        ),
        (2, 1, 8, 8),
        ["Conv", "Conv"],
    ),
    "linear": (lambda: torch.nn.Linear(3, 4, bias=False), (2, 3), ["Gemm"]),
    "flatten": (lambda: torch.nn.Flatten(), (2, 3, 4), ["Reshape"]),
    "lstm": (
        lambda: Recurrent(torch.nn.LSTM, batch_first=True),
        (2, 5, 3),
        ["Transpose", "LSTM", "Transpose", "Reshape", "Transpose"],
    ),
    "gru of two layers": (
        lambda: Recurrent(torch.nn.GRU, num_layers=2, bidirectional=True, batch_first=True),
        (2, 5, 3),
        ["Transpose", *["GRU", "Transpose", "Reshape"] * 2, "Transpose"],
    ),
}


@pytest.mark.parametrize("subject", MODULES)
def test_export_writes_minimal_nodes(subject: str) -> None:
    make, shape, expected = MODULES[subject]
    torch.manual_seed(0)
    module = make()
    actual = export(module, numbers(*shape))
    assert [node.op_type for node in actual.model.graph] == expected
    x = numbers(7, *shape[1:])
    with torch.no_grad():
        reference = module(x).numpy()
    (result,) = anybit.load(actual.model).run(x.numpy()).values()
    np.testing.assert_allclose(result, reference, rtol=0, atol=1e-5)


def test_export_of_a_convolution_without_bias() -> None:
    torch.manual_seed(0)
    spec = {"weight": "int4 absmax power-of-two", "activation": "int4 absmax power-of-two"}
    module = quantize_model(torch.nn.Conv2d(2, 3, 3, bias=False), spec)
    result = export(module, numbers(2, 2, 6, 6))
    assert result.equal
    conv = next(node for node in result.model.graph if node.op_type == "Conv")
    assert [value.name for value in conv.inputs] == [
        "input_quantizer.IntQuant",
        "weight_quantizer.IntQuant",
    ]
    assert "Expand" not in {node.op_type for node in result.model.graph}


def test_export_keeps_a_bias_of_zeros() -> None:
    module = torch.nn.Conv2d(2, 3, 3)
    with torch.no_grad():
        module.bias.zero_()
    graph = export(module, numbers(2, 2, 6, 6), verify=False).model.graph
    assert [value.name for value in graph[0].inputs] == ["input", "weight", "bias"]
