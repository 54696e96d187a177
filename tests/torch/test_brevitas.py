# SPDX-License-Identifier: Apache-2.0
"""Brevitas' quantizers and ours on the same parameters: the same bits, and where not, by name."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from brevitas_quantizers import (
    FORMATS,
    MODES,
    BinaryQuant,
    ClampedBinaryQuant,
    ConstantModule,
    brevitas_float_quantizer,
    brevitas_int_quantizer,
    brevitas_trunc,
    presets,
    qnn,
    tie_values,
    torch,
)

import anybit.torch as ours

pytestmark = pytest.mark.filterwarnings("ignore")

SIGNS = list(product((True, False), repeat=2))  # signed and narrow
Tensor = Any


def differing(theirs: Tensor, mine: Tensor) -> Tensor:
    """Return where bits differ; NaN equals NaN."""
    assert theirs.dtype == mine.dtype == torch.float32
    same = theirs.detach().view(torch.int32) == mine.detach().view(torch.int32)
    return ~(same | (theirs.isnan() & mine.isnan()))


def assert_same_bits(theirs: Tensor, mine: Tensor) -> None:
    places = differing(theirs, mine)
    assert not places.any(), (theirs[places][:5], mine[places][:5])


# IntQuant


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("signed", "narrow"), SIGNS)
def test_int_quant_equals_brevitas(signed: bool, narrow: bool, mode: str) -> None:
    """Ignore signs of zeros: see `test_int_quant_equals_brevitas_in_signs_of_zeros`."""
    quantize = brevitas_int_quantizer(signed, narrow, mode)
    x = tie_values()
    for scale, zeropt, bits in product((1.0, 0.25, 0.3, 1e-3), (0.0, 3.0, -2.0), (1.0, 4.0, 8.0)):
        parameters = [torch.tensor(item) for item in (scale, zeropt, bits)]
        theirs = quantize(x, *parameters)
        mine = ours.int_quant(x, *parameters, signed=signed, narrow=narrow, rounding_mode=mode)
        assert_same_bits(theirs + 0.0, mine + 0.0)
        if signed and not (narrow and bits == 1):  # where there are codes below 0
            assert_same_bits(theirs, mine)


def test_int_quant_equals_brevitas_in_signs_of_zeros() -> None:
    """Deviation: Brevitas clips after rounding, and -0 is not below 0. QONNX clips before.

    x = -0.25, unsigned, scale 1: Brevitas -0.0, anybit 0.0. So does Trunc: x = -1, CEIL.
    """
    x, one, bits = torch.tensor([-0.25, -0.5, -0.75]), torch.tensor(1.0), torch.tensor(4.0)
    theirs = brevitas_int_quantizer(signed=False, narrow=False)(x, one, one * 0, bits)
    mine = ours.int_quant(x, one, 0, bits, signed=False)
    assert theirs.signbit().tolist() == [True, True, False]
    assert mine.signbit().tolist() == [False, False, False]
    assert torch.equal(theirs, mine)
    inputs, unsigned = (one, one * 0, one * 8), torch.tensor(False)
    theirs, out_scale, _, bits = brevitas_trunc(False, "CEIL")(-one, *inputs, unsigned)
    mine = ours.trunc(-one, *inputs, out_scale, bits, signed=False, rounding_mode="CEIL")
    assert (float(theirs), float(mine)) == (0.0, 0.0)
    assert theirs.signbit()
    assert not mine.signbit()


def int_quantizers() -> Iterator[tuple[str, Callable[[], Any]]]:
    weight = {"bias": False, "weight_bit_width": 4}
    yield "signed", lambda: qnn.QuantIdentity(bit_width=4)
    yield "unsigned", lambda: qnn.QuantReLU(bit_width=3)
    for name in ("ShiftedUint8ActPerTensorFloat", "Int8ActPerTensorFixedPoint"):
        yield name, lambda name=name: qnn.QuantIdentity(act_quant=getattr(presets, name))
    yield "weight", lambda: qnn.QuantConv2d(3, 5, 3, **weight)
    yield (
        "weight per channel",
        lambda: qnn.QuantConv2d(3, 5, 3, weight_scaling_per_output_channel=True, **weight),
    )
    for name in ("Int8WeightPerTensorFixedPoint", "ShiftedUint8WeightPerTensorFloat"):
        preset = getattr(presets, name)
        yield name, lambda preset=preset: qnn.QuantConv2d(3, 5, 3, bias=False, weight_quant=preset)


@pytest.mark.parametrize("make", [make for _, make in int_quantizers()], ids=dict(int_quantizers()))
def test_int_quantizer_equals_brevitas(make: Callable[[], Any]) -> None:
    """Call our operator with scale and zero-point of Brevitas' modules."""
    torch.manual_seed(0)
    module = make()
    if hasattr(module, "quant_weight"):
        x, proxy = module.weight, module.weight_quant
        result = module.eval().quant_weight()
    else:
        x, proxy = torch.randn(64, 50) * 3, module.act_quant
        module.return_quant_tensor = True
        module(x)
        result = module.eval()(x)
        x = x.relu() if isinstance(module, qnn.QuantReLU) else x
    mine = ours.int_quant(
        x,
        result.scale,
        result.zero_point,
        result.bit_width,
        signed=result.signed,
        narrow=proxy.is_narrow_range,
        rounding_mode=str(proxy.rounding_mode),
    )
    assert_same_bits(result.value + 0.0, mine + 0.0)


