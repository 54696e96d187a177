# SPDX-License-Identifier: Apache-2.0
"""Batch normalization goes into the layer before it, before and after there are quantizers."""

import importlib
import pickle
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils import fuse_conv_bn_eval, fuse_linear_bn_eval  # noqa: E402
from torch_modules import random  # noqa: E402  needs torch

from anybit.torch import export, fold_batchnorm, nn, quantize_model  # noqa: E402

SPEC = {"weight": "int4 per-channel narrow", "activation": "int8 ema"}


def lively(model: Any, seed: int = 0) -> Any:
    """Return the model in eval mode, with normalization that is not the identity."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                size = module.num_features
                if module.affine:
                    module.weight.copy_(torch.rand(size, generator=generator) * 8 - 3)
                    module.bias.copy_(torch.randn(size, generator=generator))
                module.running_mean.copy_(torch.randn(size, generator=generator))
                module.running_var.copy_(torch.rand(size, generator=generator) * 4 + 0.01)
    return model.eval()


def snr(expected: Any, result: Any) -> float:
    """Signal over noise in dB."""
    expected, noise = expected.detach(), (expected - result).detach()
    return float(10 * torch.log10(expected.square().sum() / noise.square().sum().clamp(min=1e-30)))


def test_torch_fx_and_ao_fusion_of_quantized_layers_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    model = quantize_model(lively(model), SPEC | {"activation": "int8 scale=0.1"}).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch uses what it deprecates
        optimization = importlib.import_module("torch.fx.experimental.optimization")
    with pytest.raises(TypeError, match=r"fx cannot trace int_quant: .*fold_batchnorm"):
        optimization.fuse(model)
    with pytest.raises(AssertionError, match=r"did not find fuser method .*QuantConv2d"):
        torch.ao.quantization.fuse_modules(model, [["0", "1"]])
    assert norms(model) == ["1"]


@pytest.mark.parametrize("words", ["int4 per-channel narrow", "int4 per-channel narrow absmax"])
def test_torch_fusion_adapts_weight_scales(words: str) -> None:
    """Scales of a weight go with it when torch replaces it."""
    torch.manual_seed(0)
    spec = {"weight": words, "activation": "int8 ema"}
    model = lively(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)))
    model = quantize_model(model, spec)
    x = random(4, 3, 6, 6)
    model[0].train()(x)
    with torch.no_grad():
        expected = model.eval()(x)
        fused = fuse_conv_bn_eval(model[0], model[1])
        assert snr(expected, fused(x)) > 60
        linear = quantize_model(torch.nn.Linear(5, 7), spec)
        linear(random(6, 5))
        norm = lively(torch.nn.BatchNorm1d(7))
        expected = norm(linear.eval()(random(9, 5)))
        assert snr(expected, fuse_linear_bn_eval(linear, norm)(random(9, 5))) > 60


class Network(torch.nn.Module):
    """Layers of all kinds with normalization, which is defined in another order than it is used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(3))
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, bias=False), self.norms[0])
        self.lift = torch.nn.ConvTranspose2d(8, 8, 2, groups=2)
        self.line = torch.nn.Conv1d(8, 6, 1)
        self.norm1 = torch.nn.BatchNorm1d(6, affine=False)
        self.twice = torch.nn.Conv2d(8, 8, 1)
        self.head = torch.nn.Linear(6, 5)
        self.last = torch.nn.BatchNorm1d(5)

    def forward(self, x: Any) -> Any:
        x = self.norms[1](self.lift(torch.relu(self.stem(x))))
        x = x + self.norms[2](self.twice(self.twice(x)))
        x = self.norm1(self.line(x.flatten(2))).mean(2)
        return self.last(self.head(x))


class Branching(Network):
    """Forward cannot be traced: it is done part by part."""

    def forward(self, x: Any) -> Any:
        return super().forward(x if x.sum() > 0 else -x)


def norms(model: Any) -> list[str]:
    kind = torch.nn.modules.batchnorm._BatchNorm
    return [name for name, module in model.named_modules() if isinstance(module, kind)]


TWICE = r"stays in norms.2 \(layer 'twice' is called 2 times\)$"


def test_fold_batchnorm_keeps_the_function_of_float_models() -> None:
    model = lively(Network())
    with pytest.warns(UserWarning, match=TWICE) as caught:
        folded = fold_batchnorm(model)
    assert caught[0].filename == __file__
    x = random(2, 4, 6, 6)
    assert norms(folded) == ["norms.2"]
    assert snr(model(x), folded(x)) > 100
    assert folded.stem[0].bias.requires_grad
    assert norms(model) == ["norms.0", "norms.1", "norms.2", "norm1", "last"]


