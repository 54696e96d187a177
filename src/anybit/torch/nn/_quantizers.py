# SPDX-License-Identifier: Apache-2.0
"""Quantizers: parameters and one operator call."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from anybit.formats import FloatFormat
from anybit.ops import RoundingMode
from anybit.ops.int_quant import codes
from anybit.torch import _operators as operators
from anybit.torch.nn._formats import FORMATS, format_named
from anybit.torch.nn._scales import (
    AbsmaxScale,
    AccumulatorScale,
    EmaScale,
    FixedScale,
    Layout,
    LearnedScale,
    Scale,
)
from anybit.torch.nn._statistics import Reach

GRANULARITIES = ("per-tensor", "per-channel")


class Quantizer(torch.nn.Module):
    """The base of the quantizers: a scale, and a call of an operator in `quantized`.

    `forward(x)` gives x quantized, in x's shape and dtype; `forward(x, scale)` takes that scale
    instead of its own. `scale` is a module: `quantizer.scale(x)` is the scale for x, positive and
    shaped to broadcast to it.

    Scales. Each is at least 2^-64 and is kept positive by taking its magnitude.

    * "learned": a parameter, learned as in LSQ (Esser et al., 2020): its gradient is that of the
      operator times 1 / sqrt(N Q), for N elements that share it (of a weight, or of one sample of
      an activation) and the largest code Q. It starts from the weight, or from the first batch in
      training mode, with 2 mean |x| / sqrt(Q), at most max |x| / Q; 1 / Q for zeros.
    * "absmax": max |x| / Q, recomputed for each x; no gradient flows through it. No element is
      clipped, unless `power_of_two` makes the scale smaller. For activations this is dynamic
      quantization.
    * "ema": for activations: the moving average of that over the batches in training mode,
      value = momentum * value + (1 - momentum) * new, updated before it is used. In eval mode it
      stays. It starts with the first batch.
    * "accumulator": for biases: the product of the scales of the layer's input and weight, so that
      the bias is an integer in the layer's accumulator. It counts as a constant for the gradient.
    * A number, or a tensor with one number for each channel: fixed.

    A scale that starts from the first batch is NaN before, and calls in eval mode raise
    RuntimeError. All states exist from the start, so that optimizers and DistributedDataParallel
    find them: the first batch changes values and no shapes. In a process group all ranks must
    take part in that batch; they start with the mean of their scales.

    Args:
        granularity: "per-tensor", or "per-channel" for one scale for each index of `axis`.
        axis: The axis of the channels; None is the axis of the output channels in weights and
            biases of a layer, of the input channels in its input, and 1 elsewhere.
        channels: The number of channels, where a layer does not tell: for learned, "ema" and
            fixed per-channel scales of quantizers that stand alone.
        power_of_two: Whether the scale is rounded to the nearest power of two, straight-through
            for the gradient.
        momentum: Of "ema".
    """

    scale: Scale

    def __init__(
        self,
        reach: Reach,
        *,
        granularity: str,
        axis: int | None,
        channels: int | None,
        scale: str | float | torch.Tensor,
        power_of_two: bool,
        momentum: float,
    ) -> None:
        super().__init__()
        if granularity not in GRANULARITIES:
            raise ValueError(
                f'granularity must be "per-tensor" or "per-channel", got {granularity!r}'
            )
        layout = Layout(granularity == "per-channel", axis, channels)
        self.scale = _scale(scale, reach, layout, power_of_two, momentum)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return self.quantized(x, self.scale(x) if scale is None else scale)

    def quantized(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The operator at that scale."""
        raise NotImplementedError

    def initialize(self, x: torch.Tensor) -> None:
        """Take the scale from x, as the first batch would, if it is learned or "ema"."""
        self.scale.initialize(x)

    def settle(self, axis: int, sizes: Mapping[int, int], batch_axis: int | None) -> None:
        """Take from the layer what the tensor looks like that will be quantized.

        `axis` is that of its channels, `sizes` the sizes of the axes that are known.
        """
        layout = replace(self.scale.layout, batch_axis=batch_axis)
        if layout.per_channel:
            axis = axis if layout.axis is None else layout.axis
            channels = sizes.get(axis, layout.channels)
            if layout.channels not in (None, channels):
                raise ValueError(
                    f"the quantizer has {layout.channels} channels, its tensor {channels}"
                )
            layout = replace(layout, axis=axis, channels=channels)
        self.scale.lay_out(layout)


def _scale(
    policy: str | float | torch.Tensor,
    reach: Reach,
    layout: Layout,
    power_of_two: bool,
    momentum: float,
) -> Scale:
    common = (reach, layout, power_of_two)
    if not isinstance(policy, str):
        return FixedScale(*common, policy)
    makers: dict[str, Any] = {
        "learned": LearnedScale,
        "absmean" if reach.by_mean else "absmax": AbsmaxScale,
        "ema": EmaScale,
        "accumulator": AccumulatorScale,
    }
    if policy not in makers:
        known = ", ".join(f'"{name}"' for name in makers)
        raise ValueError(f"scale must be {known}, a number or a tensor, got {policy!r}")
    if policy == "ema":
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        return EmaScale(*common, momentum)
    scale: Scale = makers[policy](*common)
    return scale


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
        if not (isinstance(bits, int) and 1 <= bits <= 32):
            raise ValueError(f"bits must be an integer in 1 .. 32, got {bits!r}")
        lowest, highest = codes(bits, signed, narrow)
        if (bits == 1 and signed) or lowest == highest:
            raise ValueError(
                f"bits=1, signed={signed}, narrow={narrow} leaves the codes {lowest} .. {highest}; "
                "use BipolarQuantizer for -1 and +1, signed=False, narrow=False for 0 and 1"
            )
        if not (zeropt == int(zeropt) and lowest <= zeropt < highest):
            raise ValueError(
                f"zeropt must be an integer in {lowest} .. {highest - 1}, got {zeropt}"
            )
        super().__init__(
            Reach(float(highest - zeropt)),
            granularity=granularity,
            axis=axis,
            channels=channels,
            scale=scale,
            power_of_two=power_of_two,
            momentum=momentum,
        )
        self.bits = bits
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
        found = format if isinstance(format, FloatFormat) else format_named(format)
        if found is None:
            known = ", ".join(FORMATS)
            raise ValueError(f"format must be a FloatFormat, eXmY, {known}, got {format!r}")
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
