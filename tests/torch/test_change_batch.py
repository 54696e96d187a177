# SPDX-License-Identifier: Apache-2.0
"""Networks of `anybit.torch.export` with a fixed number of rows instead of a dynamic one."""

from pathlib import Path

import numpy as np
import pytest
from clean_checks import clean

from anybit.model import load

torch = pytest.importorskip("torch")
from anybit.torch import export, quantize_model  # noqa: E402


class LastStep(torch.nn.Module):
    """A recurrent network, and a layer for its last step."""

    def __init__(self, recurrent: torch.nn.Module) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


class Patches(torch.nn.Module):
    """A vision transformer of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 8, 4, 4)
        self.token = torch.nn.Parameter(torch.randn(1, 1, 8))
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        return self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), y], 1))[:, 0]


def convolutional() -> torch.nn.Module:
    layers = [
        *(torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU()),
        *(torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(72, 10)),
    ]
    spec = {"weight": "int4 per-channel power-of-two", "activation": "int8 power-of-two"}
    return quantize_model(torch.nn.Sequential(*layers), spec)


NETWORKS = {
    "convolutional": (convolutional, (3, 8, 8)),
    "shuffle": (lambda: torch.nn.ChannelShuffle(2), (4, 3, 3)),
    "norm": (lambda: torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.GroupNorm(2, 4),
                                         torch.nn.Flatten()), (3, 8)),
    "encoder": (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8)),
    "patches": (Patches, (3, 8, 8)),
    "lstm": (lambda: LastStep(torch.nn.LSTM(4, 8, batch_first=True)), (5, 4)),
    "gru": (lambda: LastStep(torch.nn.GRU(4, 8, 2, batch_first=True)), (5, 4)),
    "states": (lambda: torch.nn.LSTM(4, 8, batch_first=True, bidirectional=True), (5, 4)),
}  # fmt: skip


# ONNX's inference loses sizes behind their reshapes; the files say less there, and run.
UNTOLD = ("states", "norm")


@pytest.mark.parametrize("name", NETWORKS)
def test_change_batch_of_exported_networks(name: str, tmp_path: Path) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    network, x = make(), torch.rand(4, *shape)
    network(x)
    path = tmp_path / "network.onnx"
    export(network, x, path, verify=False)
    free = load(path)
    for batch in (1, 3):
        fixed = load(clean(path, batch=batch))
        assert fixed.inputs[0].shape == (batch, *shape)
        rows = x[:batch].numpy()
        for output, expected in free.run(rows).items():
            got = fixed.run(rows)[output]
            assert (got.shape, got.tobytes()) == (expected.shape, expected.tobytes())
    assert clean(path, batch=3).graph.outputs[0].shape.is_static() or name in UNTOLD
    again = load(clean(clean(path, batch=1), batch=1))
    assert np.array_equal(again.run(x[:1].numpy())[output], free.run(x[:1].numpy())[output])
