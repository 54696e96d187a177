# SPDX-License-Identifier: Apache-2.0
"""Attention with quantized products: that of PyTorch, where nothing is rounded."""

from pathlib import Path

import pytest

import anybit

torch = pytest.importorskip("torch")

from torch_modules import copy_with_quantized_weights, random, sqnr  # noqa: E402  needs torch

from anybit.torch import (  # noqa: E402
    calibrate,
    export,
    export_options,
    nn,
    quantize_model,
)

SPEC = {"weight": "int8 per-channel narrow", "activation": "int8", "bias": "int16 accumulator"}


ATTENTION = {
    "batch first": (lambda: torch.nn.MultiheadAttention(8, 2, batch_first=True), (3, 5, 8)),
    "batch second": (lambda: torch.nn.MultiheadAttention(8, 4, bias=False), (5, 3, 8)),
    "no batch": (lambda: torch.nn.MultiheadAttention(8, 2), (5, 8)),
}


@pytest.mark.parametrize("kind", ATTENTION)
def test_attention_with_quantized_weights_equals_pytorch(kind: str) -> None:
    torch.manual_seed(0)
    make, shape = ATTENTION[kind]
    floats, x = make(), random(*shape)
    layer = quantize_model(floats, {"weight": "int4 per-channel narrow"})
    assert type(layer) is nn.QuantMultiheadAttention
    reference = copy_with_quantized_weights(layer, floats)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    padding = padding[0] if kind == "no batch" else padding
    heads = floats.num_heads * (1 if kind == "no batch" else 3)
    for options in (
        {},
        {"need_weights": False},
        {"attn_mask": causal, "is_causal": True, "need_weights": False},
        {"attn_mask": random(5, 5), "average_attn_weights": False},
        {"attn_mask": random(heads, 5, 5)},
        {"key_padding_mask": padding},
        {"key_padding_mask": padding, "attn_mask": causal},
    ):
        outputs = zip(layer(x, x, x, **options), reference(x, x, x, **options), strict=True)
        for one, other in outputs:
            assert (one is None) == (other is None)
            assert one is None or torch.allclose(one, other, atol=1e-5)


def test_attention_with_other_widths_of_keys_and_values() -> None:
    torch.manual_seed(0)
    floats = torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True)
    layer = quantize_model(floats, SPEC)
    inputs = random(3, 5, 8), random(3, 7, 6, seed=2), random(3, 7, 4, seed=3)
    calibrate(layer, [(inputs, None)])
    assert len(list(layer.quantized_parameters())) == 3
    assert sqnr(floats(*inputs)[0], layer.eval()(*inputs)[0]) > 25


def test_attention_has_a_quantizer_per_factor() -> None:
    torch.manual_seed(0)
    floats = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    layer = quantize_model(floats, SPEC | {"output": "int8"})
    x = random(4, 5, 8)
    calibrate(layer, [((x, x, x), None)])
    scales = [name for name in layer.state_dict() if name.endswith("threshold")]
    assert scales == [
        f"{name}_quantizer.scale.threshold"
        for name in (
            "out_proj.weight", "out_proj.input", "out_proj.output", "in_proj_weight",
            "input", "query", "key", "value", "probability",
        )
    ]  # fmt: skip
    assert not layer.probability_quantizer.signed
    assert layer.query_quantizer.signed
    result, weights = layer.eval()(x, x, x, average_attn_weights=False)
    steps = weights / layer.probability_quantizer.scale.stored()
    assert torch.allclose(steps, steps.round(), atol=1e-4)
    assert sqnr(floats(x, x, x)[0], result) > 25
    result.sum().backward()
    fresh = quantize_model(torch.nn.MultiheadAttention(8, 2, batch_first=True), SPEC)
    assert nn.describe(fresh).endswith("in float: 0 % of the weights")
    with pytest.raises(RuntimeError, match="the input_quantizer of layer '' is not known yet"):
        fresh.eval()(x, x, x)


def test_attention_of_masked_rows_is_zero() -> None:
    layer = quantize_model(torch.nn.MultiheadAttention(4, 2, batch_first=True), SPEC)
    x = random(2, 3, 4)
    padding = torch.tensor([[True, True, True], [False, False, True]])
    output, weights = layer(x, x, x, key_padding_mask=padding)
    assert bool(output.isfinite().all())
    assert bool((weights[0] == 0).all())


