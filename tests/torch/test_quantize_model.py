# SPDX-License-Identifier: Apache-2.0
"""Whole models by a specification, and quantizers in words."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import anybit.torch  # noqa: E402  after the check for torch
from anybit.torch import nn, quantize_model  # noqa: E402
from anybit.torch.nn._words import format_spec  # noqa: E402

SPEC = {"weight": "int4 per-channel narrow", "activation": "uint4"}


class Tied(torch.nn.Module):
    """Layers of all four types; two have one weight, one object has two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift = torch.nn.ConvTranspose2d(1, 2, 3)
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
        self.line = torch.nn.Conv1d(3, 4, 3, bias=False)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.blocks[1].weight = self.blocks[0].weight
        self.again = self.blocks[2]
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        x = self.stem(self.lift(x)).flatten(2)
        x = self.line(x).mean(2)
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(self.again(x))


LAYERS = ["lift", "stem.0", "line", "blocks.0", "blocks.1", "blocks.2", "head"]


def quantizers(model: Any) -> dict[str, tuple[str, ...]]:
    """Return the format specs of each layer: weight, bias, input, output."""
    names = ("weight", "bias", "input", "output")
    result = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.QuantizedLayer):
            attached = (getattr(module, f"{role}_quantizer") for role in names)
            result[name] = tuple("" if part is None else format_spec(part) for part in attached)
    return result


def test_quantize_model_quantizes_all_layers() -> None:
    model = quantize_model(Tied(), SPEC)
    expected = ("int4 narrow per-channel learned", "", "uint4 learned", "")
    assert quantizers(model) == dict.fromkeys(LAYERS, expected)
    assert model(torch.rand(2, 1, 6, 6)).shape == (2, 2)
    types = {name: type(model.get_submodule(name)) for name in LAYERS}
    assert types["lift"] is nn.QuantConvTranspose2d
    assert types["stem.0"] is nn.QuantConv2d
    assert types["line"] is nn.QuantConv1d
    assert types["head"] is nn.QuantLinear
    assert type(model.stem[1]) is torch.nn.BatchNorm2d


def test_quantize_model_applies_all_keys() -> None:
    spec = {
        "weight": "int4",
        "activation": "uint4 ema",
        "bias": "int16 accumulator",
        "output": "int8 absmax",
        "first/last": "int8",
        "layers": {
            "blocks.*": {"weight": "ternary", "output": "none"},
            "again": {"activation": "float8_e4m3fn absmax"},
            "head": {"weight": "bipolar absmean"},
        },
        "skip": ["lift", "*.1"],
    }
    assert quantizers(quantize_model(Tied(), spec)) == {
        "stem.0": ("int8 learned", "int16 accumulator", "int8 learned", "int8 absmax"),
        "line": ("int4 learned", "", "uint4 ema", "int8 absmax"),
        "blocks.0": ("int2 narrow learned", "int16 accumulator", "uint4 ema", ""),
        "blocks.2": ("int2 narrow learned", "int16 accumulator", "float8_e4m3fn absmax", ""),
        "head": ("bipolar absmean", "int16 accumulator", "int8 learned", "int8 absmax"),
    }


def test_quantize_model_applies_first_last_with_roles() -> None:
    spec = SPEC | {"first/last": {"activation": "int8"}}
    result = quantizers(quantize_model(Tied(), spec))
    assert [name for name, specs in result.items() if specs[2] == "int8 learned"] == [
        "lift",
        "head",
    ]
    assert {value[0] for value in result.values()} == {"int4 narrow per-channel learned"}


def test_quantize_model_equals_quantized_tensors() -> None:
    """Compare a layer with the torch layer of quantized weights and inputs."""
    model = Tied().eval()
    x = torch.rand(3, 4)
    layer = quantize_model(model, SPEC).train().head
    result = layer(x)
    scale = layer.weight_quantizer.scale(model.head.weight)
    weight = anybit.torch.int_quant(model.head.weight, scale, 0, 4, narrow=True)
    inputs = anybit.torch.int_quant(x, layer.input_quantizer.scale(x), 0, 4, signed=False)
    expected = torch.nn.functional.linear(inputs, weight, model.head.bias)
    assert torch.equal(result, expected)


