# SPDX-License-Identifier: Apache-2.0
"""Sums, concatenations and products of activations, as modules and in forward passes."""

import copy
import functools
import pickle
from pathlib import Path
from typing import Any

import pytest

import anybit

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from anybit.torch import calibrate, export, fold_batchnorm, nn, quantize_model  # noqa: E402

SPEC = {
    "weight": "int8 per-channel narrow",
    "activation": "int8",
    "bias": "int16 accumulator",
    "functions": "int8",
}


def random(*shape: int, seed: int = 1) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sqnr(wanted: Any, found: Any) -> float:
    noise = (wanted - found).detach().double().square().sum()
    return float(10 * torch.log10(wanted.detach().double().square().sum() / noise))


def functions(model: Any) -> dict[str, str]:
    """The functions with quantizers, by name."""
    return {
        name: type(each).__name__
        for name, each in model.named_modules()
        if isinstance(each, nn.QuantizedFunction)
    }


class Block(torch.nn.Module):
    """That of a residual network, with an addition in place."""

    def __init__(self, channels: int, more: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, more, 3, padding=1, bias=False)
        self.norm1 = torch.nn.BatchNorm2d(more)
        self.relu = torch.nn.ReLU(inplace=True)
        self.conv2 = torch.nn.Conv2d(more, more, 3, padding=1, bias=False)
        self.norm2 = torch.nn.BatchNorm2d(more)
        self.down = None if channels == more else torch.nn.Conv2d(channels, more, 1)

    def forward(self, x: Any) -> Any:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += x if self.down is None else self.down(x)
        return self.relu(y)


class Network(torch.nn.Module):
    """Residuals, a skip connection that is concatenated, and dropout by the mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = torch.nn.Conv2d(1, 4, 3)
        self.blocks = torch.nn.Sequential(Block(4, 4), Block(4, 8))
        self.head = torch.nn.Linear(12, 3)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        x = torch.cat([x, self.blocks(x)], dim=1)
        x = functional.dropout(x, 0.5, self.training)
        return self.head(x.mean((2, 3)))


def network() -> tuple[Any, Any]:
    """A network in float and with quantizers, calibrated."""
    return copy.deepcopy(calibrated())


@functools.cache
def calibrated() -> tuple[Any, Any]:
    floats = fold_batchnorm(Network()).eval()
    model = quantize_model(floats, SPEC, strict=True)
    calibrate(model, [random(8, 1, 8, 8), random(8, 1, 8, 8, seed=2)])
    return floats, model


def test_a_residual_network_is_trained_and_runs_on_integers(tmp_path: Path) -> None:
    floats, model = network()
    assert functions(model) == {
        "blocks.0.add": "QuantAdd",
        "blocks.1.add": "QuantAdd",
        "concat": "QuantConcat",
    }
    x = random(4, 1, 8, 8, seed=3)
    assert sqnr(floats(x), model(x)) > 25
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    threshold = model.blocks[1].add.input_quantizer.scale.threshold
    before = threshold.item()
    for _ in range(2):
        model.train()(x).square().sum().backward()
        optimizer.step()
    assert threshold.item() != before
    model.eval()
    exported = export(model, x, tmp_path / "model.onnx")
    assert exported.steps == 0
    assert len(exported.quantized) == 7 * 3 + 3 * 2
    report = anybit.compile(tmp_path / "model.onnx").report
    assert report.coverage == "9 of 9 layers, 100 % of MACs"


def test_what_is_exact_is_exported_bit_for_bit() -> None:
    torch.manual_seed(0)
    spec = {
        **{role: f"{words} power-of-two" for role, words in SPEC.items() if role != "bias"},
        "bias": "int16 accumulator",
    }
    model = quantize_model(fold_batchnorm(Block(2, 3)), spec)
    x = random(4, 2, 5, 5)
    model(x)
    assert export(model, x).equal


def test_both_sides_of_a_sum_have_one_scale() -> None:
    model = network()[1]
    block = model.blocks[1]
    seen: list[Any] = []
    block.add.register_forward_hook(lambda module, given, output: seen.append(output))
    model(random(2, 1, 8, 8))
    steps = seen[0] / block.add.input_quantizer.scale.known()
    assert torch.allclose(steps, steps.round(), atol=1e-4)


def test_a_model_stays_what_it_was() -> None:
    floats, model = network()
    x = random(2, 1, 8, 8)
    assert isinstance(model, Network)
    assert isinstance(model.blocks[0], Block)
    assert type(floats.blocks[0]) is Block
    assert type(model.blocks[0]).__name__ == "Block"
    wanted = model(x)
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(each(x), wanted)
        assert functions(each) == functions(model)
        assert isinstance(each.blocks[0], Block)
    fresh = quantize_model(fold_batchnorm(Network()), SPEC)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.eval()(x), wanted)
    # Dropout follows the mode, though forward was traced.
    assert not torch.equal(model.train()(x), wanted)
    assert torch.equal(model.eval()(x), wanted)
    assert "blocks.0.add" in nn.describe(model)
    nn.freeze_scales(model)
    assert not model.concat.input_quantizer.scale.threshold.requires_grad
    block, y = model.blocks[0], random(2, 4, 5, 5)
    compiled = torch.compile(block, fullgraph=True, backend="eager")
    assert torch.equal(compiled(y), block(y))


def test_without_the_key_nothing_changes() -> None:
    spec = {role: words for role, words in SPEC.items() if role != "functions"}
    model = quantize_model(fold_batchnorm(Network()), spec)
    assert type(model) is Network
    assert functions(model) == {}


class Kinds(torch.nn.Module):
    """Functions that are taken, and others that are not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = torch.nn.Linear(4, 4)
        self.position = torch.nn.Parameter(torch.zeros(4))
        self.add = "a name that is taken"

    def forward(self, x: Any, mask: Any = None, *, twice: bool = False) -> Any:
        y = self.line(x) + self.position + 1.0
        rows = x.shape[0] + y.shape[0]
        scores = torch.matmul(x, y.transpose(-2, -1))
        if mask is not None:
            scores = scores / 2 + mask
        y = functional.dropout(scores.softmax(-1), 0.0, self.training) @ y
        y = functional.scaled_dot_product_attention(y, input_of(x), value=y, is_causal=True)
        for _ in range(2 if twice else 1):
            y = torch.add(x, y)
        return torch.concat((y, x.add(y), torch.bmm(x, y)), -1) * rows


