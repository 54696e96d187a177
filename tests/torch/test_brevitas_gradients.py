# SPDX-License-Identifier: Apache-2.0
"""Gradients of Brevitas' quantizers and of ours: equal where the formula is, and else by name.

They are compared element by element, with one scale per element, and with powers of two, for which
each formula is exact in float32.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
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
    tie_values,
    torch,
)

import anybit.torch as ours

pytestmark = pytest.mark.filterwarnings("ignore")

SIGNS = list(product((True, False), repeat=2))  # signed and narrow
Tensor = Any


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Return gradients by input. Inputs have x's shape, so that there are no sums."""
    leaves = [value.clone().requires_grad_() for value in inputs]
    return list(torch.autograd.grad(function(*leaves).sum(), leaves))


def finite() -> Tensor:
    x = tie_values()
    return x[x.isfinite() & (x.abs() < 2.0**20) & (x.abs() > 2.0**-30)]


def everywhere(value: float) -> Tensor:
    """Return one parameter per element of `finite()`."""
    return torch.full_like(finite(), value)


def rim(x: Tensor, signed: bool, narrow: bool, scale: float, zeropt: float) -> Tensor:
    """Return where x is outside of the range of 4 bits, and its rounded value inside."""
    lowest, highest = (-8 + narrow, 7) if signed else (0, 15 - narrow)
    y = x / scale + zeropt
    outside = (y < lowest) | (y > highest)
    return outside & (y.round() >= lowest) & (y.round() <= highest)


@pytest.mark.parametrize(("signed", "narrow"), SIGNS)
def test_int_quant_gradients_equal_brevitas(signed: bool, narrow: bool) -> None:
    """Compare x, scale, zero-point and bit-width, except next to the limits of the range."""
    for scale, zeropt in product((1.0, 0.25), (0.0, 3.0)):
        inputs = (finite(), *map(everywhere, (scale, zeropt, 4.0)))
        theirs = gradients(brevitas_int_quantizer(signed, narrow), *inputs)
        mine = gradients(
            lambda *arguments: ours.int_quant(*arguments, signed=signed, narrow=narrow), *inputs
        )
        compared = ~rim(finite(), signed, narrow, scale, zeropt)
        assert 0.5 < compared.float().mean() < 1
        for a, b in zip(theirs, mine, strict=True):
            # 0 and -0, and the last bit of 2^b * log(2), are left to each.
            torch.testing.assert_close(a[compared], b[compared], rtol=1e-6, atol=0)
        assert torch.equal(theirs[0][compared], mine[0][compared])
        assert torch.equal(theirs[1][compared], mine[1][compared])


def test_int_quant_gradients_at_range_limits_differ_from_brevitas() -> None:
    """Show a deviation: the operator clips before it rounds, Brevitas afterwards.

    7.25 rounds to 7, the highest code. Brevitas passes its gradient; here it is clipped.
    x = 7.25, 4 bits, scale 1: d/dx Brevitas 1, anybit 0; d/dscale Brevitas -0.25, anybit 7.
    """
    inputs = [torch.tensor([item]) for item in (7.25, 1.0, 0.0, 4.0)]
    theirs = gradients(brevitas_int_quantizer(True, False), *inputs)
    mine = gradients(ours.int_quant, *inputs)
    assert [float(their) for their in theirs[:3]] == [1.0, -0.25, 0.0]
    assert [float(entry) for entry in mine[:3]] == [0.0, 7.0, -1.0]
    assert float(theirs[3]) == 0.0
    assert float(mine[3]) == pytest.approx(8 * np.log(2))


def test_float_quant_gradients_of_subnormal_and_clipped_values() -> None:
    """Compare where the exponent is independent of x: straight-through or clipped."""
    x = finite()
    flat = (x.abs() < 2.0**-7) | (x.abs() > 480)
    scale = torch.ones_like(x)
    theirs = gradients(lambda x, s: brevitas_float_quantizer(FORMATS["e4m3"], s)(x), x, scale)
    mine = gradients(lambda x, s: ours.float_quant(x, s, *FORMATS["e4m3"]), x, scale)
    assert flat.sum() > 100
    for a, b in zip(theirs, mine, strict=True):
        assert torch.equal(a[flat], b[flat])


