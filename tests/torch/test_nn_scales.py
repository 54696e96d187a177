# SPDX-License-Identifier: Apache-2.0
"""Scales of quantizer modules: what each policy says of its scale."""

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import anybit.torch  # noqa: E402  after the check for torch
from anybit.torch import nn  # noqa: E402
from anybit.torch.dispatch import direct  # noqa: E402


def sample(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_absmax_scale_values() -> None:
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
def test_absmax_scale_clips_nothing(bits: int) -> None:
    """Also where max / (max / Q) rounds to more than Q: the gradient would be 0 there."""
    x = sample(4000, 1, seed=bits).requires_grad_()
    quantizer = nn.IntQuantizer(bits, granularity="per-channel", axis=0, scale="absmax")
    quantizer(x).sum().backward()
    assert bool((x.grad == 1).all())


def test_absmax_scale_is_a_constant_for_the_gradient() -> None:
    x = sample(50).requires_grad_()
    assert not nn.IntQuantizer(4, scale="absmax").scale(x).requires_grad


def test_ema_scale_is_a_moving_average() -> None:
    quantizer = nn.IntQuantizer(4, scale="ema", momentum=0.75)
    assert quantizer.scale(torch.tensor([7.0])) == 1.0
    assert quantizer.scale(torch.tensor([-21.0])) == 1.5
    quantizer.eval()
    assert quantizer.scale(torch.tensor([99.0])) == 1.5
    assert [name for name, _ in quantizer.named_buffers()] == ["scale.value"]
    assert not list(quantizer.parameters())


def test_learned_scale_starts_as_in_lsq_up_to_absmax() -> None:
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


def test_learned_scale_starts_once() -> None:
    quantizer = nn.IntQuantizer(4)
    quantizer(sample(100))
    before = quantizer.scale.threshold.item()
    quantizer(100 * sample(100))
    assert quantizer.scale.threshold.item() == before


def test_learned_scale_of_zeros_can_be_learned() -> None:
    x = sample(64, 2) * torch.tensor([0.0, 1.0])
    quantizer = nn.IntQuantizer(4, granularity="per-channel", channels=2)
    assert quantizer(x)[:, 0].tolist() == [0.0] * 64
    assert quantizer.scale(x)[0, 0].item() == pytest.approx(1 / 7)


@pytest.mark.parametrize("granularity", ["per-tensor", "per-channel"])
def test_learned_scale_gradient_equals_the_formula(granularity: str) -> None:
    """Compare with that of the operator for scale = threshold / 7, times 1 / sqrt(N)."""
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


def test_learned_scale_gradient_factor_is_independent_of_batch() -> None:
    """Compare parts of a batch, as on several ranks, with the whole."""
    x = sample(8, 5)
    quantizer = nn.IntQuantizer(4)
    quantizer(x)
    quantizer(x).sum().backward()
    whole = quantizer.scale.threshold.grad.clone()
    quantizer.zero_grad()
    for part in x.split(2):
        quantizer(part).sum().backward()
    assert torch.allclose(quantizer.scale.threshold.grad, whole, rtol=1e-5)


def test_learned_scale_of_a_negative_threshold_is_positive() -> None:
    quantizer = nn.IntQuantizer(4, signed=False)
    x = sample(20)
    expected = quantizer(x)
    with torch.no_grad():
        quantizer.scale.threshold.neg_()
    assert torch.equal(quantizer(x), expected)


@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize(
    "value", [0.5, -0.5, 2.0**-64, 2.0**-65, 0.0, -0.0, 1e30, math.nan, math.inf]
)
def test_scales_that_are_read_keep_values_and_gradients(
    value: float, channels: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales that are large enough are left alone where a look at them is cheap."""
    granularity = "per-channel" if channels else "per-tensor"
    quantizer = nn.IntQuantizer(4, granularity=granularity, channels=channels)
    actual = []
    for looks in (True, False):
        with monkeypatch.context() as patch:
            if not looks:
                patch.setattr(direct, "plain_tensors", lambda inputs: None)
            threshold = quantizer.scale.threshold
            threshold.data.fill_(7.0)
            threshold.data.view(-1)[0] = value * 7.0  # without a new version
            quantizer.scale.is_initialized = True
            x = sample(2, 3).requires_grad_()
            result = quantizer(x)
            actual.append([result, *torch.autograd.grad(result.sum(), (x, threshold))])
    for ours, other in zip(*actual, strict=True):
        assert ours.detach().numpy().tobytes() == other.detach().numpy().tobytes()


def test_scales_are_read_in_each_call() -> None:
    """Whatever was done to the state since: written to, replaced, moved, or loaded."""
    x = torch.tensor([0.5, 1.4, -7.0])
    for quantizer in (nn.IntQuantizer(8, scale=0.5), nn.IntQuantizer(8)):
        largest = 1.0 if quantizer.scale.name == "value" else 127.0
        quantizer.initialize(x)
        quantizer.scale.set(torch.tensor(0.5))
        saved = quantizer.state_dict()
        assert quantizer.scale(x) == 0.5
        quantizer.scale.state.data.mul_(2)
        assert quantizer.scale(x) == 1.0
        quantizer.scale.state.data = torch.tensor(2.0 * largest)
        assert quantizer.scale(x) == 2.0
        changed = {name: torch.tensor(4.0 * largest) for name in saved}
        assert (
            torch.func.functional_call(
                quantizer.scale,
                {quantizer.scale.name: changed["scale." + quantizer.scale.name]},
                (x,),
            )
            == 4.0
        )
        quantizer.load_state_dict(changed)
        assert quantizer.scale(x) == 4.0
        assert quantizer.double().scale(x).dtype == torch.float64
        assert quantizer.to("meta").scale(x.to("meta")).is_meta
    learned = nn.IntQuantizer(8)
    learned.initialize(x)
    doubled = Doubled()
    before = learned.scale(x).item()
    torch.nn.utils.parametrize.register_parametrization(learned.scale, "threshold", doubled)
    assert learned.scale(x).item() == 2 * before


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.parametrize("policy", ["absmax", "ema"])
def test_scales_of_zeros_quantize_to_zeros(policy: str) -> None:
    quantizer = nn.IntQuantizer(4, scale=policy)
    assert quantizer(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert quantizer.scale(torch.zeros(3)).item() == 2.0**-64


@pytest.mark.parametrize("value", [0.1, 0.7, 0.75, 1.0, 1.49, 1.5, 3e-5, 12345.0])
def test_power_of_two_scales_are_nearest_powers(value: float) -> None:
    """Round to the nearest power; 1.5 is between 1 and 2 and becomes 2."""
    scale = nn.IntQuantizer(4, scale=value, power_of_two=True).scale(torch.zeros(1)).item()
    mantissa, exponent = math.frexp(value)
    assert scale == math.ldexp(0.5 if np.float32(mantissa) < 0.75 else 1.0, exponent)


def test_power_of_two_scales_are_learned_straight_through() -> None:
    x = sample(100)
    quantizer = nn.IntQuantizer(4, power_of_two=True)
    quantizer(x).square().sum().backward()
    assert math.frexp(quantizer.scale(x).item())[0] == 0.5
    assert quantizer.scale.threshold.grad.item() != 0


def test_fixed_scales_are_stored() -> None:
    x = sample(3, 2)
    scales = torch.tensor([0.5, 0.25])
    quantizer = nn.IntQuantizer(4, granularity="per-channel", scale=scales)
    assert quantizer.scale(x).tolist() == [[0.5, 0.25]]
    assert not list(quantizer.parameters())
    assert quantizer(x, torch.tensor(1.0)).tolist() == x.round().tolist()
