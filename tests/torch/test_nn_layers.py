# SPDX-License-Identifier: Apache-2.0
"""Layers with quantizers: what they compute, and what they refuse."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_layers import INT4, activations, all_quantizers, weights  # noqa: E402  needs torch

import anybit.torch  # noqa: E402  after the check for torch
from anybit.torch import nn  # noqa: E402

Make = Callable[[], Any]

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
    """Return a layer type, an input for it, and the axis of the output channels."""
    torch.manual_seed(0)
    make, shape, axis = LAYERS[request.param]
    return make, torch.rand(shape), axis


def float_twin(layer: Any) -> Any:
    """Return the torch layer with the quantized parameters."""
    base = next(item for item in type(layer).__mro__ if item.__module__.startswith("torch.nn"))
    twin = copy.deepcopy(layer)
    twin.__class__ = base
    step = layer.input_quantizer.scale(torch.ones(1)) * layer.weight_quantizer.scale(layer.weight)
    with torch.no_grad():
        twin.weight.copy_(layer.weight_quantizer(layer.weight))
        twin.bias.copy_(anybit.torch.int_quant(layer.bias, step.flatten(), 0, 16))
    return twin


def test_layers_equal_torch_layers_of_quantized_tensors(case: Any) -> None:
    make, x, _ = case
    layer = make(**all_quantizers())
    result = layer(x)
    expected = layer.output_quantizer.eval()(float_twin(layer)(layer.input_quantizer(x)))
    assert torch.equal(result, expected)


def test_layers_are_equal_in_training_and_eval_mode(case: Any) -> None:
    make, x, _ = case
    layer = make(**all_quantizers())
    assert torch.equal(layer(x), layer.eval()(x))


def test_layers_without_quantizers_equal_torch_layers(case: Any) -> None:
    make, x, _ = case
    layer = make()
    base = copy.deepcopy(layer)
    base.__class__ = type(layer).__mro__[2]
    assert type(base).__module__.startswith("torch.nn")
    assert torch.equal(layer(x), base(x))
    assert layer.state_dict().keys() == base.state_dict().keys()


def test_layers_have_a_weight_scale_per_output_channel(case: Any) -> None:
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


def test_layers_quantize_inputs_per_channel(case: Any) -> None:
    make, x, _ = case
    layer = make(input_quantizer=activations(granularity="per-channel"))
    axis = -1 if isinstance(layer, nn.QuantLinear) else 1
    layer(x)
    assert layer.input_quantizer.scale.threshold.shape == (x.shape[axis],)
    # Without a batch, too.
    assert torch.equal(layer.eval().input_quantizer(x)[0], layer.input_quantizer(x[0]))
    assert layer(x[0]).shape == layer(x)[0].shape


def test_layers_train_all_parameters(case: Any) -> None:
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


def test_transposed_convolutions_accept_output_size() -> None:
    layer = nn.QuantConvTranspose2d(2, 3, 3, stride=2, weight_quantizer=weights())
    x = torch.rand(1, 2, 4, 4)
    assert layer(x, [10, 10]).shape == layer(x, output_size=[10, 10]).shape == (1, 3, 10, 10)


# Bad arguments.


def test_accumulator_biases_need_both_scales() -> None:
    for missing in ("weight_quantizer", "input_quantizer"):
        with pytest.raises(ValueError, match="needs a weight_quantizer and an input_quantizer"):
            nn.QuantLinear(3, 2, **all_quantizers() | {missing: None})
    with pytest.raises(ValueError, match='input_quantizer with granularity="per-tensor"'):
        nn.QuantLinear(3, 2, **all_quantizers(granularity="per-channel"))
    along_inputs = nn.IntQuantizer(4, granularity="per-channel", axis=1)
    with pytest.raises(ValueError, match="on axis 0, got axis=1"):
        nn.QuantLinear(3, 2, **all_quantizers() | {"weight_quantizer": along_inputs})


def test_accumulator_scales_are_for_biases() -> None:
    for keyword in ("weight_quantizer", "input_quantizer", "output_quantizer"):
        with pytest.raises(ValueError, match=f"for a bias_quantizer, not for {keyword}"):
            nn.QuantLinear(3, 2, **{keyword: nn.IntQuantizer(4, scale="accumulator")})


@pytest.mark.parametrize("argument", ["int4", torch.nn.Identity(), nn.Trunc(8, 4)])
def test_layers_refuse_arguments_that_are_not_quantizers(argument: Any) -> None:
    with pytest.raises(TypeError, match=r"input_quantizer must be a quantizer.* got .*quantizer\("):
        nn.QuantLinear(3, 2, input_quantizer=argument)


def test_grouped_transposed_convolutions_need_an_axis() -> None:
    with pytest.raises(ValueError, match="groups=2: no axis of its weight has all output"):
        nn.QuantConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=weights())
    for axis, channels in ((0, 4), (1, 3)):
        quantizer = nn.IntQuantizer(4, granularity="per-channel", axis=axis)
        layer = nn.QuantConvTranspose2d(4, 6, 3, groups=2, weight_quantizer=quantizer)
        assert layer(torch.rand(1, 4, 5, 5)).shape == (1, 6, 7, 7)
        assert quantizer.scale.threshold.shape == (channels,)


def test_layers_refuse_quantizers_for_other_shapes() -> None:
    quantizer = nn.IntQuantizer(4, granularity="per-channel", channels=7)
    with pytest.raises(ValueError, match="the quantizer has 7 channels, its tensor 2"):
        nn.QuantLinear(3, 2, weight_quantizer=quantizer)
