# SPDX-License-Identifier: Apache-2.0
"""What all quantizers share: a scale with its policy."""

import numbers
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from anybit.torch.nn._scales import AbsmaxScale, AccumulatorScale, Layout, Scale
from anybit.torch.nn._statistics import Reach
from anybit.torch.nn._stored_scales import EmaScale, FixedScale, LearnedScale

GRANULARITIES = ("per-tensor", "per-channel")
# Largest values of formats by which scales can be divided in float32, and their reciprocals.
_SMALLEST_REACH, _LARGEST_REACH = 2.0**-126, (2 - 2.0**-23) * 2.0**127


class Quantizer(torch.nn.Module):
    """The base of the quantizers: a scale, and a call of an operator in `quantized`.

    `forward(x)` gives x quantized, in x's shape and dtype; `forward(x, scale)` takes that scale
    instead of its own. `scale` is a module: `quantizer.scale(x)` is the scale for x, positive and
    shaped to broadcast to it.

    Scales. Each is at least 2^-64 and is kept positive by taking its magnitude.

    * "learned": scale = threshold / Q, for the largest code Q and a parameter, `threshold`: the
      largest magnitude that is not clipped. Learning rates that are right for weights are right
      for it, whatever Q is. In training mode its gradient is that of the operator times
      1 / sqrt(N), for N elements that share it (of a weight, or of one sample of an activation),
      much as in LSQ (Esser et al., 2020). It starts from the weight, or from the first batch in
      training mode, with a scale of 2 mean |x| / sqrt(Q), at most max |x| / Q; 1 / Q for zeros.
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
    take part in that batch; they start with the mean of their scales. Learned and "ema" scales are
    not taken from empty batches, and NaN and infinities count as 0 there.

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
        if scale is None:
            # `self.scale`, in a tenth of the time that `Module.__getattr__` takes.
            scale = self._modules["scale"](x)
        return self.quantized(x, scale)

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
    if isinstance(policy, numbers.Real | torch.Tensor):
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
    if policy != "accumulator" and not _SMALLEST_REACH <= reach.largest <= _LARGEST_REACH:
        raise ValueError(
            f'scale="{policy}" is computed in float32, which has no {reach.largest:g}, the largest '
            "value of the format; give scale= a number, or a format that ends within float32, "
            "such as FloatFormat(8, 0, max_val=2.0**127)"
        )
    if policy == "ema":
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}")
        return EmaScale(*common, momentum)
    scale: Scale = makers[policy](*common)
    return scale