def test_quantize_model_copies_the_model() -> None:
    model = Tied()
    before = copy.deepcopy(model.state_dict())
    quantized = quantize_model(model, SPEC)
    assert quantized is not model
    assert not quantizers(model)
    assert type(model.head) is torch.nn.Linear
    with torch.no_grad():
        quantized.head.weight.zero_()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_quantize_model_in_place_keeps_objects() -> None:
    model = Tied().eval()
    modules, parameters = list(model.modules()), list(model.parameters())
    assert quantize_model(model, SPEC, inplace=True) is model
    kept = {id(module) for module in model.modules()}
    assert all(id(module) in kept for module in modules)
    kept = {id(parameter) for parameter in model.parameters()}
    assert all(id(parameter) in kept for parameter in parameters)
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("inplace", [False, True])
def test_quantize_model_keeps_hooks_ties_modes_and_dtypes(inplace: bool) -> None:
    model = Tied().double()
    seen: list[str] = []
    model.head.register_forward_hook(lambda *_: seen.append("hook"))
    model.line.requires_grad_(False)
    model.blocks.eval()
    names = set(model.state_dict())
    quantized = quantize_model(model, SPEC, inplace=inplace)
    assert names < set(quantized.state_dict())
    assert quantized.blocks[0].weight is quantized.blocks[1].weight
    assert quantized.again is quantized.blocks[2]
    assert not quantized.line.weight.requires_grad
    assert quantized.head.training
    assert not quantized.blocks[0].weight_quantizer.training
    assert {value.dtype for value in quantized.parameters()} == {torch.float64}
    quantized.train()(torch.rand(2, 1, 6, 6, dtype=torch.float64))
    assert seen == ["hook"]


def test_quantize_model_of_one_layer() -> None:
    model = quantize_model(torch.nn.Linear(3, 2), SPEC)
    assert type(model) is nn.QuantLinear
    assert quantize_model(torch.nn.Linear(3, 2), {"weight": "int4"})(torch.rand(1, 3)).shape == (
        1,
        2,
    )


def test_quantize_model_skips_subclasses() -> None:
    """Attention that is left in float reads the weight of its projection, and never calls it."""
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    quantized = quantize_model(model, SPEC | {"skip": ["self_attn"]})
    assert list(quantizers(quantized)) == ["linear1", "linear2"]
    assert quantized(torch.rand(2, 3, 8)).shape == (2, 3, 8)


@pytest.mark.parametrize("inplace", [False, True])
def test_quantize_model_disables_fast_paths_of_encoders(inplace: bool) -> None:
    """Without gradients torch has a way that reads the weights, in float, and calls no layer."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    spec = {"weight": "bipolar", "activation": "int4 absmax", "skip": ["*.self_attn"]}
    quantized = quantize_model(model, spec, inplace=inplace)
    x = torch.rand(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    for options in ({}, {"src_key_padding_mask": padding}):
        expected = quantized(x, **options)
        with torch.no_grad():
            assert torch.allclose(quantized(x, **options), expected, atol=1e-5)


def test_quantize_model_on_meta_device() -> None:
    with torch.device("meta"):
        model = Tied()
    assert quantize_model(model, SPEC).head.weight_quantizer.scale.threshold.device.type == "meta"


def test_quantize_model_state_dicts_load() -> None:
    x = torch.rand(2, 1, 6, 6)
    model = quantize_model(Tied(), SPEC | {"activation": "uint4 ema"})
    model(x)
    fresh = quantize_model(Tied(), SPEC | {"activation": "uint4 ema"})
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh.eval()(x), model.eval()(x))


def test_describe_returns_a_table() -> None:
    text = nn.describe(quantize_model(Tied(), SPEC | {"skip": ["stem.0"]}))
    lines = [line.split("  ") for line in text.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[0] == ["layer", "type", "weight", "bias", "input", "output"]
    assert cells[2] == ["stem.0", "Conv2d", "-", "-", "-", "-"]
    weight = "int4 narrow per-channel learned"
    assert cells[7] == ["head", "QuantLinear", weight, "-", "uint4 learned", "-"]
    assert lines[8] == ["in float: 36.5 % of the weights"]


class Mixed(torch.nn.Module):
    """100 weights in layers, and 60 elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Bilinear(2, 2, 5)
        self.positions = torch.nn.Parameter(torch.zeros(1, 10, 4))
        self.norm = torch.nn.LayerNorm(10)
        self.head = torch.nn.Linear(10, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(x))


