# SPDX-License-Identifier: Apache-2.0
"""Modules for sums, concatenations and products, and the report of functions without a module."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import anybit

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch_modules import random, sqnr  # noqa: E402  needs torch

from anybit.torch import calibrate, export, fold_batchnorm, nn, quantize_model  # noqa: E402

SPEC = {
    "weight": "int8 per-channel narrow",
    "activation": "int8",
    "bias": "int16 accumulator",
}


class Block(torch.nn.Module):
    """Block of a residual network."""

    def __init__(self, channels: int, more: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, more, 3, padding=1, bias=False)
        self.norm1 = torch.nn.BatchNorm2d(more)
        self.relu = torch.nn.ReLU()
        self.conv2 = torch.nn.Conv2d(more, more, 3, padding=1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(more)
        self.down = None if channels == more else torch.nn.Conv2d(channels, more, 1)
        self.add = nn.QuantAdd(nn.quantizer("int8"))

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(self.add(y, x if self.down is None else self.down(x)))


class Network(torch.nn.Module):
    """Residuals, a skip connection that is concatenated, and dropout by the mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Conv2d(1, 4, 3)
        self.blocks = torch.nn.Sequential(Block(4, 4), Block(4, 8))
        self.concat = nn.QuantConcat(nn.quantizer("int8"))
        self.head = torch.nn.Linear(12, 3)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        x = self.concat([x, self.blocks(x)], dim=1)
        x = functional.dropout(x, 0.5, self.training)
        return self.head(x.mean((2, 3)))


def test_functions_of_a_residual_network_train_and_compile_to_integers(tmp_path: Path) -> None:
    model = quantize_model(fold_batchnorm(Network()).eval(), SPEC, strict=True)
    calibrate(model, [random(8, 1, 8, 8), random(8, 1, 8, 8, seed=2)])
    x = random(4, 1, 8, 8, seed=3)
    torch.manual_seed(0)  # for dropout
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    threshold = model.blocks[1].add.input_quantizer.scale.threshold
    for _ in range(2):
        model.train()(x).square().sum().backward()
        optimizer.step()
    assert abs(threshold.grad.item()) > 1e-6
    assert "blocks.0.add" in nn.describe(model)
    exported = export(model.eval(), x, tmp_path / "model.onnx")
    assert exported.steps == 0
    report = anybit.compile(tmp_path / "model.onnx").report
    assert report.coverage == "7 of 7 layers, 100 % of MACs"


def test_functions_with_power_of_two_scales_are_exported_bit_for_bit() -> None:
    torch.manual_seed(0)
    block = Block(2, 3)
    block.add = nn.QuantAdd(nn.quantizer("int8 power-of-two"))
    spec = {**SPEC, "weight": "int8 per-channel narrow power-of-two"}
    model = quantize_model(fold_batchnorm(block), {**spec, "activation": "int8 power-of-two"})
    x = random(4, 2, 5, 5)
    model(x)
    assert export(model, x).equal


def test_quant_add_uses_one_scale_for_both_operands() -> None:
    add = nn.QuantAdd(nn.quantizer("int8 ema"), nn.quantizer("int8 scale=1"))
    big, small = torch.tensor([[100.0, 1.0]]), torch.tensor([[1.0, -127.0]])
    assert torch.equal(add(small, big), torch.tensor([[101.0, -126.0]]))
    assert torch.equal(add.eval()(big, small), torch.tensor([[101.0, -126.0]]))
    assert torch.equal(add(torch.tensor([1]), 2), torch.tensor([3]))


def test_quant_concat_uses_one_scale_for_all_operands() -> None:
    concat = nn.QuantConcat(nn.quantizer("int8 absmax"))
    first, second = torch.tensor([[1.0, -127.0]]), torch.tensor([[100.4]])
    assert torch.equal(concat((first, second), dim=1), torch.tensor([[1.0, -127.0, 100.0]]))


def test_quant_matmul_has_a_quantizer_per_factor() -> None:
    probabilities = random(3, 5).softmax(-1)
    values = random(5, 4)
    product = nn.QuantMatMul(
        nn.quantizer("uint8 absmax"), other_quantizer=nn.quantizer("int8 absmax")
    )
    assert sqnr(probabilities @ values, product(probabilities, values)) > 35
    copied = nn.QuantMatMul(nn.quantizer("int8 absmax"))
    assert copied.other_quantizer is not copied.input_quantizer
    assert sqnr(values @ values.T, copied(values, values.T)) > 35
    integers = torch.ones(2, 2, dtype=torch.int64)
    assert torch.equal(copied(integers, integers), integers @ integers)


@pytest.mark.parametrize("mask", [None, "bool", "float", "causal", "groups"])
def test_quant_attention_matches_pytorch(mask: str | None) -> None:
    q, k, v = random(2, 4, 3, 8), random(2, 4, 5, 8, seed=2), random(2, 4, 5, 6, seed=3)
    options: dict[str, Any] = {
        None: {"scale": 0.3},
        "bool": {"attn_mask": random(3, 5) > -1},
        "float": {"attn_mask": random(2, 1, 3, 5)},
        "causal": {"is_causal": True},
        "groups": {"enable_gqa": True},
    }[mask]
    if mask == "groups":
        k, v = k[:, :2], v[:, :2]
    expected = functional.scaled_dot_product_attention(q, k, v, **options)
    output = nn.QuantScaledDotProductAttention()(q, k, v, **options)
    assert torch.allclose(expected, output, atol=1e-6)
    quantized = nn.QuantScaledDotProductAttention(nn.quantizer("int8 absmax"))
    assert not quantized.probability_quantizer.signed
    assert sqnr(expected, quantized(q, k, v, **options)) > 25


