# SPDX-License-Identifier: Apache-2.0
"""Sums, concatenations and products of activations, as modules and in forward passes."""

import builtins
import copy
import functools
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
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
    torch.manual_seed(0)  # of dropout, which may leave next to nothing of a gradient
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    threshold = model.blocks[1].add.input_quantizer.scale.threshold
    for _ in range(2):
        model.train()(x).square().sum().backward()
        optimizer.step()
    assert abs(threshold.grad.item()) > 1e-6
    model.eval()
    exported = export(model, x, tmp_path / "model.onnx")
    assert exported.steps == 0
    assert len(exported.quantized) == 7 * 3 + 3 * 2
    report = anybit.compile(tmp_path / "model.onnx").report
    assert report.coverage == "7 of 7 layers, 100 % of MACs"


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


class AskingExactly(Branching):
    def forward(self, x: Any) -> Any:
        x = x if type(x) is torch.Tensor else x * 2
        return x + self.line(x)


class AskingForTheClass(Branching):
    def forward(self, x: Any) -> Any:
        return x + self.line(x) if issubclass(x.__class__, torch.Tensor) else x


class AskingForAttributes(Branching):
    def forward(self, x: Any) -> Any:
        return x * 2 if hasattr(x, "foo") else x + self.line(x)


class AskingWithADefault(Branching):
    def forward(self, x: Any) -> Any:
        return x + self.line(x) if getattr(x, "mask", None) is None else x


class DrawingFromNumPy(Branching):
    def forward(self, x: Any) -> Any:
        return (x + self.line(x)) * float(np.random.rand())  # noqa: NPY002


class Collecting(Branching):
    """Keeps what it saw where no attribute is set anew."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.by_name: dict[str, Any] = {"last": [None]}

    def forward(self, x: Any) -> Any:
        self.seen.append(x + self.line(x))
        self.by_name["last"][0] = x
        return self.seen[-1]


class Telling(Branching):
    """Asks what itself is."""

    def forward(self, x: Any) -> Any:
        return x + self.line(x) if type(self).__name__ == "Telling" and self.__class__ else x


class Masking(Branching):
    def forward(self, x: Any) -> Any:
        return (x + self.line(x)) * torch.ones(4)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Dropping, "it draws random numbers"),
        (Checkpointing, "it uses activation checkpointing"),
        (Asking, "it asks for the type of an argument"),
        (AskingExactly, "it asks for the type of an argument"),
        (AskingForTheClass, "it asks for the type of an argument"),
        (AskingForAttributes, "it asks which attributes an argument has"),
        (AskingWithADefault, "it asks which attributes an argument has"),
        (DrawingFromNumPy, "it draws random numbers"),
        (Collecting, "it sets by_name, seen"),
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
    assert vars(model[0]).get("seen", []) == []
    assert vars(model[0]).get("by_name", {"last": [None]}) == {"last": [None]}
    quantize_model(model, SPEC | {"skip": ["0"]}, strict=True)


def test_what_a_module_asks_of_itself_is_traced() -> None:
    assert functions(quantize_model(Telling(), SPEC, strict=True)) == {"add": "QuantAdd"}
    assert sys.getprofile() is None


def test_models_are_quantized_in_threads() -> None:
    models, known = [Network().eval() for _ in range(4)], isinstance
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda each: quantize_model(each, {"functions": "int8"}), models))
    assert all(functions(each).keys() == functions(found[0]).keys() for each in found)
    assert builtins.isinstance is known


def test_calls_that_were_not_traced_are_refused() -> None:
    class Masked(Branching):
        def forward(self, x: Any, mask: Any = None) -> Any:
            if mask is not None and mask.any():
                x = x.masked_fill(mask, 0.0)
            return x + self.line(x)

    said = r"will be errors: the model \(mask not as by default: symbolically traced variables"
    with pytest.warns(UserWarning, match=said) as caught:
        model = quantize_model(Masked(), SPEC, strict=True)
    assert caught[0].filename == __file__
    x = random(2, 4)
    assert model(x).shape == (2, 4)
    with pytest.raises(RuntimeError, match="Masked has functions with quantizers, and cannot be"):
        model(x, x > 0)


@pytest.mark.parametrize("mode", [False, True])
def test_both_modes_can_be_traced_or_none(mode: bool) -> None:
    class Untraced(Branching):
        def forward(self, x: Any) -> Any:
            if self.training is mode and x.sum() > 0:
                x = x * 2
            return x + self.line(x)

    with pytest.raises(ValueError, match=r"the model .*Untraced: symbolically traced variables"):
        quantize_model(Untraced(), SPEC, strict=True)


class Options(Branching):
    def forward(self, x: Any, a: Any = None, b: Any = None, c: Any = None, d: Any = None) -> Any:
        for each in (a, b, c, d):
            x = x if each is None else x + each
        return x + self.line(x)


class Required(Branching):
    def forward(self, x: Any, skip: Any) -> Any:
        if skip is not None:
            x = x + skip
        return x + self.line(x)


def test_optional_arguments_and_required_ones_that_are_none() -> None:
    x = random(2, 4)
    floats = Options()
    model = quantize_model(floats, {"functions": "int16 absmax"}, strict=True)
    for given in ({}, {"a": x, "c": x}, dict.fromkeys("abcd", x)):
        assert sqnr(floats(x, **given), model(x, **given)) > 60
    required = Required()
    model = quantize_model(required, {"functions": "int16 absmax"}, strict=True)
    for skip in (x, None):
        assert sqnr(required(x, skip), model(x, skip)) > 60


def test_of_many_options_one_at_a_time_is_traced() -> None:
    class TooMany(Branching):
        def forward(
            self, x: Any, a: Any = None, b: Any = None, c: Any = None, d: Any = None,
            e: Any = None, f: Any = None, g: Any = None,
        ) -> Any:  # fmt: skip
            x = x if a is None else x + a
            return x + self.line(x if b is None else x + b)

    x = random(2, 4)
    with pytest.warns(
        UserWarning, match=r"the model \(not as by default more than one of a, b, c, d, e, f, g"
    ):
        model = quantize_model(TooMany(), {"functions": "int8 absmax"})
    assert model(x, a=x).shape == model(x, b=x).shape
    with pytest.raises(RuntimeError, match="such a call was not traced"):
        model(x, x, x)


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


class Form(torch.nn.Module):
    """A forward pass in one line, and layers for it."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.l = torch.nn.Linear(8, 8)
        self.relu = torch.nn.ReLU(inplace=True)
        self.softmax = torch.nn.LogSoftmax(-1)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any, y: Any) -> Any:
        # The product makes it a forward pass that has functions.
        return self.form(self, x @ x.transpose(-2, -1), y)


