# SPDX-License-Identifier: Apache-2.0
"""Layers of PyTorch that stay in floats, exported between quantizers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anybit

torch = pytest.importorskip("torch", reason="PyTorch makes these models")

from anybit.torch import export, nn  # noqa: E402  needs torch

words = nn.quantizer


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_export_of_attention() -> None:
    """Float layers of all kinds between quantizers: embedding, normalization, attention."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm = torch.nn.Embedding(5, 4), torch.nn.LayerNorm(4)
            self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
            self.quantizer = words("int4 scale=0.25")

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            x = self.quantizer(self.norm(self.embedding(words)))
            return self.quantizer(self.attention(x, x, x)[0])

    torch.manual_seed(0)
    result = export(Attention(), torch.arange(10).reshape(2, 5) % 5)
    assert len(result.quantized) == 2
    assert result.steps == 0


@pytest.mark.parametrize("recurrent", [torch.nn.LSTM, torch.nn.GRU], ids=["LSTM", "GRU"])
def test_export_of_recurrent_layers(recurrent: Any, tmp_path: Path) -> None:
    """PyTorch's own, in floats, between quantizers."""

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quantizer = words("int8 power-of-two ema")
            self.cell = recurrent(5, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cell(self.quantizer(x))[0]

    torch.manual_seed(0)
    module, path = Recurrent(), tmp_path / "model.onnx"
    module(random(2, 6, 5))
    actual = export(module, random(2, 6, 5), path)
    assert actual.steps == 0
    assert recurrent.__name__ in {node.op_type for node in actual.model.graph}
    x = random(3, 6, 5, seed=1)
    (result,) = anybit.load(path).run(x.numpy()).values()
    with torch.no_grad():
        expected = module.eval()(x).numpy()
    assert np.abs(result - expected).max() < 1e-6  # tanh and sigmoid of two runtimes