def test_fold_batchnorm_in_place_and_in_training_mode() -> None:
    """Fold in training mode, without batch statistics afterwards, and without random numbers."""
    model = lively(Network())
    x = random(2, 4, 6, 6)
    expected = model(x)
    layer, state = model.stem[0], torch.get_rng_state()
    with pytest.raises(ValueError, match=TWICE):
        fold_batchnorm(model, inplace=True, strict=True)
    assert norms(model) == ["norms.0", "norms.1", "norms.2", "norm1", "last"]
    with pytest.warns(UserWarning, match=TWICE):
        assert fold_batchnorm(model.train(), inplace=True) is model
    assert torch.equal(torch.get_rng_state(), state)
    assert model.stem[0] is layer
    assert model.training
    assert model.stem[1].training
    model.norms[2].eval()
    assert snr(expected, model(x)) > 100


def test_fold_batchnorm_folds_children_of_untraceable_models() -> None:
    model = lively(Branching())
    reason = "forward of Branching cannot be traced: symbolically traced variables cannot be used"
    with pytest.warns(UserWarning, match=rf"norms.1 \({reason}.*norms.2.*norm1 \(.*last \("):
        folded = fold_batchnorm(model)
    assert norms(folded) == ["norms.1", "norms.2", "norm1", "last"]
    assert snr(model(random(2, 4, 6, 6)), folded(random(2, 4, 6, 6))) > 100


def test_fold_batchnorm_keeps_normalization_if_the_layer_has_other_users() -> None:
    class Reading(torch.nn.Module):
        def __init__(self, how: str) -> None:
            super().__init__()
            self.how = how
            self.layer = torch.nn.Linear(3, 3)
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            more = {
                "output": lambda: y,
                "weight": lambda: self.layer.weight,
                "parameter": lambda: self.norm.bias,
            }
            return self.norm(y) + more[self.how]()

    for how, reason in (
        ("output", "the output of layer 'layer' has other users"),
        ("weight", "forward reads the parameters of layer 'layer', too"),
        ("parameter", "forward reads its parameters, too"),
    ):
        with pytest.warns(UserWarning, match=rf"stays in norm \({reason}\)$"):
            assert norms(fold_batchnorm(Reading(how))) == ["norm"]


class Between(torch.nn.Module):
    """Something between the layer and the normalization that is seen in some calls only."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layer = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.seen: list[Any] = []

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        if self.how == "type" and isinstance(y, torch.Tensor):
            y = torch.relu(y)
        if self.how == "attribute" and not hasattr(y, "extra"):
            y = torch.relu(y)
        if self.how == "random" and torch.rand(()) < 2:
            y = torch.relu(y)
        if self.how == "mode" and not self.training:
            y = torch.relu(y)
        if self.how == "training" and self.training:
            y = torch.relu(y)
        if self.how == "set":
            self.last = y
        if self.how == "list":
            self.seen.append(y)
        return self.norm(y)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("type", "forward of Between cannot be traced: it asks for the type of a tensor"),
        ("attribute", "forward of Between cannot be traced: it reads attribute 'extra', .*"),
        ("random", "forward of Between cannot be traced: it draws random numbers .*"),
        ("mode", "its input is the output of relu, not of a layer"),
        ("training", "in one of the modes, its input is the output of relu, not of a layer"),
        ("set", "forward of Between cannot be traced: it stores a tensor in attribute 'last'"),
        ("list", "forward of Between cannot be traced: it stores a tensor in attribute 'seen'"),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_fold_batchnorm_keeps_normalization_if_tracing_is_unreliable(
    how: str, reason: str, training: bool
) -> None:
    model = lively(Between(how)).train(training)
    with pytest.warns(UserWarning, match=rf"stays in norm \((in one of the modes, )?{reason}\)$"):
        fold_batchnorm(model, inplace=True)
    assert norms(model) == ["norm"]
    assert model.training is training
    assert not hasattr(model, "last")
    assert model.seen == []


@pytest.mark.parametrize("name", ["0.0", "1", "0"])
def test_fold_batchnorm_keeps_normalization_next_to_hooks(name: str) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(3, 3))
    model = lively(torch.nn.Sequential(inner, torch.nn.BatchNorm1d(3)))
    model.get_submodule(name).register_forward_hook(lambda module, inputs, output: output * 2)
    expected = model(x := random(4, 3))
    with pytest.warns(UserWarning, match=rf"stays in 1 .*{name}'? has hooks, which may"):
        folded = fold_batchnorm(model)
    assert snr(expected, folded(x)) > 100


def test_fold_batchnorm_after_linear_refuses_3_dimensions() -> None:
    model = lively(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)))
    folded = fold_batchnorm(model, strict=True)
    assert isinstance(folded[1], torch.nn.Identity)
    assert snr(model(random(4, 3)), folded(random(4, 3))) > 100
    traced = torch.fx.symbolic_trace(folded)
    for item in (folded, pickle.loads(pickle.dumps(folded)), traced):
        with pytest.raises(ValueError, match="for inputs of 2 dimensions, got 3"):
            item(random(4, 3, 3))
    images = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm2d(3))
    with pytest.warns(UserWarning, match="the channels of layer '0' are on the last axis"):
        assert norms(fold_batchnorm(images)) == ["1"]


class Unlike(torch.nn.Module):
    """Normalization that cannot be folded, for different reasons."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.relu = torch.nn.ReLU()
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(3) for _ in range(6))
        self.norms.append(type("MyNorm", (torch.nn.BatchNorm1d,), {})(3))

    def forward(self, x: Any) -> Any:
        x = self.norms[1](self.norms[0](x) + x)
        x = self.norms[3](self.norms[2](self.norms[2](x)))
        x = self.norms[6](self.layer(self.norms[5](self.relu(x))))
        return torch.nn.functional.batch_norm(x, self.norms[4].running_mean, None, training=True)