def test_quantize_model_warns_of_float_weights() -> None:
    left = r"37.5 % of the weights stay in .*: positions, embedding \(Bilinear\)\. .*\"skip\""
    with pytest.warns(UserWarning, match=left) as caught:
        model = quantize_model(Mixed(), SPEC)
    assert caught[0].filename == __file__
    text = nn.describe(model)
    assert [line.split()[0] for line in text.splitlines()[1:4]] == ["(model)", "embedding", "head"]
    assert text.endswith("\nin float: 37.5 % of the weights")


@pytest.mark.parametrize("inplace", [False, True])
def test_quantize_model_strict_refuses_float_weights(inplace: bool) -> None:
    model = Mixed()
    spec = SPEC | {"skip": ["positions"]}
    left = r"12.5 % of the weights stay in floating point: embedding \(Bilinear\)\. "
    with pytest.raises(ValueError, match=left):
        quantize_model(model, spec, strict=True, inplace=inplace)
    assert not quantizers(model)
    spec = SPEC | {"skip": ["pos*", "embedding"]}
    assert quantizers(quantize_model(model, spec, strict=True)).keys() == {"head"}
    with pytest.raises(ValueError, match="skip='norm': no layer matches"):
        quantize_model(model, SPEC | {"skip": ["norm"]})


def test_describe_counts_shared_weights_as_float() -> None:
    model = Mixed()
    model.embedding = torch.nn.Bilinear(10, 1, 10)
    model.embedding.weight = torch.nn.Parameter(model.head.weight.detach()[:, :, None])
    model.positions = model.head.weight
    with pytest.warns(UserWarning, match=r"more than|100 % of the weights stay"):
        assert nn.describe(quantize_model(model, SPEC)).endswith("in float: 100 % of the weights")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"weights": "int4"}, 'unknown key "weights"; did you mean "weight"? known: weight, bias'),
        ({"weight": "itn4"}, '\'itn4\': unknown format "itn4"; did you mean "int4"?'),
        (
            {"weight": "int4 perchannel"},
            'int4 perchannel.: unknown word "perchannel"; did you mean "per-channel"?',
        ),
        (
            {"weight": "quark"},
            "layer 'lift', weight: 'quark': unknown format \"quark\"; known: intN",
        ),
        (SPEC | {"layers": {"head": {"output": "itn4"}}}, "layer 'head', output: 'itn4': unknown"),
        ({"weight": "mxfp4"}, 'block scales cannot be trained; use "per-channel"'),
        ({"weight": "int4 per-block 32"}, "'int4 per-block 32': block scales cannot be trained"),
        ({"weight": 4}, "weight must be words like .*, got 4"),
        ({"weight": "int40"}, "bits must be an integer in 1 .. 32, got 40"),
        ({"weight": "int1"}, "use BipolarQuantizer"),
        ({"weight": "e99m3"}, "exponent_bitwidth must be"),
        ({"weight": "bipolar narrow"}, "narrow is for integers, not for bipolar"),
        ({"weight": "bipolar absmax"}, '"absmean"'),
        ({"weight": "int4 ema learned"}, "'int4 ema learned' sets scale twice"),
        ({"weight": "int4 scale=big"}, "'int4 scale=big': 'scale=big': the scale must be a n"),
        ({"weight": "int4 scale=-1"}, "scale must be finite and > 0, got -1"),
        ({"weight": ""}, 'unknown format ""'),
        ({"weight": "none"}, "the specification quantizes nothing"),
        ({}, "the specification quantizes nothing"),
        (SPEC | {"skip": ["*"]}, "every layer is skipped"),
        (SPEC | {"skip": ["heads"]}, "skip='heads': no layer matches; there are head"),
        (SPEC | {"skip": None}, '"skip" must be a list of names or patterns, got None'),
        ({"weight": "int4 accumulator"}, "'lift': .* for a bias_quantizer, not for weight_quant"),
        (SPEC | {"skip": "head"}, "\"skip\" must be a list of names or patterns, got 'head'"),
        (
            SPEC | {"layers": {"block.*": {}}},
            r"layers\['block.\*'\]: no layer matches; there are blo",
        ),
        (
            SPEC | {"layers": {"head": {"input": "int4"}}},
            'layers: head: unknown key "input"; known: ',
        ),
        (SPEC | {"layers": ["head"]}, '"layers" must be a mapping'),
        (
            SPEC | {"skip": ["head"], "layers": {"head": "int8"}},
            "layers: every match of 'head' is skipped",
        ),
        (
            {"weight": "int4", "bias": "int16 accumulator"},
            "layer 'lift': a bias_quantizer with .* needs a weight_quantizer and an input_q",
        ),
        ("int4", "must be a mapping like"),
    ],
)
@pytest.mark.parametrize("inplace", [False, True])
def test_quantize_model_refuses_invalid_specifications(
    spec: Any, message: str, inplace: bool
) -> None:
    model = Tied()
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        quantize_model(model, spec, inplace=inplace)
    assert not quantizers(model)


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("INT8", '"int8"'),
        ("UInt4", '"uint4"'),
        ("4bit", '"int4"'),
        ("8-bits", '"int8"'),
        ("u8", '"uint8"'),
        ("3", '"int3"'),
        ("fp8", '"float8_e4m3fn" or "float8_e5m2"'),
        ("float8", '"float8_e4m3fn" or "float8_e5m2"'),
        ("FP4", '"float4_e2m1fn"'),
        ("float8_e4m3", '"float8_e4m3fn"'),
        ("E5M2", '"e5m2"'),
        ("fp8_e3m4", '"e3m4"'),
        ("fp16", '"float16"'),
        ("BFLOAT16", '"bfloat16"'),
        ("bf16", '"bfloat16"'),
        ("binary", '"bipolar"'),
        ("Ternary", '"ternary"'),
    ],
)
def test_quantizer_suggests_kinds(word: str, suggestion: str) -> None:
    """Suggest valid kinds, in an error of one line."""
    with pytest.raises(
        ValueError, match=rf'unknown format "{word}"; did you mean {suggestion}\? known: '
    ):
        nn.quantizer(word)
    for item in suggestion.replace('"', "").split(" or "):
        assert nn.quantizer(item) is not None