def of_form(form: Any) -> tuple[Any, Any]:
    """A forward pass in float, and with functions of 16 bits."""
    floats = Form(form).eval()
    return floats, quantize_model(floats, {"functions": "int16 absmax"}, strict=True)


SUMS_OF_SCORES = {
    "view": lambda _, s, m: (s.view(1, 2, 8, 8) + m[None]).view(2, 8, 8).softmax(-1),
    "permute": lambda _, s, m: torch.softmax((s + m).permute(0, 2, 1), 1),
    "squeeze": lambda _, s, m: (s + m).unsqueeze(1).contiguous().squeeze(1).softmax(-1),
    "flatten": lambda _, s, m: (s + m).flatten(1).unflatten(1, (8, 8)).softmax(-1),
    "filled": lambda _, s, m: (s + m).masked_fill(s > 9, -9.0).softmax(-1),
    "sub": lambda _, s, m: ((s + m) - (s + m).amax(-1, keepdim=True)).softmax(-1),
    "baddbmm": lambda _, s, m: torch.baddbmm(m + m.transpose(1, 2) * 0, s, s).softmax(-1),
    "function": lambda _, s, m: functional.log_softmax(s + m, -1).exp(),
    "module": lambda model, s, m: model.softmax(s + m).exp(),
    "by hand": lambda _, s, m: (s + m).exp() / (s + m).exp().sum(-1, keepdim=True),
    "keyword": lambda _, s, m: functional.scaled_dot_product_attention(
        s, s, s, attn_mask=m + s * 0
    ),
    "argument": lambda _, s, m: functional.scaled_dot_product_attention(s, s, s, m + s * 0),
    "attention": lambda model, s, m: model.attention(s, s, s, attn_mask=(m + s * 0)[0])[0],
    "padding": lambda model, s, m: model.attention(s, s, s, key_padding_mask=(m + s * 0)[:, 3])[0],
    "concat": lambda _, s, m: torch.cat([s, m + s], -1).softmax(-1),
}


