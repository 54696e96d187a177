# SPDX-License-Identifier: Apache-2.0
"""The quantizers: parameters and one operator call each."""

import numbers
from typing import Any

import torch

from anybit.formats import FloatFormat
from anybit.ops import RoundingMode
from anybit.ops.int_quant import codes_of
from anybit.torch.dispatch import operators
from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._statistics import Reach
from anybit.words.meant import formats_meant, unknown
from anybit.words.named_formats import FORMATS, format_named


class IntQuantizer(Quantizer):
    """Quantizes to integers of any width; `anybit.torch.int_quant` with a scale of its own.

    Args:
        bits: The width, an integer in 1 .. 32.
        signed, narrow: The range, as in `int_quant`. A single signed bit is refused:
            `BipolarQuantizer` gives -1 and +1.
        rounding_mode: One of the seven modes of `RoundingMode`.
        zeropt: The code that stands for 0: an integer in the range, below the largest code. The
            largest code Q of the scale is counted from it.
        granularity, axis, channels, scale, power_of_two, momentum: see `Quantizer`.

    >>> quantizer = IntQuantizer(4, scale="absmax")
    >>> quantizer(torch.tensor([0.5, 1.4, -7.0]))
    tensor([ 0.,  1., -7.])
    """

    def __init__(
        self,
        bits: int,
        signed: bool = True,
        narrow: bool = False,
        granularity: str = "per-tensor",
        rounding_mode: str = "ROUND",
        scale: str | float | torch.Tensor = "learned",
        *,
        zeropt: int = 0,
        axis: int | None = None,
        channels: int | None = None,
        power_of_two: bool = False,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(
            Reach(_largest(bits, signed, narrow, zeropt)),
            granularity=granularity,
            axis=axis,
            channels=channels,
            scale=scale,
            power_of_two=power_of_two,
            momentum=momentum,
        )
        self.bits = int(bits)
        self.signed = signed
        self.narrow = narrow
        self.zeropt = int(zeropt)
        self.rounding_mode = RoundingMode.parse(rounding_mode).name

    def quantized(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return operators.int_quant(
            x,
            scale,
            self.zeropt,
            self.bits,
            signed=self.signed,
            narrow=self.narrow,
            rounding_mode=self.rounding_mode,
        )

    def extra_repr(self) -> str:
        return (
            f"{self.bits}, signed={self.signed}, narrow={self.narrow}, zeropt={self.zeropt}, "
            f"rounding_mode={self.rounding_mode!r}"
        )


class FloatQuantizer(Quantizer):
    """Quantizes to a floating-point format; `anybit.torch.float_quant` with a scale of its own.

    Args:
        format: A `FloatFormat`, its name in `anybit.formats`, or eXmY for X exponent and Y mantissa
            bits without reserved codes. Q of the scale is its largest value.
        rounding_mode: One of the seven modes of `RoundingMode`.
        granularity, axis, channels, scale, power_of_two, momentum: see `Quantizer`.

    >>> FloatQuantizer("float4_e2m1fn", scale=1.0)(torch.tensor([0.6, 2.4, -9.0]))
    tensor([ 0.5000,  2.0000, -6.0000])
    """

    def __init__(
        self,
        format: FloatFormat | str,
        granularity: str = "per-tensor",
        rounding_mode: str = "ROUND",
        scale: str | float | torch.Tensor = "learned",
        *,
        axis: int | None = None,
        channels: int | None = None,
        power_of_two: bool = False,
        momentum: float = 0.9,
    ) -> None:
        found = format if isinstance(format, FloatFormat) else format_named(str(format))
        if found is None:
            known = [*FORMATS, "eXmY", "a FloatFormat"]
            raise ValueError(unknown("format", str(format), known, formats_meant(str(format))))
        super().__init__(
            Reach(found.largest),
            granularity=granularity,
            axis=axis,
            channels=channels,
            scale=scale,
            power_of_two=power_of_two,
            momentum=momentum,
        )
        self.format = found
        self.rounding_mode = RoundingMode.parse(rounding_mode).name

    def quantized(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return operators.float_quant(x, scale, *self.format, rounding_mode=self.rounding_mode)

    def extra_repr(self) -> str:
        return f"{self.format}, rounding_mode={self.rounding_mode!r}"


class BipolarQuantizer(Quantizer):
    """Quantizes to -scale and +scale; `anybit.torch.bipolar_quant` with a scale of its own.

    "absmax" is called "absmean" here: the scale is mean |x|, at which x is nearest to its result
    in the sense of least squares (Rastegari et al., 2016, https://arxiv.org/abs/1603.05279). That
    is also where a learned scale starts.

    Args:
        granularity, axis, channels, scale, power_of_two, momentum: see `Quantizer`.

    >>> BipolarQuantizer(scale="absmean")(torch.tensor([1.0, -3.0]))
    tensor([ 2., -2.])
    """

    def __init__(
        self,
        granularity: str = "per-tensor",
        scale: str | float | torch.Tensor = "learned",
        *,
        axis: int | None = None,
        channels: int | None = None,
        power_of_two: bool = False,
        momentum: float = 0.9,
    ) -> None:
        super().__init__(
            Reach(1.0, by_mean=True),
            granularity=granularity,
            axis=axis,
            channels=channels,
            scale=scale,
            power_of_two=power_of_two,
            momentum=momentum,
        )

    def quantized(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return operators.bipolar_quant(x, scale)


def _largest(bits: int, signed: bool, narrow: bool, zeropt: int) -> float:
    """The largest code, counted from the zero-point. ValueError if that makes no quantizer."""
    if not (isinstance(bits, numbers.Integral) and 1 <= bits <= 32):
        raise ValueError(f"bits must be an integer in 1 .. 32, got {bits!r}")
    bits = int(bits)
    codes = codes_of(bits, signed, narrow)
    lowest, highest = codes[0], codes[-1]
    if (bits == 1 and signed) or lowest == highest:
        raise ValueError(
            f"bits=1, signed={signed}, narrow={narrow} leaves the codes {lowest} .. {highest}; "
            "use BipolarQuantizer for -1 and +1, signed=False, narrow=False for 0 and 1"
        )
    if not (_is_whole(zeropt) and lowest <= zeropt < highest):
        raise ValueError(f"zeropt must be an integer in {lowest} .. {highest - 1}, got {zeropt}")
    return float(highest - zeropt)


def _is_whole(value: Any) -> bool:
    try:
        return bool(int(value) == value)
    except (TypeError, ValueError, OverflowError):  # no number, NaN, an infinity
        return False