def test_functions_refuse_quantizers_that_they_cannot_use() -> None:
    with pytest.raises(TypeError, match=r"of anybit\.torch\.nn or None, got 'int8'; .*from words"):
        nn.QuantAdd("int8")
    with pytest.raises(ValueError, match="needs one scale per tensor"):
        nn.QuantConcat(nn.quantizer("int8 per-channel"))
    with pytest.raises(ValueError, match='such as "learned", instead of a fixed one'):
        nn.QuantMatMul(nn.quantizer("int8 scale=1"))


class Float(torch.nn.Module):
    """A forward pass in one function, with a layer."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.line = torch.nn.Linear(4, 4)
        self.position = torch.nn.Parameter(torch.zeros(4))
        self.calls: list[int] = []

    def forward(self, x: Any, mask: Any = None, flag: bool = False) -> Any:
        self.calls.append(1)
        return self.function(self, x, mask, flag)


def all_kinds(model: Any, x: Any, mask: Any, flag: bool) -> Any:
    y = model.line(x) + model.position + 1.0
    rows = x.shape[0] + y.size(0)
    scores = torch.matmul(x, y.transpose(-2, -1))
    if mask is not None:
        scores = scores / 2 + mask
    y = scores.softmax(-1) @ y
    y = functional.scaled_dot_product_attention(y, x, value=y, is_causal=True)
    if flag:
        y = torch.add(x, y)
    y += x
    return torch.concat((y, x.add(y), torch.bmm(x, y)), -1) * rows


def test_quantize_model_names_functional_operations_and_their_modules() -> None:
    model = torch.nn.Sequential(Float(all_kinds), torch.nn.Linear(12, 4))
    names = (
        r"functional operations stay in floating point: 0\.matmul, 0\.matmul_1, 0\.bmm "
        r"\(use QuantMatMul\); 0\.scaled_dot_product_attention "
        r"\(use QuantScaledDotProductAttention\); 0\.add_3, 0\.add_4 \(use QuantAdd\); "
        r"0\.concat \(use QuantConcat\); .*\"skip\""
    )
    state = torch.get_rng_state()
    with pytest.warns(UserWarning, match=names) as caught:
        quantized = quantize_model(model, SPEC)
    assert caught[0].filename == __file__
    assert torch.equal(torch.get_rng_state(), state)
    assert type(quantized[0].line) is nn.QuantLinear
    assert model[0].calls == []
    with pytest.raises(ValueError, match=names):
        quantize_model(model, SPEC, strict=True, inplace=True)
    assert type(model[0].line) is torch.nn.Linear


@pytest.mark.parametrize("skip", [["0.*add*", "*matmul*", "*bmm", "*concat", "*scaled*"], ["0"]])
def test_quantize_model_skips_functional_operations_by_name_and_module(skip: list[str]) -> None:
    model = torch.nn.Sequential(Float(all_kinds), torch.nn.Linear(12, 4))
    quantized = quantize_model(model, SPEC | {"skip": skip}, strict=True)
    assert type(quantized[0].line) is nn.QuantLinear


def test_quantize_model_of_weights_alone_ignores_functional_operations() -> None:
    quantize_model(Float(all_kinds), {"weight": "int8"}, strict=True)


def random_branch(model: Any, x: Any, *_: Any) -> Any:
    return x if torch.rand(()) < 0.5 else x + model.line(x)


def raise_key_error(model: Any, x: Any, *_: Any) -> Any:
    return {}[x]


@pytest.mark.parametrize(
    "function",
    [
        lambda model, x, *_: x + model.line(x) if x.sum() > 0 else x,
        lambda model, x, *_: x + model.line(x) if isinstance(x, torch.Tensor) else x,
        lambda model, x, *_: x.foo if hasattr(x, "foo") else x + model.line(x),
        random_branch,
        raise_key_error,
        lambda model, x, mask, _: x * mask + model.line(x).shape[0],
        lambda model, x, *_: model.line(x) * x.shape[0] + x.size(1) + model.position,
    ],
)
def test_quantize_model_claims_nothing_of_functions_that_it_cannot_trace(function: Any) -> None:
    model = Float(function)
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(quantize_model(model, SPEC).line) is nn.QuantLinear
    assert torch.equal(torch.get_rng_state(), state)


def test_quantize_model_ignores_sums_with_masks() -> None:
    class Masked(Float):
        def forward(self, x: Any, attention_mask: Any) -> Any:
            return self.line(x).softmax(-1) + (1.0 - attention_mask[:, None]) * -1e9

    quantize_model(Masked(None), SPEC, strict=True)


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda model: torch.compile(model, backend="eager"), "_orig_mod.add"),
        (torch.nn.DataParallel, "module.add"),
        (torch.fx.symbolic_trace, "add"),
    ],
)
def test_quantize_model_names_operations_inside_of_wrappers(wrap: Any, name: str) -> None:
    model = wrap(Float(lambda model, x, *_: x + model.line(x)))
    with pytest.warns(UserWarning, match=rf"floating point: {name} \(use QuantAdd\)"):
        quantize_model(model, SPEC)
