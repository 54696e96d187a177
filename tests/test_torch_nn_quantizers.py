# SPDX-License-Identifier: Apache-2.0
"""Quantizer modules: what the scale is for each policy, and that the rest is one operator call."""

import copy
import math
from typing import Any

import numpy as np
import pytest

import anybit
from anybit import formats

torch = pytest.importorskip("torch")

from anybit.torch import nn  # noqa: E402  after the check for torch

FORMATS = ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn", "bfloat16")
POLICIES = ("learned", "absmax", "ema", 0.25)


def sample(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(result: Any, expected: Any) -> bool:
    return np.array_equal(result.detach().numpy(), np.asarray(expected), equal_nan=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("granularity", ["per-tensor", "per-channel"])
def test_integers_are_one_call_of_the_operator(policy: Any, granularity: str) -> None:
    quantizer = nn.IntQuantizer(
        3, False, True, granularity, "CEIL", policy, zeropt=2, axis=-1, channels=5
    )
    x = sample(7, 5)
    result = quantizer(x)
    quantizer.eval()
    expected = anybit.int_quant(
        x.numpy(),
        quantizer.scale(x).detach().numpy(),
        2,
        3,
        signed=False,
        narrow=True,
        rounding_mode="CEIL",
    )
    assert same(result, expected)
    assert same(quantizer(x), expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("format", [*FORMATS, formats.FloatFormat(3, 4)], ids=str)
def test_floats_are_one_call_of_the_operator(policy: Any, format: Any) -> None:
    quantizer = nn.FloatQuantizer(format, rounding_mode="DOWN", scale=policy)
    x = sample(7, 5)
    result = quantizer(x)
    parameters = getattr(formats, format) if isinstance(format, str) else format
    scale = quantizer.eval().scale(x).detach().numpy()
    assert same(result, anybit.float_quant(x.numpy(), scale, *parameters, rounding_mode="DOWN"))


@pytest.mark.parametrize("policy", ["learned", "absmean", "ema", 0.25])
def test_bipolar_is_one_call_of_the_operator(policy: Any) -> None:
    quantizer = nn.BipolarQuantizer(scale=policy)
    x = sample(7, 5)
    result = quantizer(x)
    scale = quantizer.eval().scale(x).detach().numpy()
    assert same(result, anybit.bipolar_quant(x.numpy(), scale))


def test_trunc_is_one_call_of_the_operator() -> None:
    x = torch.arange(-140.0, 140.0) * 0.25
    module = nn.Trunc(9, 5, scale=0.25, narrow=True, rounding_mode="HALF_UP")
    expected = anybit.trunc(x.numpy(), 0.25, 0, 9, 4.0, 5, narrow=True, rounding_mode="HALF_UP")
    assert same(module(x), expected)
    assert same(
        nn.Trunc(9, 5, shift=1)(x, torch.tensor(0.25)),
        anybit.trunc(x.numpy(), 0.25, 0, 9, 0.5, 5),
    )


# What each policy says of its scale.


def test_absmax() -> None:
    x = torch.tensor([[1.0, -7.0], [3.5, 2.0]])
    assert nn.IntQuantizer(4, scale="absmax").scale(x) == 1.0
    assert nn.IntQuantizer(4, signed=False, zeropt=8, scale="absmax").scale(x) == 1.0
    assert nn.FloatQuantizer("float4_e2m1fn", scale="absmax").scale(x * 6) == 7.0
    assert nn.BipolarQuantizer(scale="absmean").scale(x) == 13.5 / 4
    channels = nn.IntQuantizer(4, granularity="per-channel", axis=0, scale="absmax").scale(x)
    assert channels.tolist() == [[1.0], [0.5]]
    assert nn.IntQuantizer(4, granularity="per-channel", scale="absmax").scale(x).tolist() == [
        [0.5, 1.0]
    ]


@pytest.mark.parametrize("bits", range(2, 17))
def test_absmax_clips_nothing(bits: int) -> None:
    """Also where max / (max / Q) rounds to more than Q: the gradient would be 0 there."""
    x = sample(4000, 1, seed=bits).requires_grad_()
    quantizer = nn.IntQuantizer(bits, granularity="per-channel", axis=0, scale="absmax")
    quantizer(x).sum().backward()
    assert bool((x.grad == 1).all())


def test_absmax_scale_is_a_constant_for_the_gradient() -> None:
    x = sample(50).requires_grad_()
    assert not nn.IntQuantizer(4, scale="absmax").scale(x).requires_grad


def test_ema() -> None:
    quantizer = nn.IntQuantizer(4, scale="ema", momentum=0.75)
    assert quantizer.scale(torch.tensor([7.0])) == 1.0
    assert quantizer.scale(torch.tensor([-21.0])) == 1.5
    quantizer.eval()
    assert quantizer.scale(torch.tensor([99.0])) == 1.5
    assert [name for name, _ in quantizer.named_buffers()] == ["scale.value"]
    assert not list(quantizer.parameters())


def test_learned_scales_start_as_in_lsq_but_cover_no_more_than_x() -> None:
    x = sample(1000)
    mean, largest = x.abs().mean().item(), x.abs().max().item()
    for bits in (2, 4, 8):
        highest = 2 ** (bits - 1) - 1
        quantizer = nn.IntQuantizer(bits)
        quantizer(x)
        expected = min(2 * mean / math.sqrt(highest), largest / highest)
        assert quantizer.scale(x).item() == pytest.approx(expected, rel=1e-6)
        assert quantizer.scale.threshold.item() == pytest.approx(highest * expected, rel=1e-6)
    quantizer = nn.BipolarQuantizer()
    quantizer(x)
    assert quantizer.scale(x).item() == pytest.approx(mean, rel=1e-6)


def test_learned_scales_start_once() -> None:
    quantizer = nn.IntQuantizer(4)
    quantizer(sample(100))
    before = quantizer.scale.threshold.item()
    quantizer(100 * sample(100))
    assert quantizer.scale.threshold.item() == before


def test_a_channel_of_zeros_can_be_learned() -> None:
    x = sample(64, 2) * torch.tensor([0.0, 1.0])
    quantizer = nn.IntQuantizer(4, granularity="per-channel", channels=2)
    assert quantizer(x)[:, 0].tolist() == [0.0] * 64
    assert quantizer.scale(x)[0, 0].item() == pytest.approx(1 / 7)


@pytest.mark.parametrize("granularity", ["per-tensor", "per-channel"])
def test_gradient_of_a_learned_scale(granularity: str) -> None:
    """That of the operator for scale = threshold / 7, times 1 / sqrt(N) for N elements."""
    x = sample(6, 4, 5)
    quantizer = nn.IntQuantizer(4, granularity=granularity, channels=4)
    quantizer(x)
    weights = sample(6, 4, 5, seed=1)
    (quantizer(x) * weights).sum().backward()
    scale = quantizer.scale(x).detach().requires_grad_()
    (anybit.torch.int_quant(x, scale, 0, 4) * weights).sum().backward()
    elements = 4 * 5 if granularity == "per-tensor" else 5
    expected = scale.grad.flatten() / 7 / math.sqrt(elements)
    assert torch.allclose(quantizer.scale.threshold.grad.flatten(), expected, rtol=1e-6, atol=0)


def test_the_factor_of_the_gradient_does_not_depend_on_the_batch() -> None:
    """So that parts of a batch, on several ranks, sum to the same."""
    x = sample(8, 5)
    quantizer = nn.IntQuantizer(4)
    quantizer(x)
    quantizer(x).sum().backward()
    whole = quantizer.scale.threshold.grad.clone()
    quantizer.zero_grad()
    for part in x.split(2):
        quantizer(part).sum().backward()
    assert torch.allclose(quantizer.scale.threshold.grad, whole, rtol=1e-5)


def test_a_negative_parameter_is_a_positive_scale() -> None:
    quantizer = nn.IntQuantizer(4, signed=False)
    x = sample(20)
    expected = quantizer(x)
    with torch.no_grad():
        quantizer.scale.threshold.neg_()
    assert torch.equal(quantizer(x), expected)


@pytest.mark.parametrize("policy", ["absmax", "ema"])
def test_zeros_stay_zeros(policy: str) -> None:
    quantizer = nn.IntQuantizer(4, scale=policy)
    assert quantizer(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert quantizer.scale(torch.zeros(3)).item() == 2.0**-64


@pytest.mark.parametrize("given", [0.1, 0.7, 0.75, 1.0, 1.49, 1.5, 3e-5, 12345.0])
def test_powers_of_two(given: float) -> None:
    """The nearest one; 1.5 is between 1 and 2 and goes to 2."""
    scale = nn.IntQuantizer(4, scale=given, power_of_two=True).scale(torch.zeros(1)).item()
    mantissa, exponent = math.frexp(given)
    assert scale == math.ldexp(0.5 if np.float32(mantissa) < 0.75 else 1.0, exponent)


def test_powers_of_two_are_learned_straight_through() -> None:
    x = sample(100)
    quantizer = nn.IntQuantizer(4, power_of_two=True)
    quantizer(x).square().sum().backward()
    assert math.frexp(quantizer.scale(x).item())[0] == 0.5
    assert quantizer.scale.threshold.grad.item() != 0


def test_fixed_scales() -> None:
    x = sample(3, 2)
    scales = torch.tensor([0.5, 0.25])
    quantizer = nn.IntQuantizer(4, granularity="per-channel", scale=scales)
    assert quantizer.scale(x).tolist() == [[0.5, 0.25]]
    assert not list(quantizer.parameters())
    assert quantizer(x, torch.tensor(1.0)).tolist() == x.round().tolist()


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    """Scales stay in float32, whatever half precision x comes in."""
    x = sample(50).to(getattr(torch, dtype))
    for policy in ("learned", "absmax", "ema"):
        quantizer = nn.IntQuantizer(4, scale=policy)
        assert quantizer(x).dtype == x.dtype
        assert quantizer.scale(x).dtype == (
            torch.float64 if dtype == "float64" and policy == "absmax" else torch.float32
        )
        wide = copy.deepcopy(quantizer)(x.double() if dtype == "float64" else x.float())
        assert torch.equal(quantizer.eval()(x), wide.to(x.dtype))


def test_conversion_to_half_precision() -> None:
    x = sample(50)
    quantizer = nn.IntQuantizer(4)
    quantizer(x)
    half = copy.deepcopy(quantizer).half()
    expected = anybit.int_quant(x.numpy(), half.scale(x).item(), 0, 4)
    assert same(half(x), expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("granularity", ["per-tensor", "per-channel"])
def test_empty_batches(policy: Any, granularity: str) -> None:
    quantizer = nn.IntQuantizer(4, granularity=granularity, scale=policy, channels=3)
    empty = torch.empty(0, 3)
    if policy in ("learned", "ema"):
        with pytest.raises(RuntimeError, match="not known yet"):
            quantizer(empty)
    x = sample(4, 3)
    quantizer(x)
    before = quantizer.eval().scale(x)
    assert quantizer.train()(empty).shape == (0, 3)
    assert torch.equal(quantizer.eval().scale(x), before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_states_do_not_keep_what_is_not_finite(bad: float) -> None:
    for policy in ("learned", "ema"):
        quantizer = nn.IntQuantizer(4, scale=policy)
        x = torch.tensor([7.0, bad, -3.5])
        for _ in range(2):
            result = quantizer(x)
            assert 0 < quantizer.scale(x).item() <= 1.0
        assert result[1].isnan().item() == math.isnan(bad)


# Bad arguments.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.IntQuantizer(0), "bits must be an integer in 1 .. 32, got 0"),
        (lambda: nn.IntQuantizer(2.5), "got 2.5"),
        (lambda: nn.IntQuantizer(1), "use BipolarQuantizer"),
        (lambda: nn.IntQuantizer(1, signed=False, narrow=True), "codes 0 .. 0"),
        (lambda: nn.IntQuantizer(4, zeropt=7), "zeropt must be an integer in -8 .. 6, got 7"),
        (lambda: nn.IntQuantizer(4, zeropt=0.5), "got 0.5"),
        (lambda: nn.IntQuantizer(4, rounding_mode="NEAR"), "NEAR"),
        (lambda: nn.IntQuantizer(4, granularity="channel"), "got 'channel'"),
        (lambda: nn.IntQuantizer(4, scale="max"), '"learned", "absmax", "ema".*got \'max\''),
        (lambda: nn.IntQuantizer(4, scale=None), "a number or a tensor, got None"),
        (lambda: nn.Trunc(0, 4), "in_bits must be an integer >= 1, got 0"),
        (lambda: nn.Trunc(8, 2.5), "out_bits must be an integer >= 1, got 2.5"),
        (lambda: nn.Trunc(8, 4, rounding_mode="NEAR"), "NEAR"),
        (lambda: nn.IntQuantizer(4, scale=0.0), "scale must be finite and > 0, got 0.0"),
        (lambda: nn.IntQuantizer(4, scale=math.nan), "got nan"),
        (lambda: nn.IntQuantizer(4, scale=torch.ones(3)), 'granularity="per-channel"'),
        (lambda: nn.IntQuantizer(4, scale="ema", momentum=1.0), "momentum must be in"),
        (lambda: nn.BipolarQuantizer(scale="absmax"), '"absmean"'),
        (lambda: nn.FloatQuantizer("float8"), "float8_e4m3fn.*got 'float8'"),
        (
            lambda: nn.IntQuantizer(4, granularity="per-channel", channels=2, scale=torch.ones(3)),
            "2 channels, but 3 scales",
        ),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_bits_of_numpy() -> None:
    assert nn.IntQuantizer(np.uint8(8), scale="absmax").scale(torch.tensor([127.0])) == 1.0


def test_scales_that_are_not_known_yet() -> None:
    x = sample(3, 2)
    for policy in ("learned", "ema"):
        with pytest.raises(RuntimeError, match="run one batch in training mode"):
            nn.IntQuantizer(4, scale=policy).eval()(x)
        with pytest.raises(RuntimeError, match="give channels="):
            nn.IntQuantizer(4, granularity="per-channel", scale=policy)(x)
    with pytest.raises(RuntimeError, match="bias_quantizer of a layer"):
        nn.IntQuantizer(16, scale="accumulator")(x)


def test_channels_that_do_not_fit() -> None:
    quantizer = nn.IntQuantizer(4, granularity="per-channel", channels=3)
    with pytest.raises(ValueError, match="x must have 3 channels on axis 1, got shape"):
        quantizer(sample(3, 2))
    with pytest.raises(ValueError, match="axis 1 of the channels: x of shape"):
        quantizer(sample(3))