def input_of(x: Any) -> Any:
    return x + x


def test_all_kinds_in_all_ways_of_calling() -> None:
    floats = Kinds()
    with pytest.raises(ValueError, match="there are add_4"):
        quantize_model(floats, SPEC | {"skip": ["add_7"]})
    model = quantize_model(floats, SPEC | {"functions": "int16"})
    assert functions(model) == {
        "matmul": "QuantMatMul",
        "matmul_1": "QuantMatMul",
        "add_1": "QuantAdd",
        "attention": "QuantScaledDotProductAttention",
        "add_2": "QuantAdd",
        "add_3": "QuantAdd",
        "matmul_2": "QuantMatMul",
        "concat": "QuantConcat",
        "add_4": "QuantAdd",
    }
    x, mask = random(4, 4, 4), torch.full((4, 4), -torch.inf).triu(1)
    model(x, mask, twice=True)
    calibrate(model, [{"x": x, "mask": mask, "twice": True}])
    assert not model.matmul_1.input_quantizer.signed
    assert model.matmul_1.other_quantizer.signed
    assert not model.attention.probability_quantizer.signed
    for given in ({}, {"mask": mask}, {"twice": True}, {"mask": mask, "twice": True}):
        for mode in (True, False):
            assert sqnr(floats(x, **given), model.train(mode)(x, **given)) > 35
    assert sqnr(floats(x, mask), model(x, mask)) > 35


