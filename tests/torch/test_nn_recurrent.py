# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and tables with quantized weights: what PyTorch computes with rounded ones."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anybit

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402
from torch_modules import copy_with_quantized_weights, random  # noqa: E402  needs torch

from anybit.torch import calibrate, export, nn, quantize_model  # noqa: E402

SPEC = {"weight": "int4 per-channel narrow", "activation": "int8 ema", "bias": "int16 accumulator"}
KINDS = {
    "LSTM": lambda: torch.nn.LSTM(5, 4, batch_first=True),
    "GRU": lambda: torch.nn.GRU(5, 4, batch_first=True),
    "RNN": lambda: torch.nn.RNN(5, 4),
    "of two layers": lambda: torch.nn.GRU(5, 4, num_layers=2, bidirectional=True),
    "projected": lambda: torch.nn.LSTM(5, 4, proj_size=3, bias=False),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers_equal_torch_with_quantized_weights(kind: str) -> None:
    torch.manual_seed(0)
    floats = KINDS[kind]()
    layer = quantize_model(floats, SPEC)
    assert isinstance(layer, nn.QuantizedRecurrent)
    assert isinstance(layer, type(floats))
    x = random(6, 6, 5)
    result, states = layer(x)
    weights = [name for name in dict(floats.named_parameters()) if name.startswith("weight")]
    assert [name for name, *_ in layer.quantized_parameters()] == weights
    assert layer.weight_hh_l0_quantizer.scale.stored().shape == layer.weight_hh_l0.shape[:1]
    expected, others = copy_with_quantized_weights(layer, floats)(layer.input_quantizer(x))
    assert torch.equal(result, expected)
    both = zip([*states], [*others], strict=True)
    assert all(torch.equal(one, other) for one, other in both)
    result.sum().backward()
    for name in weights:
        assert bool(getattr(layer, name).grad.abs().sum() > 0)
        assert getattr(layer, f"{name}_quantizer").scale.threshold.grad is not None
    own = zip(layer._flat_weights, layer._flat_weights_names, strict=True)
    assert all(weight is getattr(layer, name) for weight, name in own)


def test_recurrent_layers_accept_packed_sequences() -> None:
    torch.manual_seed(0)
    floats = torch.nn.GRU(5, 4)
    layer = quantize_model(floats, SPEC | {"output": "int4 scale=0.25"}).eval()
    layer.input_quantizer.scale.set(torch.tensor(0.05))
    x = random(6, 3, 5)
    packed = pack_padded_sequence(x, torch.tensor([6, 4, 2]))
    expected, _ = copy_with_quantized_weights(layer, floats)(
        packed._replace(data=layer.input_quantizer(packed.data))
    )
    result, _ = layer(packed)
    assert torch.equal(result.data, layer.output_quantizer(expected.data))


def test_recurrent_layers_support_state_dicts_and_copies() -> None:
    torch.manual_seed(0)
    floats, x = torch.nn.LSTM(5, 4), random(6, 2, 5)
    layer = quantize_model(floats, SPEC)
    layer(x)
    fresh = quantize_model(torch.nn.LSTM(5, 4), SPEC)
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh.eval()(x)[0], copy.deepcopy(layer).eval()(x)[0])
    fresh.load_state_dict(floats.state_dict(), strict=False)
    before = fresh.weight_ih_l0_quantizer.scale.stored().clone()
    fresh.weight_ih_l0 = torch.nn.Parameter(fresh.weight_ih_l0.detach() * 8)
    after = fresh.weight_ih_l0_quantizer.scale.stored()
    assert torch.allclose(after, before * 8)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_are_calibrated_and_exported(kind: str, tmp_path: Path) -> None:
    """tanh and sigmoid of two runtimes differ in the last bit; weights and inputs do not."""

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = KINDS[kind]()

        def forward(self, x: Any) -> Any:
            return self.cell(x)[0]

    torch.manual_seed(0)
    model = quantize_model(First(), SPEC | {"activation": "int8"})
    calibrate(model, [random(6, 6, 5, seed=seed) for seed in range(3)])
    path, x = tmp_path / "model.onnx", random(6, 6, 5, seed=9)
    actual = export(model, x, path)
    assert actual.steps == 0
    ops = [node.op_type for node in actual.model.graph]
    assert ops.count("IntQuant") == 3
    assert kind in ops
    (result,) = anybit.load(path).run(x.numpy()).values()
    with torch.no_grad():
        expected = model.eval()(x).numpy()
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)


def test_recurrent_layers_refuse_bias_quantizers() -> None:
    with pytest.raises(ValueError, match="biases of recurrent layers stay in float"):
        nn.QuantLSTM(5, 4, bias_quantizer=nn.quantizer("int8"))
    model = quantize_model(torch.nn.LSTM(5, 4), SPEC)
    assert nn.describe(model).endswith("in float: 0 % of the weights")
    assert " -  " in nn.describe(model).splitlines()[1]


def test_embedding_quantizes_weight_and_output() -> None:
    """Quantize weight and output; inputs are indices."""
    torch.manual_seed(0)
    floats = torch.nn.Embedding(7, 4, padding_idx=0)
    layer = quantize_model(floats, SPEC | {"output": "int4 scale=0.25"})
    assert type(layer) is nn.QuantEmbedding
    assert layer.input_quantizer is None
    assert layer.weight_quantizer.scale.stored().shape == (4,)
    x = torch.tensor([[0, 1, 6], [2, 2, 3]])
    result = layer(x)
    table = layer.weight_quantizer(floats.weight)
    assert torch.equal(result, layer.output_quantizer(table[x]))
    result.sum().backward()
    assert bool(layer.weight.grad[0].abs().sum() == 0)
    assert bool(layer.weight.grad[2].abs().sum() > 0)
    calibrate(layer, [x])
    assert export(layer, x).equal


def test_embedding_with_max_norm_or_sparse_stays_float() -> None:
    model = torch.nn.ModuleList(
        [torch.nn.Embedding(4, 4, max_norm=1.0), torch.nn.Embedding(4, 4, sparse=True)]
    )
    model.append(torch.nn.Linear(4, 4))
    with pytest.warns(UserWarning, match=r"66.7 % of the weights .*: 0 \(Embedding\), 1 \(Emb"):
        quantize_model(model, SPEC)
