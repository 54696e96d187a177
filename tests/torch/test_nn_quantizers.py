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
def test_int_quantizer_calls_int_quant(policy: Any, granularity: str) -> None:
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
def test_float_quantizer_calls_float_quant(policy: Any, format: Any) -> None:
    quantizer = nn.FloatQuantizer(format, rounding_mode="DOWN", scale=policy)
    x = sample(7, 5)
    result = quantizer(x)
    parameters = getattr(formats, format) if isinstance(format, str) else format
    scale = quantizer.eval().scale(x).detach().numpy()
    assert same(result, anybit.float_quant(x.numpy(), scale, *parameters, rounding_mode="DOWN"))


@pytest.mark.parametrize("policy", ["learned", "absmean", "ema", 0.25])
def test_bipolar_quantizer_calls_bipolar_quant(policy: Any) -> None:
    quantizer = nn.BipolarQuantizer(scale=policy)
    x = sample(7, 5)
    result = quantizer(x)
    scale = quantizer.eval().scale(x).detach().numpy()
    assert same(result, anybit.bipolar_quant(x.numpy(), scale))


def test_trunc_module_calls_trunc() -> None:
    x = torch.arange(-140.0, 140.0) * 0.25
    module = nn.Trunc(9, 5, scale=0.25, narrow=True, rounding_mode="HALF_UP")
    expected = anybit.trunc(x.numpy(), 0.25, 0, 9, 4.0, 5, narrow=True, rounding_mode="HALF_UP")
    assert same(module(x), expected)
    assert same(
        nn.Trunc(9, 5, shift=1)(x, torch.tensor(0.25)),
        anybit.trunc(x.numpy(), 0.25, 0, 9, 0.5, 5),
    )


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_quantizers_keep_the_dtype_of_x(dtype: str) -> None:
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


def test_quantizers_convert_to_half_precision() -> None:
    x = sample(50)
    quantizer = nn.IntQuantizer(4)
    quantizer(x)
    half = copy.deepcopy(quantizer).half()
    expected = anybit.int_quant(x.numpy(), half.scale(x).item(), 0, 4)
    assert same(half(x), expected)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("granularity", ["per-tensor", "per-channel"])
def test_quantizers_accept_empty_batches(policy: Any, granularity: str) -> None:
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
def test_quantizers_ignore_nonfinite_values_in_states(bad: float) -> None:
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
        (lambda: nn.IntQuantizer(4, zeropt=math.nan), "zeropt must be an integer .* got nan"),
        (lambda: nn.IntQuantizer(4, zeropt=math.inf), "zeropt must be an integer .* got inf"),
        (lambda: nn.IntQuantizer(4, zeropt="mid"), "zeropt must be an integer .* got mid"),
        (lambda: nn.IntQuantizer(4, rounding_mode="NEAR"), "NEAR"),
        (lambda: nn.IntQuantizer(4, granularity="channel"), "got 'channel'"),
        (lambda: nn.IntQuantizer(4, scale="max"), '"learned", "absmax", "ema".*got \'max\''),
        (lambda: nn.IntQuantizer(4, scale=None), "a number or a tensor, got None"),
        (lambda: nn.Trunc(0, 4), "in_bits must be an integer >= 1, got 0"),
        (lambda: nn.Trunc(8, 2.5), "out_bits must be an integer >= 1, got 2.5"),
        (lambda: nn.Trunc(8, 4, rounding_mode="NEAR"), "NEAR"),
        (lambda: nn.Trunc(8, 4, shift=1.5), "shift must be an integer or None, got 1.5"),
        (lambda: nn.Trunc(8, 4, scale=math.nan), "scale must be finite and > 0, got nan"),
        (lambda: nn.Trunc(8, 4, scale=torch.tensor([1.0, 0.0])), r"> 0, got tensor\(\[1., 0.\]"),
        (lambda: nn.IntQuantizer(4, scale=0.0), "scale must be finite and > 0, got 0.0"),
        (lambda: nn.IntQuantizer(4, scale=math.nan), "got nan"),
        (lambda: nn.IntQuantizer(4, scale=torch.ones(3)), 'granularity="per-channel"'),
        (lambda: nn.IntQuantizer(4, scale="ema", momentum=1.0), "momentum must be in"),
        (lambda: nn.BipolarQuantizer(scale="absmax"), '"absmean"'),
        (
            lambda: nn.FloatQuantizer("float8"),
            'unknown format "float8"; did you mean "float8_e4m3fn"',
        ),
        (
            lambda: nn.FloatQuantizer("e8m0"),
            r"range excludes 3.40282e\+38.*scale=NUMBER",
        ),
        (lambda: nn.quantizer("e8m7 absmax"), '"absmax" is computed in float32.*scale=NUMBER'),
        (
            lambda: nn.FloatQuantizer(formats.FloatFormat(2, 1, 900), scale="ema"),
            r"float32, whose range excludes 1\.4.*e-270.*a format within that range",
        ),
        (
            lambda: nn.IntQuantizer(4, granularity="per-channel", channels=2, scale=torch.ones(3)),
            "2 channels, but 3 scales",
        ),
    ],
)
def test_quantizers_refuse_invalid_arguments(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_float_quantizer_of_formats_beyond_float32() -> None:
    """Use fixed scales; formats within the range of bfloat16 support all policies."""
    x = torch.tensor([0.3, -5.0, 1e30])
    result = nn.FloatQuantizer("e8m0", scale=1.0)(x)
    assert same(result, anybit.float_quant(x.numpy(), 1.0, 8, 0, 127, 2.0**128))
    narrower = formats.FloatFormat(8, 0, max_val=2.0**127)
    quantizer = nn.FloatQuantizer(narrower, scale="absmax")
    assert same(quantizer(x), anybit.float_quant(x.numpy(), quantizer.scale(x), *narrower))


def test_int_quantizer_accepts_numpy_bits() -> None:
    assert nn.IntQuantizer(np.uint8(8), scale="absmax").scale(torch.tensor([127.0])) == 1.0


def test_quantizers_refuse_uninitialized_scales() -> None:
    x = sample(3, 2)
    for policy in ("learned", "ema"):
        with pytest.raises(RuntimeError, match="run one batch in training mode"):
            nn.IntQuantizer(4, scale=policy).eval()(x)
        with pytest.raises(RuntimeError, match="unknown; pass channels="):
            nn.IntQuantizer(4, granularity="per-channel", scale=policy)(x)
    with pytest.raises(RuntimeError, match="bias_quantizer of a layer"):
        nn.IntQuantizer(16, scale="accumulator")(x)


def test_quantizers_refuse_other_channels() -> None:
    quantizer = nn.IntQuantizer(4, granularity="per-channel", channels=3)
    with pytest.raises(ValueError, match="x must have 3 channels on axis 1, got shape"):
        quantizer(sample(3, 2))
    with pytest.raises(ValueError, match="axis 1 of the channels: x of shape"):
        quantizer(sample(3))