# FloatQuant


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_float_quant_equals_brevitas(name: str, signed: bool) -> None:
    x = tie_values()
    for scale in (1.0, 0.25, 0.3, 7.0):
        theirs = brevitas_float_quantizer(FORMATS[name], torch.tensor(scale), signed)(x)
        assert_same_bits(theirs, ours.float_quant(x, scale, *FORMATS[name], signed=signed))


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "ROUND"])
def test_float_quant_equals_brevitas_in_directed_modes(mode: str) -> None:
    """Compare except floats next to a power of two, and the sign of zeros in DOWN."""
    x, one = tie_values(), torch.tensor(1.0)
    mine = ours.float_quant(x, 1.0, *FORMATS["e4m3"], rounding_mode=mode)
    places = differing(
        brevitas_float_quantizer(FORMATS["e4m3"], one, mode=mode)(x) + 0.0, mine + 0.0
    )
    below, _ = torch.frexp(x[places].abs())
    assert (below > 1 - 2.0**-20).all()
    assert places.any()


def test_float_quant_keeps_the_sign_of_zero() -> None:
    """Deviation: rounding to zero is sign(x) * floor(|x|) in Brevitas, which makes 0 of -0."""
    zero, one = torch.tensor([-0.0]), torch.tensor(1.0)
    theirs = brevitas_float_quantizer(FORMATS["e4m3"], one, mode="DOWN")(zero)
    mine = ours.float_quant(zero, 1.0, *FORMATS["e4m3"], rounding_mode="DOWN")
    assert (bool(theirs.signbit()), bool(mine.signbit())) == (False, True)


def test_float_quant_rounds_correctly_below_a_power_of_two() -> None:
    """Deviation: Brevitas takes the exponent from a logarithm in float32, which rounds up.

    x = 7.9999995, e4m3, FLOOR: Brevitas 7.0, anybit 7.5; the format's grid there has steps of 0.5.
    """
    x = torch.nextafter(torch.tensor([8.0]), torch.tensor(0.0))
    theirs = brevitas_float_quantizer(FORMATS["e4m3"], torch.tensor(1.0), mode="FLOOR")(x)
    mine = ours.float_quant(x, 1.0, *FORMATS["e4m3"], rounding_mode="FLOOR")
    assert (float(theirs), float(mine)) == (7.0, 7.5)


FLOAT_PRESETS = {
    "Fp8e4m3OCPWeightPerTensorFloat": "e4m3",
    "Fp8e4m3OCPWeightPerChannelFloat": "e4m3",
    "Fp8e5m2OCPWeightPerTensorFloat": "e5m2",
    "Fp8e4m3OCPActPerTensorFloat": "e4m3",
}


@pytest.mark.parametrize("preset", FLOAT_PRESETS)
def test_float_quantizer_equals_brevitas(preset: str) -> None:
    torch.manual_seed(0)
    chosen, format = getattr(presets, preset), FORMATS[FLOAT_PRESETS[preset]]
    if "Weight" in preset:
        module = qnn.QuantLinear(32, 7, bias=False, weight_quant=chosen).eval()
        x, result = module.weight, module.quant_weight()
    else:
        module = qnn.QuantIdentity(act_quant=chosen, return_quant_tensor=True)
        x = torch.randn(64, 50)
        module(x)
        result = module.eval()(x)
    widths = [result.exponent_bit_width, result.mantissa_bit_width, result.exponent_bias]
    assert [float(width) for width in widths] == [float(item) for item in list(format)[:3]]
    mine = ours.float_quant(x, result.scale, *widths, format.max_val)
    assert_same_bits(result.value, mine)


# BipolarQuant


@pytest.mark.parametrize("kind", [BinaryQuant, ClampedBinaryQuant])
def test_bipolar_quant_equals_brevitas(kind: Any) -> None:
    x = tie_values()
    for scale in (1.0, 0.25, 0.3):
        theirs = kind(ConstantModule(torch.tensor(scale)))(x)[0]
        assert_same_bits(theirs, ours.bipolar_quant(x, scale))


# Trunc


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("signed", "narrow"), SIGNS)
def test_trunc_equals_brevitas(signed: bool, narrow: bool, mode: str) -> None:
    codes = torch.arange(-300.0, 300.0)
    for scale, zeropt in product((1.0, 0.25, 0.3), (0.0, 3.0, 16.0)):
        inputs = [torch.tensor(item) for item in (scale, zeropt, 8.0)]
        x = (codes - zeropt) * scale
        theirs, out_scale, _, bits = brevitas_trunc(narrow, mode)(x, *inputs, torch.tensor(signed))
        mine = ours.trunc(
            x, *inputs, out_scale, bits, signed=signed, narrow=narrow, rounding_mode=mode
        )
        assert_same_bits(theirs + 0.0, mine + 0.0)
        if signed:
            assert_same_bits(theirs, mine)