def test_attention_refuses_unsupported_options() -> None:
    model = torch.nn.ModuleList([torch.nn.MultiheadAttention(4, 2, add_bias_kv=True)])
    model.append(torch.nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="0.in_proj_weight, 0.bias_k, 0.bias_v, 0.out_proj"):
        quantize_model(model, SPEC)
    for words in ("int8 scale=0.1", "int8 per-channel"):
        with pytest.raises(ValueError, match="the factors of attention have copies"):
            quantize_model(torch.nn.MultiheadAttention(4, 2), {"activation": words})
    for options in ({"add_zero_attn": True}, {"bias_quantizer": nn.quantizer("int8")}):
        with pytest.raises(ValueError, match=r"cannot be quantized|stay in floating point"):
            nn.QuantMultiheadAttention(4, 2, **options)
    layer = quantize_model(torch.nn.MultiheadAttention(4, 2), SPEC)
    with pytest.raises(RuntimeError, match="is_causal is a hint"):
        layer(random(3, 4), random(3, 4), random(3, 4), is_causal=True)


def test_attention_in_an_encoder_is_exported(tmp_path: Path) -> None:
    """Up to softmax, whose last bits differ between runtimes, and rarely become a step."""
    torch.manual_seed(0)
    floats = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    model = quantize_model(floats, SPEC, strict=True)
    x = random(3, 5, 8)
    calibrate(model, [x])
    assert sqnr(floats(x), model.eval()(x)) > 25
    actual = export(model, x, tmp_path / "model.onnx")
    assert len(actual.quantized) == 14
    assert actual.steps <= 1
    result = anybit.load(tmp_path / "model.onnx").run(x.numpy())["output"]
    assert sqnr(model(x), torch.from_numpy(result)) > 50


class Attention(torch.nn.Module):
    """Attention of the positions of a sequence to the first three."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        context = x[:, :3]
        result: torch.Tensor = self.attention(x, context, context)[0]
        return result


def export_with(exporter: str, model: torch.nn.Module, x: torch.Tensor, path: Path) -> None:
    if exporter == "anybit":
        export(model, x, path)
        return
    options = {"optimize": exporter == "torch", **export_options()}
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False, **options)


MODELS = {
    "attention": (Attention, 6),
    "encoder": (lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 8),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("exporter", ["anybit", "torch", "torch, not optimized"])
@pytest.mark.parametrize("activation", ["int8", "int8 dynamic"])
@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_attention_products_run_on_integers(
    activation: str, exporter: str, name: str, tmp_path: Path
) -> None:
    """Exporters split the weight of q, k and v by SplitToSequence and SequenceAt."""
    torch.manual_seed(0)
    make, products = MODELS[name]
    spec = {"weight": "int8 per-channel narrow", "activation": activation}
    model, x, path = quantize_model(make(), spec).eval(), random(3, 7, 16), tmp_path / "m.onnx"
    if activation == "int8":
        calibrate(model, [x])
    export_with(exporter, model, x, path)
    compiled = anybit.compile(path)
    layers = [layer for layer in compiled.report.layers if layer.layer.macs]
    assert len(layers) == products
    assert [layer.name for layer in layers if layer.guarantee is None] == []
    (expected,) = anybit.load(path).run(x.numpy()).values()
    (result,) = compiled.run(x.numpy()).values()
    assert sqnr(torch.from_numpy(expected), torch.from_numpy(result)) > 60


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.filterwarnings("ignore")  # of the exporters
def test_attention_exported_in_floats_is_quantized(dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, path = Attention().eval(), random(3, 7, 16), tmp_path / "m.onnx"
    torch.onnx.export(model, (x,), path, dynamo=dynamo, verbose=False, optimize=False)
    quantized = anybit.quantize(path, activations="int8 dynamic")
    assert len(quantized.layers) >= 5  # keys and values have one product, or two
    report = anybit.compile(quantized).report
    assert [layer.name for layer in report.layers if layer.guarantee is None] == []
