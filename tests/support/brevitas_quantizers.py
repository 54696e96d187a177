# SPDX-License-Identifier: Apache-2.0
"""Brevitas' quantizers as functions of a tensor and its parameters."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="Brevitas is made of it")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("brevitas", reason="it is the other side")
    import brevitas.quant as presets
    from brevitas import nn as qnn
    from brevitas.core.bit_width import BitWidthConst
    from brevitas.core.bit_width.float import ComputeMaxMantissa
    from brevitas.core.function_wrapper import (
        CeilSte,
        FloatClamp,
        FloorSte,
        Identity,
        RoundSte,
        RoundToZeroSte,
        TensorClamp,
    )
    from brevitas.core.quant import BinaryQuant, ClampedBinaryQuant, IntQuant, TruncIntQuant
    from brevitas.core.quant.float import FloatQuant
    from brevitas.core.utils import StatelessBuffer

from anybit import formats  # noqa: E402

__all__ = [
    "FORMATS",
    "MODES",
    "BinaryQuant",
    "ClampedBinaryQuant",
    "ConstantModule",
    "brevitas_float_quantizer",
    "brevitas_int_quantizer",
    "brevitas_trunc",
    "presets",
    "qnn",
    "tie_values",
    "torch",
]

MODES = {"ROUND": RoundSte, "FLOOR": FloorSte, "CEIL": CeilSte, "DOWN": RoundToZeroSte}
Tensor = Any


class ConstantModule(torch.nn.Module):
    """A scale for those parts of Brevitas that ask a module for it."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, *_: Any) -> Tensor:
        return self.scale


def tie_values() -> Tensor:
    """Ties, limits of few bits and their neighbours, zeros, infinities, NaN; and random ones."""
    made = torch.Generator().manual_seed(0)
    ties = torch.arange(-80, 81) / 4
    powers = torch.exp2(torch.arange(-20.0, 12.0))
    near = [torch.nextafter(powers, torch.tensor(limit)) for limit in (0.0, math.inf)]
    spread = torch.exp2(torch.randint(-20, 12, (2000,), generator=made).float())
    other = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 1e30, -1e30])
    positive = torch.cat([ties, powers, *near, torch.randn(2000, generator=made) * spread])
    return torch.cat([positive, -positive, other])


def brevitas_int_quantizer(
    signed: bool, narrow: bool, mode: str = "ROUND"
) -> Callable[..., Tensor]:
    module = IntQuant(narrow, signed, Identity(), MODES[mode]())
    return lambda x, scale, zeropt, bits: module(scale, zeropt, bits, x)


FORMATS = {
    "e4m3": formats.float8_e4m3fn,
    "e5m2": formats.float8_e5m2,
    "e2m1": formats.float4_e2m1fn,
    "e2m3": formats.FloatFormat(2, 3),
    "e3m2": formats.FloatFormat(3, 2),
    "e1m2": formats.FloatFormat(1, 2),
    "e8m7": formats.FloatFormat(8, 7),
}


def brevitas_float_quantizer(
    format: formats.FloatFormat, scale: Tensor, signed: bool = True, mode: str = "ROUND"
) -> Any:
    exponent, mantissa, bias, max_val = format
    clamp = FloatClamp(TensorClamp(), signed, max_available_float=max_val)
    widths = [StatelessBuffer(torch.tensor(float(number))) for number in (exponent, mantissa, bias)]
    module = FloatQuant(
        signed,
        *widths,
        clamp,
        Identity(),
        ComputeMaxMantissa(),
        scaling_impl=ConstantModule(scale),
        float_to_int_impl=MODES[mode](),
    )
    return lambda x: module(x)[0]


def brevitas_trunc(narrow: bool, mode: str) -> Any:
    return TruncIntQuant(MODES[mode](), BitWidthConst(4), narrow_range=narrow)