@pytest.mark.parametrize("form", SUMS_OF_SCORES)
def test_masks_have_no_scale(form: str) -> None:
    floats, model = of_form(SUMS_OF_SCORES[form])
    x, mask = random(2, 8, 8), torch.full((2, 8, 8), torch.finfo(torch.float32).min).triu(1)
    wanted = floats(x, mask)
    if form in ("view", "permute"):
        assert not wanted.isnan().any()
    assert not {"QuantAdd", "QuantConcat"} & set(functions(model).values())
    assert sqnr(wanted.nan_to_num(), model(x, mask).nan_to_num()) > 40


class MaskSoftmax(torch.nn.Module):
    """A module of the user's around softmax, or what gets a mask."""

    def forward(self, scores: Any, attn_mask: Any = None) -> Any:
        return torch.softmax(scores if attn_mask is None else attn_mask, -1)


def test_masks_of_users_modules_have_no_scale() -> None:
    for form in (
        lambda model, s, m: model.relu(s + m),
        lambda model, s, m: model.relu(s, m + s),
    ):
        floats = Form(form)
        floats.relu = MaskSoftmax()
        assert "add" not in functions(quantize_model(floats, {"functions": "int8"}))

    class Masked(torch.nn.Module):
        def forward(self, scores: Any, mask: Any) -> Any:
            return scores @ scores + (1.0 - mask[:, None]) * -1e9

    assert list(functions(quantize_model(Masked(), {"functions": "int8"}))) == ["matmul"]


def test_sums_before_other_scores_have_a_scale() -> None:
    def form(model: Any, s: Any, x: Any) -> Any:
        x = x + model.l(x)
        rows, length, width = x.shape
        scores = (x @ x.transpose(-2, -1)).reshape(rows, length, length).softmax(-1)
        return model.l(scores.view(rows, length, width) + x).softmax(-1)

    assert list(functions(of_form(form)[1])) == ["matmul", "add", "matmul_1", "add_1"]


def read_again(model: Any, s: Any, x: Any) -> Any:
    y = model.l(x)
    r = y
    y += s
    return y + r


def of_a_view(model: Any, s: Any, x: Any) -> Any:
    y = model.l(x)
    z = y.reshape(2, 64)
    z += s.reshape(2, 64)
    return y


def viewed_before(model: Any, s: Any, x: Any) -> Any:
    y = model.l(x)
    z = y[0]
    y += s
    return z


def of_an_alias(model: Any, s: Any, x: Any) -> Any:
    y = model.l(x)
    z = model.relu(y)
    z += s
    return y


def transposed(model: Any, s: Any, x: Any) -> Any:
    y = model.l(x)
    z = y.mT
    z += s
    return y


def other_operators(model: Any, s: Any, x: Any) -> Any:
    y = model.l(x)
    z = y[0]
    y -= s
    y *= 2
    y /= 3
    return z


def added_by_method(model: Any, s: Any, x: Any) -> Any:
    y = model.l(x)
    z = y[0]
    y.add_(s)
    return z


def of_sizes(model: Any, s: Any, x: Any) -> Any:
    rows = length = x.shape[1]
    length += 1
    return model.l(x) * rows + length


def of_an_argument(model: Any, s: Any, x: Any) -> Any:
    x += model.l(x)
    return x


IN_PLACE = (
    *(read_again, of_a_view, viewed_before, of_an_alias, transposed, other_operators),
    *(added_by_method, of_sizes, of_an_argument),
)


@pytest.mark.parametrize("form", IN_PLACE)
def test_what_changes_in_place_is_changed(form: Any) -> None:
    floats, model = of_form(form)
    x, y = random(2, 8, 8), random(2, 8, 8, seed=2)
    given = y.clone()
    wanted = floats(x, given)
    for each in (model, pickle.loads(pickle.dumps(model))):
        again = y.clone()
        assert sqnr(wanted, each(x, again)) > 60
        assert torch.equal(again.isclose(y), given.isclose(y))
    assert "add" not in functions(model) or form is read_again