def test_fold_batchnorm_reports_reasons() -> None:
    model = torch.nn.Sequential(Unlike())
    with pytest.raises(ValueError, match=r"^batch normalization stays in ") as caught:
        fold_batchnorm(model, strict=True)
    for number, reason in enumerate(
        [
            "its input is an input of the model",
            "its input is the output of add, not of a layer",
            "it is called 2 times",
            "layer '0.norms.2' is called 2 times",
            "forward does not call it as a module, but reads its parameters",
            "its input is the output of '0.relu', of type ReLU",
            "its type MyNorm may compute something else",
        ]
    ):
        assert f"0.norms.{number} ({reason})" in str(caught.value)
    assert str(caught.value).endswith("0 (forward calls it as a function: use a module)")


def test_fold_batchnorm_keeps_normalization_without_statistics_or_parameters() -> None:
    without = torch.nn.BatchNorm1d(3, track_running_stats=False)
    with pytest.warns(UserWarning, match="it has no running statistics"):
        assert norms(fold_batchnorm(torch.nn.Sequential(torch.nn.Linear(3, 3), without))) == ["1"]
    computed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3))
    with pytest.warns(UserWarning, match="the output of '0', of type ParametrizedLinear"):
        model = fold_batchnorm(torch.nn.Sequential(computed, torch.nn.BatchNorm1d(3)))
    assert norms(model) == ["1"]
    computed = torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3))
    with pytest.warns(UserWarning, match="the weight of layer '0' is computed in each call"):
        model = fold_batchnorm(torch.nn.Sequential(computed, torch.nn.BatchNorm1d(3)))
    assert norms(model) == ["1"]


@pytest.mark.parametrize("scale", ["learned", "absmax", "ema"])
def test_fold_batchnorm_keeps_the_function_of_quantized_models(scale: str) -> None:
    """Scales per channel follow, to the rounding of float32, and so does an accumulator bias."""
    spec = {
        "weight": f"int4 per-channel narrow {scale}",
        "activation": "int8 ema",
        "bias": "int32 accumulator",
        "layers": {"lift": {"weight": "none", "bias": "none"}, "stem.0": {"bias": "none"}},
        "skip": ["add"],
    }
    model = quantize_model(lively(Network()), spec)
    x = random(8, 4, 6, 6)
    for module in model.modules():
        if isinstance(module, nn.QuantizedLayer):
            module.train()
    model(x)
    model.eval()
    with pytest.warns(UserWarning, match=TWICE):
        folded = fold_batchnorm(model)
    assert norms(folded) == ["norms.2"]
    assert isinstance(folded.stem[0], nn.QuantConv2d)
    assert snr(model(x), folded(x)) > 40
    with pytest.warns(UserWarning, match=TWICE):
        again = quantize_model(fold_batchnorm(Network()), spec)
    again.load_state_dict(folded.state_dict())
    assert torch.equal(again.eval()(x), folded(x))