def test_float_quant_gradients_of_normal_values_differ_from_brevitas() -> None:
    """Show a deviation: Brevitas also differentiates the exponent, through its logarithm.

    It gets result / x instead of the 1 of the straight-through estimator, and 0 for the scale.

    x = 1.1, e4m3, scale 1 gives 1.125: d/dx Brevitas 1.0227, anybit 1; d/dscale Brevitas 0,
    anybit 1.125 - 1.1.
    """
    x, scale = torch.tensor([1.1]), torch.tensor([1.0])
    theirs = gradients(lambda x, s: brevitas_float_quantizer(FORMATS["e4m3"], s)(x), x, scale)
    mine = gradients(lambda x, s: ours.float_quant(x, s, *FORMATS["e4m3"]), x, scale)
    assert float(theirs[0]) == pytest.approx(1.125 / 1.1)
    assert float(theirs[1]) == pytest.approx(0, abs=1e-6)
    assert float(mine[0]) == 1.0
    assert float(mine[1]) == float(torch.tensor(1.125) - torch.tensor(1.1))


def test_bipolar_quant_gradients_differ_from_brevitas() -> None:
    """Show a deviation: the slope of Brevitas is the scale, ours is that of a clipped identity.

    Brevitas: everywhere in BinaryQuant, and for |x| <= scale in ClampedBinaryQuant. Ours is 1 for
    |x| <= scale.

    x = 0.1, scale 0.25: d/dx Brevitas 0.25, anybit 1. x = 3: BinaryQuant 0.25, the others 0.
    """
    x, scale = torch.tensor([0.1, -0.25, 3.0]), torch.full((3,), 0.25)
    plain = gradients(lambda x, s: BinaryQuant(ConstantModule(s))(x)[0], x, scale)
    clamped = gradients(lambda x, s: ClampedBinaryQuant(ConstantModule(s))(x)[0], x, scale)
    mine = gradients(ours.bipolar_quant, x, scale)
    assert plain[0].tolist() == [0.25, 0.25, 0.25]
    assert clamped[0].tolist() == [0.25, 0.25, 0.0]
    assert mine[0].tolist() == [1.0, 1.0, 0.0]
    # For the scale, BinaryQuant and we have the sign; the clamp adds the scale beyond it.
    assert plain[1].tolist() == mine[1].tolist() == [1.0, -1.0, 1.0]
    assert clamped[1].tolist() == [1.0, -1.0, 1.25]


@pytest.mark.parametrize("mode", MODES)
def test_trunc_gradients_equal_brevitas(mode: str) -> None:
    """Compare x, scale and zero-point, except next to the limits of the range.

    The scale of the result follows that of x. Excluded codes are outside of the range before
    rounding and inside afterwards.
    """
    x = torch.arange(-300.0, 300.0) / 4
    inputs = (x, torch.full_like(x, 0.25), torch.full_like(x, 16.0))
    y = (x / 0.25 + 16) / 16
    rounded = MODES[mode]()(y)
    rim = ((y < -8) & (rounded >= -8)) | ((y > 7) & (rounded <= 7))
    theirs = gradients(
        lambda x, s, z: brevitas_trunc(False, mode)(x, s, z, torch.tensor(8.0), torch.tensor(True))[
            0
        ],
        *inputs,
    )
    mine = gradients(lambda x, s, z: ours.trunc(x, s, z, 8, s * 16, 4, rounding_mode=mode), *inputs)
    assert rim.any()
    for a, b in zip(theirs, mine, strict=True):
        assert torch.equal(a[~rim], b[~rim])
    assert (theirs[0][rim] == 1).all()
    assert (mine[0][rim] == 0).all()