@pytest.mark.parametrize("word", ["float7", "int", "99bit", "none", "x8"])
def test_quantizer_refuses_unknown_kinds(word: str) -> None:
    with pytest.raises(ValueError, match=rf'unknown format "{word}"; ') as caught:
        nn.quantizer(word)
    assert "known: intN, uintN" in str(caught.value)


def test_float_quantizer_refuses_unknown_formats() -> None:
    with pytest.raises(ValueError, match='unknown format "fp6"; did you mean "float6_e3m2fn" or'):
        nn.FloatQuantizer("fp6")
    with pytest.raises(ValueError, match=r'unknown format "int8"; .*known: float8_e4m3fn, .*eXmY'):
        nn.FloatQuantizer("int8")


def test_quantize_model_names_layers_in_errors() -> None:
    model = quantize_model(Tied(), SPEC | {"first/last": {"activation": "int8 ema"}}).eval()
    with pytest.raises(RuntimeError, match="the scale of the input_quantizer of layer 'lift' is"):
        model(torch.rand(2, 1, 6, 6))
    model.train()(torch.rand(2, 1, 6, 6))
    model.eval()(torch.rand(2, 1, 6, 6))


def test_quantize_model_refuses_models_without_layers() -> None:
    with pytest.raises(ValueError, match="no layer of the types Linear, Conv1d, Conv2d"):
        quantize_model(torch.nn.ReLU(), SPEC)
    with pytest.raises(ValueError, match="that is not quantized already: nothing to quantize"):
        quantize_model(quantize_model(torch.nn.Linear(3, 2), SPEC), SPEC)


@pytest.mark.parametrize(
    "text",
    [
        "int4 narrow per-channel learned",
        "uint8 power-of-two ema",
        "int16 accumulator",
        "bipolar absmean",
        "float8_e4m3fn per-channel power-of-two absmax",
        "e3m4 learned",
        "float6_e2m3fn scale=0.125",
    ],
)
def test_words_round_trip(text: str) -> None:
    assert format_spec(nn.quantizer(text)) == text


def test_words_are_canonical() -> None:
    assert format_spec(nn.quantizer("ternary")) == "int2 narrow learned"
    assert format_spec(nn.quantizer("int4 per-tensor absmax narrow")) == "int4 narrow absmax"


def test_words_of_other_quantizers() -> None:
    quantizer = nn.IntQuantizer(4, zeropt=3, rounding_mode="FLOOR", scale=0.5)
    assert format_spec(quantizer) == "int4 zeropt=3 floor scale=0.5"
