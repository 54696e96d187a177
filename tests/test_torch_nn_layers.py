# SPDX-License-Identifier: Apache-2.0
"""Layers with quantizers: what they compute, and how they survive all that is done to modules."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import anybit.torch  # noqa: E402  after the check for torch
from anybit.torch import nn  # noqa: E402

functional = torch.nn.functional
Make = Callable[[], Any]

INT4 = {"bits": 4, "narrow": True}


def weights() -> Any:
    return nn.IntQuantizer(**INT4, granularity="per-channel")


def activations(**options: Any) -> Any:
    return nn.IntQuantizer(4, signed=False, **options)


def all_quantizers(**options: Any) -> dict[str, Any]:
    return {
        "weight_quantizer": weights(),
        "bias_quantizer": nn.IntQuantizer(16, scale="accumulator"),
        "input_quantizer": activations(**options),
        "output_quantizer": nn.IntQuantizer(8, scale="ema"),
    }


LAYERS: dict[str, tuple[Make, tuple[int, ...], int]] = {
    "linear": (lambda **q: nn.QuantLinear(6, 5, **q), (7, 6), 0),
    "linear of sequences": (lambda **q: nn.QuantLinear(6, 5, **q), (2, 7, 6), 0),
    "conv1d": (lambda **q: nn.QuantConv1d(4, 6, 3, groups=2, **q), (2, 4, 9), 0),
    "conv2d": (
        lambda **q: nn.QuantConv2d(4, 6, 3, 2, 1, padding_mode="reflect", **q),
        (2, 4, 9, 8),
        0,
    ),
    "transposed": (
        lambda **q: nn.QuantConvTranspose2d(4, 6, 3, 2, 1, 1, **q),
        (2, 4, 5, 6),
        1,
    ),
}


@pytest.fixture(params=list(LAYERS))
def case(request: pytest.FixtureRequest) -> tuple[Any, Any, int]:
    """A way to make a layer, an input for it, and the axis of the output channels."""
    torch.manual_seed(0)
    make, shape, axis = LAYERS[request.param]
    return make, torch.rand(shape), axis


def float_twin(layer: Any) -> Any:
    """The torch layer with the quantized parameters in it."""
    base = next(each for each in type(layer).__mro__ if each.__module__.startswith("torch.nn"))
    twin = copy.deepcopy(layer)
    twin.__class__ = base
    step = layer.input_quantizer.scale(torch.ones(1)) * layer.weight_quantizer.scale(layer.weight)
    with torch.no_grad():
        twin.weight.copy_(layer.weight_quantizer(layer.weight))
        twin.bias.copy_(anybit.torch.int_quant(layer.bias, step.flatten(), 0, 16))
    return twin


def test_a_layer_is_the_torch_layer_of_what_the_quantizers_give(case: Any) -> None:
    make, x, _ = case
    layer = make(**all_quantizers())
    result = layer(x)
    expected = layer.output_quantizer.eval()(float_twin(layer)(layer.input_quantizer(x)))
    assert torch.equal(result, expected)


def test_training_and_eval_give_the_same_bits(case: Any) -> None:
    make, x, _ = case
    layer = make(**all_quantizers())
    assert torch.equal(layer(x), layer.eval()(x))


def test_without_quantizers_it_is_the_torch_layer(case: Any) -> None:
    make, x, _ = case
    layer = make()
    base = copy.deepcopy(layer)
    base.__class__ = type(layer).__mro__[2]
    assert type(base).__module__.startswith("torch.nn")
    assert torch.equal(layer(x), base(x))
    assert layer.state_dict().keys() == base.state_dict().keys()


def test_weights_have_one_scale_for_each_output_channel(case: Any) -> None:
    make, _, axis = case
    layer = make(
        weight_quantizer=nn.IntQuantizer(**INT4, granularity="per-channel", scale="absmax")
    )
    scale = layer.weight_quantizer.scale(layer.weight)
    outputs = layer.bias.shape[0]
    assert scale.numel() == outputs == scale.shape[axis]
    for channel in range(outputs):
        largest = layer.weight.select(axis, channel).abs().max().item()
        assert scale.flatten()[channel].item() == pytest.approx(largest / 7, rel=1e-6)


def test_inputs_per_channel(case: Any) -> None:
    make, x, _ = case
    layer = make(input_quantizer=activations(granularity="per-channel"))
    axis = -1 if isinstance(layer, nn.QuantLinear) else 1
    layer(x)
    assert layer.input_quantizer.scale.threshold.shape == (x.shape[axis],)
    # Without a batch, too.
    assert torch.equal(layer.eval().input_quantizer(x)[0], layer.input_quantizer(x[0]))
    assert layer(x[0]).shape == layer(x)[0].shape


def test_everything_gets_a_gradient_and_moves(case: Any) -> None:
    make, x, _ = case
    quantizers = all_quantizers() | {
        "bias_quantizer": nn.IntQuantizer(6),
        "output_quantizer": nn.IntQuantizer(4),
    }
    layer = make(**quantizers)
    x.requires_grad_()
    layer(x).square().sum().backward()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    before = {name: value.clone() for name, value in layer.named_parameters()}
    optimizer.step()
    assert len(before) == 6
    for name, value in layer.named_parameters():
        assert not torch.equal(value, before[name]), name
    assert bool(x.grad.any())


def test_accumulator_biases_are_integers_in_the_accumulator() -> None:
    layer = nn.QuantLinear(6, 5, **all_quantizers(power_of_two=True))
    layer(torch.rand(3, 6))
    step = layer.input_quantizer.scale(torch.ones(1)) * layer.weight_quantizer.scale(layer.weight)
    seen = []
    layer.bias_quantizer.register_forward_hook(lambda _module, _inputs, bias: seen.append(bias))
    layer(torch.rand(3, 6))
    codes = seen[0] / step.flatten()
    assert bool((codes.round() - codes).abs().max() < 1e-3)
    assert bool((codes.abs() > 1).any())


def test_output_size_of_transposed_convolutions() -> None:
    layer = nn.QuantConvTranspose2d(2, 3, 3, stride=2, weight_quantizer=weights())
    x = torch.rand(1, 2, 4, 4)
    assert layer(x, [10, 10]).shape == layer(x, output_size=[10, 10]).shape == (1, 3, 10, 10)


# What modules go through.


@pytest.fixture
def trained() -> tuple[Any, Any]:
    """A network that has seen a batch, in eval mode, and an input for it."""
    torch.manual_seed(0)
    x = torch.rand(5, 2, 6, 6)
    model = network()
    model(x)
    return model.eval(), x


def network() -> Any:
    return torch.nn.Sequential(
        nn.QuantConv2d(2, 4, 3, **all_quantizers(scale="ema")),
        torch.nn.ReLU(),
        nn.QuantConvTranspose2d(
            4,
            3,
            3,
            weight_quantizer=nn.FloatQuantizer("float4_e2m1fn", "per-channel", scale="absmax"),
            input_quantizer=activations(granularity="per-channel", power_of_two=True),
        ),
        torch.nn.Flatten(),
        nn.QuantLinear(
            108,
            2,
            weight_quantizer=nn.BipolarQuantizer("per-channel"),
            input_quantizer=nn.FloatQuantizer("float8_e4m3fn", scale=0.125),
            bias_quantizer=nn.IntQuantizer(8),
        ),
    )


@pytest.mark.parametrize("weights_only", [True, False])
def test_state_dicts_into_a_model_that_has_seen_nothing(trained: Any, weights_only: bool) -> None:
    model, x = trained
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = network()
    fresh.load_state_dict(torch.load(file, weights_only=weights_only), strict=True)
    assert torch.equal(fresh.eval()(x), model(x))


def test_state_dicts_into_a_model_that_has_seen_other_data(trained: Any) -> None:
    model, x = trained
    other = network()
    other(9 * x)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other.eval()(x), model(x))
    # A loaded scale is not started again by the next batch.
    other.train()
    other[2].input_quantizer(5 * torch.ones(1, 4, 4, 4))
    assert torch.equal(
        other[2].input_quantizer.scale.threshold, model[2].input_quantizer.scale.threshold
    )


def test_state_dicts_of_a_model_that_has_seen_nothing() -> None:
    fresh, other = network(), network()
    other(torch.rand(1, 2, 6, 6))
    other.load_state_dict(fresh.state_dict())
    with pytest.raises(RuntimeError, match="not known yet"):
        other.eval()(torch.rand(1, 2, 6, 6))
    other.train()(torch.rand(1, 2, 6, 6))
    assert not any(bool(value.isnan().any()) for value in other.state_dict().values())


def test_averages_of_models_that_have_seen_nothing(trained: Any) -> None:
    """Values that are written into the parameters, as ranks do too: no state dict is loaded."""
    model, x = trained
    for mode in (True, False):
        average = torch.optim.swa_utils.AveragedModel(network(), use_buffers=True)
        average.update_parameters(model)
        assert torch.equal(average.train(mode)(9 * x), model(9 * x)) == (not mode)
        name = "module.2.input_quantizer.scale.threshold"
        assert torch.equal(average.get_parameter(name), model[2].input_quantizer.scale.threshold)


def test_assigned_state_dicts(trained: Any) -> None:
    model, x = trained
    with torch.device("meta"):
        empty = network()
    empty.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    assert torch.equal(empty.eval()(x), model(x))


def test_float_state_dicts_bring_their_own_weight_scales() -> None:
    """Scales that are missing are taken from the weights that have just been loaded."""
    quantizers = {"weight_quantizer": weights(), "input_quantizer": activations(scale=0.1)}
    layer = nn.QuantLinear(6, 5, **quantizers)
    source = torch.nn.Linear(6, 5)
    with torch.no_grad():
        source.weight.mul_(100)
    missing = layer.load_state_dict(source.state_dict(), strict=False).missing_keys
    assert sorted(missing) == ["input_quantizer.scale.value", "weight_quantizer.scale.threshold"]
    expected = nn.QuantLinear(6, 5, weight_quantizer=weights())
    expected.weight = source.weight
    expected.weight_quantizer.initialize(source.weight)
    assert torch.equal(
        layer.weight_quantizer(layer.weight), expected.weight_quantizer(source.weight)
    )
    # Fixed scales stay.
    assert layer.input_quantizer.scale(torch.ones(1)).item() == pytest.approx(0.1)
    with pytest.raises(RuntimeError, match=r"Missing key.*weight_quantizer\.scale\.threshold"):
        layer.load_state_dict(source.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(trained: Any, copied: Any) -> None:
    model, x = trained
    twin = copied(model)
    assert torch.equal(twin(x), model(x))
    with torch.no_grad():
        twin[2].input_quantizer.scale.threshold.mul_(2)
    assert not torch.equal(twin(x), model(x))


def test_copies_of_what_has_seen_nothing() -> None:
    x = torch.rand(3, 2, 6, 6)
    model = network()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))


def test_dtypes(trained: Any) -> None:
    model, x = trained
    double = copy.deepcopy(model).double()
    result = double(x.double())
    assert result.dtype == torch.float64
    assert all(value.dtype == torch.float64 for value in double.state_dict().values())
    # In float32 some sums may round to another code of the next quantizer.
    assert (result.float() - model(x)).abs().max() < 1
    assert copy.deepcopy(model).bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16


def test_layers_in_float64_have_scales_in_float64() -> None:
    layer = nn.QuantLinear(3, 2, weight_quantizer=weights(), dtype=torch.float64)
    assert layer.weight_quantizer.scale.threshold.dtype == torch.float64


def test_no_call_looks_at_values(trained: Any) -> None:
    """On the meta device there are none."""
    model, x = trained
    for mode in (True, False):
        assert model.to("meta").train(mode)(x.to("meta")).shape == (5, 2)


def test_export(trained: Any) -> None:
    model, x = trained
    batch = torch.export.Dim("batch")
    for strict in (False, True):
        program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=strict)
        assert torch.equal(program.module()(x), model(x))
        assert torch.equal(program.module()(x[:2]), model(x[:2]))


# Bad arguments.


def test_accumulators_need_both_scales() -> None:
    for missing in ("weight_quantizer", "input_quantizer"):
        with pytest.raises(ValueError, match="needs a weight_quantizer and an input_quantizer"):
            nn.QuantLinear(3, 2, **all_quantizers() | {missing: None})
    with pytest.raises(ValueError, match='input_quantizer with granularity="per-tensor"'):
        nn.QuantLinear(3, 2, **all_quantizers(granularity="per-channel"))
    along_inputs = nn.IntQuantizer(4, granularity="per-channel", axis=1)
    with pytest.raises(ValueError, match="on axis 0, got axis=1"):
        nn.QuantLinear(3, 2, **all_quantizers() | {"weight_quantizer": along_inputs})


def test_accumulators_are_for_biases() -> None:
    for keyword in ("weight_quantizer", "input_quantizer", "output_quantizer"):
        with pytest.raises(ValueError, match=f"for a bias_quantizer, not for {keyword}"):
            nn.QuantLinear(3, 2, **{keyword: nn.IntQuantizer(4, scale="accumulator")})


@pytest.mark.parametrize("given", ["int4", torch.nn.Identity(), nn.Trunc(8, 4)])
def test_what_is_no_quantizer(given: Any) -> None:
    with pytest.raises(TypeError, match=r"input_quantizer must be a quantizer.* got .*quantizer\("):
        nn.QuantLinear(3, 2, input_quantizer=given)


def test_grouped_transposed_convolutions() -> None:
    with pytest.raises(ValueError, match="groups=2: no axis of its weight has all output"):
        nn.QuantConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=weights())
    for axis, channels in ((0, 4), (1, 3)):
        quantizer = nn.IntQuantizer(4, granularity="per-channel", axis=axis)
        layer = nn.QuantConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=quantizer)
        assert layer(torch.rand(1, 4, 5, 5)).shape == (1, 6, 7, 7)
        assert quantizer.scale.threshold.shape == (channels,)


def test_quantizers_for_other_shapes() -> None:
    quantizer = nn.IntQuantizer(4, granularity="per-channel", channels=7)
    with pytest.raises(ValueError, match="the quantizer has 7 channels, its tensor 2"):
        nn.QuantLinear(3, 2, weight_quantizer=quantizer)
