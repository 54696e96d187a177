# SPDX-License-Identifier: Apache-2.0
"""Quantizers: a scale with its policy, and one operator call each."""

import numbers
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from anybit.formats import FloatFormat
from anybit.ops import RoundingMode
from anybit.ops.int_quant import get_codes
from anybit.quant_types.named_formats import FORMATS, find_format
from anybit.quant_types.suggestions import describe_unknown, suggest_float_formats
from anybit.torch.dispatch import operators
from anybit.torch.nn._dynamic_scale import (
    DynamicScale,
    check_dynamic_integers,
    make_dynamic_scale,
)
from anybit.torch.nn._scales import (
    AbsmaxScale,
    AccumulatorScale,
    EmaScale,
    FixedScale,
    Layout,
    LearnedScale,
    Scale,
    ValueRange,
)

GRANULARITIES = ("per-tensor", "per-channel", "per-row")
# Bounds of the largest value of a format, so that float32 holds it and its reciprocal.
_SMALLEST_RANGE, _LARGEST_RANGE = 2.0**-126, (2 - 2.0**-23) * 2.0**127


class Quantizer(torch.nn.Module):
    """Base of the quantizers: a scale, and one operator call in `quantize`.

    `forward(x)` returns x quantized, in x's shape and dtype; `forward(x, scale)` uses that scale
    instead of the quantizer's own. `scale` is a module: `quantizer.scale(x)` is the scale for x,
    positive and shaped to broadcast to it.

    Policies of the scale, which is at least 2^-64; a negative one counts by its magnitude:

    * "learned": scale = threshold / Q, with the largest code Q and a parameter `threshold`, the
      largest magnitude that is not clipped. Learning rates of weights suit it, whatever Q is. In
      training mode its gradient is that of the operator times 1 / sqrt(N), for N elements of a
      weight or of one sample that share it, similar to LSQ (Esser et al., 2020). It starts from the
      weight, or from the first batch in training mode, with a scale of 2 mean |x| / sqrt(Q), at
      most max |x| / Q; 1 / Q for zeros.
    * "absmax": max |x| / Q, recomputed for each x, without a gradient. No element is clipped,
      unless `power_of_two` makes the scale smaller. On activations this is dynamic quantization.
    * "dynamic", for activations in integers: per row or tensor, with exactly the values of
      `anybit.quantize`. Unsigned integers have a zero-point, computed from x, too. Both are
      constants for the gradient; that of x is the identity in training mode.
    * "ema", for activations: the moving average of that over the batches in training mode,
      value = momentum * value + (1 - momentum) * new, updated before it is used. It starts with the
      first batch, and does not change in eval mode.
    * "accumulator", for biases: the product of the scales of the layer's input and weight, so that
      the bias is an integer in the layer's accumulator. It is a constant for the gradient.
    * A number, or a tensor with one number per channel: fixed.

    A scale that starts from the first batch is NaN before; calls in eval mode then raise
    RuntimeError. All states exist from the start, so that optimizers and DistributedDataParallel
    find them: the first batch changes values, not shapes. In a process group all ranks must take
    part in that batch; they start with the mean of their scales. Empty batches do not initialize a
    learned or "ema" scale, and NaN and infinities count as 0.

    Args:
        granularity: "per-tensor", "per-channel" for one scale per index of `axis`, or, if dynamic,
            "per-row": rows lie along the axes that a layer reduces, or else along the last axis.
        axis: The channel axis. None stands for the output channels in weights and biases of a
            layer, the input channels in its input, and 1 elsewhere.
        channels: The number of channels, for learned, "ema" and fixed per-channel scales of
            quantizers outside of a layer.
        power_of_two: Whether the scale is rounded to the nearest power of two, straight-through
            for the gradient.
        momentum: The momentum of "ema".
    """

    scale: Scale

    def __init__(
        self,
        value_range: ValueRange,
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
        if granularity == "per-row" and not (isinstance(scale, str) and scale == "dynamic"):
            raise ValueError(f'granularity="per-row" needs scale="dynamic", got {scale!r}')
        rows = (-1,) if granularity == "per-row" else ()
        layout = Layout(granularity == "per-channel", axis, channels, row_axes=rows)
        if isinstance(scale, str) and scale == "dynamic" and not isinstance(self, IntQuantizer):
            raise ValueError('dynamic is for integers; use "int8 dynamic"')
        self.scale = _make_scale(scale, value_range, layout, power_of_two, momentum)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        if scale is None:
            # This takes a tenth of the time of `self.scale`, which calls `Module.__getattr__`.
            scale = self._modules["scale"](x)
        return self.quantize(x, scale)

    def quantize(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Quantize x with a scale."""
        raise NotImplementedError

    def initialize(self, x: torch.Tensor) -> None:
        """Take the scale from x, as the first batch would, if it is learned or "ema"."""
        self.scale.initialize(x)

    def bind_axes(self, axis: int, sizes: Mapping[int, int], batch_axis: int | None) -> None:
        """Set the channel axis and the number of channels of the tensor to quantize.

        Args:
            axis: The channel axis, unless the quantizer has one.
            sizes: The sizes of the axes that are fixed.
            batch_axis: The axis of samples; None for parameters.
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
        self.scale.set_layout(layout)

    def bind_rows(self, axes: tuple[int, ...]) -> None:
        """Set the axes of a row, counted from the end, if there is a scale per row."""
        if self.scale.layout.per_row:
            self.scale.set_layout(replace(self.scale.layout, row_axes=axes))


def _make_scale(
    policy: str | float | torch.Tensor,
    value_range: ValueRange,
    layout: Layout,
    power_of_two: bool,
    momentum: float,
) -> Scale:
    common = (value_range, layout, power_of_two)
    if isinstance(policy, numbers.Real | torch.Tensor):
        return FixedScale(*common, policy)
    makers: dict[str, Any] = {
        "learned": LearnedScale,
        "absmean" if value_range.by_mean else "absmax": AbsmaxScale,
        "ema": EmaScale,
        "accumulator": AccumulatorScale,
        "dynamic": make_dynamic_scale,
    }
    if policy not in makers:
        names = ", ".join(f'"{name}"' for name in makers)
        raise ValueError(f"scale must be {names}, a number or a tensor, got {policy!r}")
    if policy != "accumulator" and not _SMALLEST_RANGE <= value_range.largest <= _LARGEST_RANGE:
        raise ValueError(
            f'scale="{policy}" is computed in float32, whose range excludes '
            f"{value_range.largest:g}, the largest value of the format; pass scale=NUMBER or a "
            "format within that range, "
            "such as FloatFormat(8, 0, max_val=2.0**127)"
        )
    if policy == "ema":
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        return EmaScale(*common, momentum)
    scale: Scale = makers[policy](*common)
    return scale


class IntQuantizer(Quantizer):
    """Quantizer to integers of any width; `anybit.torch.int_quant` with a scale of its own.

    Args:
        bits: The width, an integer in 1 .. 32.
        signed, narrow: The range, as in `int_quant`. For a single bit with a sign use
            `BipolarQuantizer`, with codes -1 and +1.
        rounding_mode: One of the seven modes of `RoundingMode`.
        zeropt: The code of 0: an integer in the range, below the largest code. The Q of the scale
            is the distance from it to the largest code.
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
        value_range = ValueRange(_get_largest(bits, signed, narrow, zeropt))
        if isinstance(scale, str) and scale == "dynamic":
            check_dynamic_integers(bits, zeropt)
        super().__init__(
            value_range,
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
        if isinstance(self.scale, DynamicScale):
            self.scale.asymmetric = not signed
        self.rounding_mode = RoundingMode.parse(rounding_mode).name

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        policy = self._modules["scale"]
        if scale is None and isinstance(policy, DynamicScale):
            return self._quantize(x, *policy.fit(x))
        return super().forward(x, scale)

    def quantize(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        policy = self._modules["scale"]
        if isinstance(policy, DynamicScale) and policy.asymmetric:
            raise ValueError(
                "the zero-points of dynamic unsigned integers need their own scales; "
                "leave the scale out"
            )
        return self._quantize(x, scale, None)

    def _quantize(
        self, x: torch.Tensor, scale: torch.Tensor, zeropt: torch.Tensor | None
    ) -> torch.Tensor:
        is_dynamic = self.training and isinstance(self._modules["scale"], DynamicScale)
        quantized = operators.int_quant(
            x.detach() if is_dynamic else x,
            scale,
            self.zeropt if zeropt is None else zeropt,
            self.bits,
            signed=self.signed,
            narrow=self.narrow,
            rounding_mode=self.rounding_mode,
        )
        if not is_dynamic:
            return quantized
        # The operator clips a maximum whose quotient is rounded up, and gives it no gradient.
        # A difference keeps the sign of 0; the sum -0 + 0 does not.
        return quantized - (x.detach() - x)

    def extra_repr(self) -> str:
        return (
            f"{self.bits}, signed={self.signed}, narrow={self.narrow}, zeropt={self.zeropt}, "
            f"rounding_mode={self.rounding_mode!r}"
        )


class FloatQuantizer(Quantizer):
    """Quantizer to a floating-point format; `anybit.torch.float_quant` with its own scale.

    Args:
        format: A `FloatFormat`, its name in `anybit.formats`, or eXmY for X exponent and Y mantissa
            bits without reserved codes. The Q of the scale is its largest value.
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
        parsed = format if isinstance(format, FloatFormat) else find_format(str(format))
        if parsed is None:
            names = [*FORMATS, "eXmY", "a FloatFormat"]
            raise ValueError(
                describe_unknown("format", str(format), names, suggest_float_formats(str(format)))
            )
        super().__init__(
            ValueRange(parsed.largest),
            granularity=granularity,
            axis=axis,
            channels=channels,
            scale=scale,
            power_of_two=power_of_two,
            momentum=momentum,
        )
        self.format = parsed
        self.rounding_mode = RoundingMode.parse(rounding_mode).name

    def quantize(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return operators.float_quant(x, scale, *self.format, rounding_mode=self.rounding_mode)

    def extra_repr(self) -> str:
        return f"{self.format}, rounding_mode={self.rounding_mode!r}"


class BipolarQuantizer(Quantizer):
    """Quantizer to -scale and +scale; `anybit.torch.bipolar_quant` with a scale of its own.

    "absmean" replaces "absmax": the scale is mean |x|, which has the least squared error (Rastegari
    et al., 2016, https://arxiv.org/abs/1603.05279). A learned scale starts there, too.

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
            ValueRange(1.0, by_mean=True),
            granularity=granularity,
            axis=axis,
            channels=channels,
            scale=scale,
            power_of_two=power_of_two,
            momentum=momentum,
        )

    def quantize(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return operators.bipolar_quant(x, scale)


def _get_largest(bits: int, signed: bool, narrow: bool, zeropt: int) -> float:
    """Return the largest code minus the zero-point; ValueError for invalid arguments."""
    if not (isinstance(bits, numbers.Integral) and 1 <= bits <= 32):
        raise ValueError(f"bits must be an integer in 1 .. 32, got {bits!r}")
    bits = int(bits)
    codes = get_codes(bits, signed, narrow)
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
    except (TypeError, ValueError, OverflowError):  # not a number, NaN, an infinity
        return False