def test_words_by_kind_and_by_name() -> None:
    spec = SPEC | {
        "functions": {"add": "uint4", "matmul": "e4m3"},
        "layers": {"add_2": {"activation": "int3", "output": "int5"}},
        "skip": ["add_3"],
    }
    found = functions(quantize_model(Kinds(), spec))
    assert found.keys() == {"matmul", "matmul_1", "matmul_2", "add_1", "add_2", "add_4"}
    lines = nn.describe(quantize_model(Kinds(), spec)).splitlines()
    (line,) = (each for each in lines if each.startswith("add_2 "))
    assert line.split()[-4:] == ["int3", "learned", "int5", "learned"]
    for given, message in (
        ("quark", "functions: 'quark': unknown kind"),
        ({"sum": "int8"}, 'functions: unknown kind "sum"; known: add, concat'),
        (8, '"functions" must be words like "int8", or a mapping'),
        ("int8 per-channel", "function '.*': what a function reads has one scale per tensor"),
        ({"matmul": "int8 scale=1"}, "function 'matmul': a product has a copy"),
    ):
        with pytest.raises(ValueError, match=message):
            quantize_model(Kinds(), SPEC | {"functions": given})


TRANSFORMERS: dict[str, Any] = {
    "encoder": lambda first: torch.nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=first
    ),
    "decoder": lambda first: torch.nn.TransformerDecoderLayer(
        8, 2, 16, dropout=0.0, batch_first=True, norm_first=first
    ),
}


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("first", [False, True])
def test_sums_of_transformers(kind: str, first: bool) -> None:
    torch.manual_seed(0)
    floats = TRANSFORMERS[kind](first).eval()
    inputs = (random(3, 5, 8),) if kind == "encoder" else (random(3, 5, 8), random(3, 4, 8, seed=2))
    spec = {"functions": "int16", "weight": "int16", "activation": "int16"}
    model = calibrate(quantize_model(floats, spec, strict=True), [(inputs, None)])
    assert len(functions(model)) == len(inputs) + 1
    name = "src" if kind == "encoder" else "tgt"
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    for given in (
        {},
        {f"{name}_mask": causal},
        {f"{name}_key_padding_mask": padding},
        {f"{name}_mask": causal, f"{name}_key_padding_mask": padding},
    ):
        assert sqnr(floats(*inputs, **given), model.eval()(*inputs, **given)) > 60
    assert torch.equal(copy.deepcopy(model)(*inputs), model(*inputs))
    part = quantize_model(floats, spec | {"skip": ["attention_add"]})
    assert len(functions(part)) == len(inputs)
    assert part.train()(*inputs).shape == inputs[0].shape


def test_stacks_of_transformers() -> None:
    floats = torch.nn.TransformerEncoder(TRANSFORMERS["encoder"](False), 2).eval()
    model = quantize_model(floats, {"functions": "int8 absmax"})
    x = random(3, 5, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    seen: list[Any] = []
    model.layers[1].feedforward_add.register_forward_hook(lambda *given: seen.append(given))
    wanted = floats(x, src_key_padding_mask=padding)[~padding]
    assert sqnr(wanted, model(x, src_key_padding_mask=padding)[~padding]) > 20
    assert len(seen) == 1


class Embedded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(9, 4)
        self.positions = torch.nn.Embedding(5, 4)

    def forward(self, tokens: Any) -> Any:
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))


def test_tokens_and_positions() -> None:
    model = quantize_model(Embedded(), SPEC, strict=True)
    assert functions(model) == {"add": "QuantAdd"}
    assert model(torch.randint(9, (2, 5))).shape == (2, 5, 4)


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return x + self.line(x) if x.sum() > 0 else x


class Remembering(Branching):
    def forward(self, x: Any) -> Any:
        self.last = x + self.line(x)
        return self.last


class WithoutGradients(Branching):
    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            return x + self.line(x)


class Dropping(Branching):
    """A residual that is left out at random."""

    def forward(self, x: Any) -> Any:
        return x if torch.rand(()) < 0.5 else x + self.line(x)


class Checkpointing(Branching):
    def forward(self, x: Any) -> Any:
        return x + checkpoint(self.line, x, use_reentrant=False)


class Asking(Branching):
    def forward(self, x: Any) -> Any:
        x = torch.cat(x, 1) if isinstance(x, list) else x
        return x + self.line(x)