def test_what_is_made_anew_may_be_added_to() -> None:
    def form(model: Any, s: Any, x: Any) -> Any:
        y = model.relu(model.l(x))
        y += model.l(y) * x.shape[0]
        y += x
        z = s * 2
        return y + z.add_(x)

    floats, model = of_form(form)
    assert list(functions(model)) == ["matmul", "add", "add_1", "add_2", "add_3"]
    part = quantize_model(floats, {"functions": "int16 absmax", "skip": ["add", "add_1"]})
    x, y = random(2, 8, 8), random(2, 8, 8, seed=2)
    for each in (model, part):
        assert sqnr(floats(x, y), each(x, y)) > 60


def test_arguments_may_be_called_like_functions() -> None:
    class Named(torch.nn.Module):
        def forward(self, softmax: Any, add: Any) -> Any:
            y = softmax @ add
            add += torch.mul(y, y, out=softmax)
            softmax += add
            return y

    model = quantize_model(Named(), {"functions": "int8"})
    assert list(functions(model)) == ["matmul"]
    assert model.matmul.input_quantizer.signed


def test_attributes_of_tensors_are_not_set() -> None:
    def form(model: Any, s: Any, x: Any) -> Any:
        y = model.l(x)
        y.data += s
        return y

    with pytest.raises(ValueError, match="it sets data of a tensor"):
        of_form(form)


@pytest.mark.parametrize(
    ("between", "unsigned"),
    [
        (lambda p, x: p, True),
        (lambda p, x: functional.dropout(p, 0.0).float().transpose(1, 2)[:, :4] * 0.5, True),
        (lambda p, x: p / 2, True),
        (lambda p, x: p * x, False),
        (lambda p, x: p * -1.0, False),
        (lambda p, x: p - 0.5, False),
        (lambda p, x: torch.where(x > 0, p, x), False),
        (lambda p, x: p.masked_fill(x > 0, -1.0), False),
        (lambda p, x: p.clamp(-1, 1), False),
        (lambda p, x: p.neg_() if p.mul_(-1) is None else p, False),
        (lambda p, x: p if p.view(-1).neg_() is not None else x, False),
        (lambda p, x: p.log_softmax(-1), False),
    ],
)
def test_only_what_softmax_gives_is_unsigned(between: Any, unsigned: bool) -> None:
    model = of_form(lambda _, s, x: between(s.softmax(-1), x) @ x)[1]
    assert model.matmul_1.input_quantizer.signed is not unsigned
    assert model.matmul_1.other_quantizer.signed


def test_what_is_negative_in_some_cases_is_signed() -> None:
    class Weighted(torch.nn.Module):
        def forward(self, x: Any, factor: Any = None) -> Any:
            p = x.softmax(-1)
            return (p if factor is None else p * factor) @ x

    assert quantize_model(Weighted(), {"functions": "int8"}).matmul.input_quantizer.signed


class Inheriting(Branching):
    def forward(self, x: Any) -> Any:
        return super().forward(x)


class Residual(Branching):
    def forward(self, x: Any) -> Any:
        return x + self.line(x)


class Summing(Branching):
    def forward(self, x: Any) -> Any:
        return sum([x, self.line(x), x])


class Indirect(Residual):
    def forward(self, x: Any) -> Any:
        return super().forward(x)


def test_functions_of_base_classes_and_of_sum() -> None:
    assert list(functions(quantize_model(Indirect(), SPEC, strict=True))) == ["add"]
    assert list(functions(quantize_model(Summing(), SPEC, strict=True))) == ["add", "add_1"]
    with pytest.raises(ValueError, match="stay in float where forward cannot be traced"):
        quantize_model(Inheriting(), SPEC, strict=True)


def test_functions_alone_are_left() -> None:
    model = quantize_model(Residual(), SPEC | {"skip": ["line"]})
    assert list(functions(model)) == ["add"]
    assert type(model.line) is torch.nn.Linear
    with pytest.raises(ValueError, match="every layer is skipped"):
        quantize_model(Residual(), SPEC | {"skip": ["*"]})


def test_products_by_other_names_may_stay_in_float() -> None:
    floats = Form(lambda _, s, x: torch.bmm(s, mat2=x))
    model = quantize_model(floats, {"functions": "int8", "skip": ["matmul_1"]})
    assert list(functions(model)) == ["matmul"]
    assert model(random(2, 8, 8), random(2, 8, 8)).shape == (2, 8, 8)