@pytest.mark.parametrize("words", ["int4", "int4 per-channel power-of-two", "int4 scale=0.1"])
def test_fold_batchnorm_refuses_weights_that_would_change(words: str) -> None:
    model = quantize_model(lively(Network()), {"weight": words, "skip": ["lift"]})
    state = {name: value.clone() for name, value in model.state_dict().items()}
    message = "stem.0.*fixed scale" if "scale=" in words else "layer 'stem.0': its weights would"
    with pytest.raises(ValueError, match=f"{message}.*before quantize_model"):
        fold_batchnorm(model, inplace=True)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_fold_batchnorm_refuses_a_quantizer_in_between() -> None:
    spec = SPEC | {"layers": {"head": {"output": "int8 ema"}}}
    model = quantize_model(lively(Network()), spec | {"skip": ["lift", "add"]}).train()
    with pytest.raises(ValueError, match="layer 'head': its output_quantizer is before"):
        fold_batchnorm(model)
    model(random(2, 4, 6, 6))
    with pytest.raises(ValueError, match="of layer 'head' has a scale for outputs"):
        fuse_linear_bn_eval(model.head.eval(), model.last.eval())


def test_layers_initialize_the_scale_of_a_replaced_bias() -> None:
    layer = quantize_model(torch.nn.Linear(2, 2), {"bias": "int8"})
    layer.bias = torch.nn.Parameter(torch.tensor([100.0, -50.0]))
    assert snr(torch.tensor([100.0, -50.0]), layer(torch.zeros(1, 2))) > 30
    layer = quantize_model(torch.nn.Linear(2, 2), {"bias": "int8 scale=0.1"})
    with pytest.raises(ValueError, match="fixed scale for the old bias"):
        layer.bias = torch.nn.Parameter(torch.tensor([100.0, -50.0]))


def test_layers_keep_scales_of_loaded_or_equal_parameters() -> None:
    model = quantize_model(torch.nn.Linear(4, 3), {"weight": "int4 scale=0.1"})
    other = quantize_model(torch.nn.Linear(4, 3), {"weight": "int4 scale=0.1"})
    other.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(other.weight, model.weight)
    other.weight = torch.nn.Parameter(other.weight.detach().clone())
    learned = quantize_model(torch.nn.Linear(4, 3), {"weight": "int4"})
    threshold = learned.weight_quantizer.scale.threshold
    with torch.no_grad():
        threshold.mul_(0.7)
    before = threshold.clone()
    learned.load_state_dict(learned.state_dict(), assign=True)
    learned.weight = torch.nn.Parameter(learned.weight.detach().clone())
    assert torch.equal(learned.weight_quantizer.scale.threshold, before)


def test_layers_initialize_scales_of_channels_of_zeros() -> None:
    """Initialize the scale from the new weight, because the old one is zero."""
    layer = quantize_model(torch.nn.Linear(2, 2, bias=False), {"weight": "int8 per-channel narrow"})
    with torch.no_grad():
        layer.weight[0] = 0
        layer.weight_quantizer.initialize(layer.weight)
    layer.weight = torch.nn.Parameter(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    assert snr(torch.tensor([[4.0, 0.0]]), layer(torch.ones(1, 2))) > 40


def test_fold_batchnorm_exports_bit_for_bit() -> None:
    """Folded before there are quantizers or after, every sum is exact."""
    spec = {
        "weight": "int4 per-channel narrow",
        "activation": "int8 power-of-two ema",
        "bias": "int16 accumulator",
    }
    norm = torch.nn.BatchNorm1d(3, eps=0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([4.0, -0.5, 2.0]))
        norm.running_mean.copy_(torch.tensor([0.5, 0.25, -1.0]))
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), norm, torch.nn.ReLU(), torch.nn.Linear(3, 2))
    model = quantize_model(model, spec)
    with torch.no_grad():
        for layer in (model[0], model[3]):
            layer.weight_quantizer.scale.threshold.fill_(7 / 16)
            layer.train()(random(8, layer.in_features))
    folded = fold_batchnorm(model.eval())
    assert torch.equal(folded(random(4, 5)), model(random(4, 5)))
    assert export(folded, random(4, 5, seed=2)).equal