class Masking(Branching):
    def forward(self, x: Any) -> Any:
        return (x + self.line(x)) * torch.ones(4)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Dropping, "it draws random numbers"),
        (Checkpointing, "it uses activation checkpointing"),
        (Asking, "it asks for the type of an argument"),
        (Masking, "it makes a tensor that depends on no input: make it a buffer"),
        (Branching, "symbolically traced variables cannot be used"),
        (Remembering, "it sets last"),
        (WithoutGradients, "it changes the mode of gradients"),
    ],
)
def test_what_cannot_be_traced_is_said(kind: Any, why: str) -> None:
    model = torch.nn.Sequential(kind(), torch.nn.Linear(4, 4))
    message = rf"functions stay in float where forward cannot be traced: 0 \({kind.__name__}: {why}"
    with pytest.raises(ValueError, match=message):
        quantize_model(model, SPEC, strict=True)
    with pytest.warns(UserWarning, match=message) as caught:
        found = quantize_model(model, SPEC)
    assert caught[0].filename == __file__
    assert type(found[0]) is kind
    assert not hasattr(model[0], "last")
    quantize_model(model, SPEC | {"skip": ["0"]}, strict=True)


def test_calls_that_were_not_traced_are_refused() -> None:
    class Masked(Branching):
        def forward(self, x: Any, mask: Any = None) -> Any:
            if mask is not None and mask.any():
                x = x.masked_fill(mask, 0.0)
            return x + self.line(x)

    model = quantize_model(Masked(), SPEC)
    x = random(2, 4)
    assert model(x).shape == (2, 4)
    with pytest.raises(RuntimeError, match="Masked has functions with quantizers, and cannot be"):
        model(x, x > 0)


@pytest.mark.parametrize("masked", [None, "bool", "float", "causal", "groups"])
def test_attention_is_that_of_pytorch(masked: str | None) -> None:
    q, k, v = random(2, 4, 3, 8), random(2, 4, 5, 8, seed=2), random(2, 4, 5, 6, seed=3)
    options: dict[str, Any] = {
        None: {"scale": 0.3},
        "bool": {"attn_mask": random(3, 5) > -1},
        "float": {"attn_mask": random(2, 1, 3, 5)},
        "causal": {"is_causal": True},
        "groups": {"enable_gqa": True},
    }[masked]
    if masked == "groups":
        k, v = k[:, :2], v[:, :2]
    wanted = functional.scaled_dot_product_attention(q, k, v, **options)
    found = nn.QuantScaledDotProductAttention()(q, k, v, **options)
    assert torch.allclose(wanted, found, atol=1e-6)
    quantized = nn.QuantScaledDotProductAttention(nn.quantizer("int8 absmax"))
    assert sqnr(wanted, quantized(q, k, v, **options)) > 25


def test_scales_of_each_call_are_exported() -> None:
    spec = {"functions": "int8 absmax power-of-two", "activation": "int8 absmax power-of-two"}
    model = quantize_model(fold_batchnorm(Block(2, 3)), spec | {"weight": "int8 power-of-two"})
    assert export(model, random(4, 2, 5, 5)).steps == 0


def test_modules_by_hand() -> None:
    add = nn.QuantAdd(nn.quantizer("int8 ema"), nn.quantizer("int8 scale=1"))
    big, small = torch.tensor([[100.0, 1.0]]), torch.tensor([[1.0, -127.0]])
    assert torch.equal(add(small, big), torch.tensor([[101.0, -126.0]]))
    assert torch.equal(add.eval()(big, small), torch.tensor([[101.0, -126.0]]))
    assert torch.equal(add(torch.tensor([1]), 2), torch.tensor([3]))
    concat = nn.QuantConcat(nn.quantizer("int8 absmax"))
    assert torch.equal(concat((small, big[0, :1][None]), dim=1), torch.tensor([[1.0, -127, 100]]))
    with pytest.raises(
        TypeError, match=r"needs quantizers of anybit\.torch\.nn or None, got 'int8'"
    ):
        nn.QuantAdd("int8")
    with pytest.raises(ValueError, match="one scale per tensor, not per channel"):
        nn.QuantConcat(nn.quantizer("int8 per-channel"))
