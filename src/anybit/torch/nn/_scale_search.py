# SPDX-License-Identifier: Apache-2.0
"""Search of scales: the least error of the layers that use a tensor.

The search is that of `anybit.quantize`: the same candidate ranges and the same rule, on layers of
PyTorch. `anybit.quantize` scales channels with outliers down. Here they stay, so that shorter
ranges are candidates, too. Such a range clips values of a single channel, so that the number of
values per channel decides whether there are enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anybit.ops.int_quant import get_codes
from anybit.ptq.algorithms.range_clipping import (
    compute_headroom,
    compute_whole_range,
    generate_clipped_ranges,
    may_clip,
    select_candidate,
)
from anybit.ptq.algorithms.round_to_nearest import round_to_nearest
from anybit.ptq.calibration.tensor_statistics import TensorStatistics
from anybit.ptq.config import DEFAULT, RangeConfig
from anybit.ptq.graph.targets import WeightInput
from anybit.quant_types.spec import QuantSpec
from anybit.quant_types.spec_parser import BipolarFormat, IntegerFormat, NumberFormat
from anybit.torch.nn._quantizers import BipolarQuantizer, FloatQuantizer, IntQuantizer, Quantizer
from anybit.torch.nn._words import format_spec

Consumer = Callable[[torch.Tensor], torch.Tensor]
"""A layer that uses a quantized tensor, as a function of it."""


@dataclass(frozen=True)
class ScaleSearchConfig:
    """Range candidates of the scales of activations.

    Attributes:
        ranges: The candidates of `anybit.quantize`, for quantizers with one scale.
        channel_fractions: Shares of the largest magnitude of each channel at which it is clipped.
        short_fractions: Further shares, since channels with outliers are not scaled down.
    """

    ranges: RangeConfig = DEFAULT.ranges
    channel_fractions: tuple[float, ...] = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
    short_fractions: tuple[float, ...] = (
        *(0.32, 0.25, 0.2, 0.16, 0.125, 0.1, 0.08),
        *(0.064, 0.05, 0.04, 0.032, 0.025, 0.02),
    )


_CONFIG = ScaleSearchConfig()


@dataclass(frozen=True)
class ScaleCandidate:
    """A scale, and the noise power over the signal power of the outputs of the consumers."""

    scale: torch.Tensor
    error: float


class ScaleSearch:
    """Search of the scale of a quantizer.

    Args:
        quantizer: The quantizer.
        consumers: The layers that use its tensor, with float weights and with quantized weights.
        channels: The number of channels that the consumers see.
        config: The candidates.
    """

    def __init__(
        self,
        quantizer: Quantizer,
        consumers: Sequence[tuple[Consumer, Consumer]],
        channels: int,
        config: ScaleSearchConfig = _CONFIG,
    ) -> None:
        self._config = config
        self._quantizer = quantizer
        self._consumers = consumers
        self._channels = channels
        self._references: dict[int, list[torch.Tensor]] = {}

    def select(
        self,
        statistics: TensorStatistics,
        samples: Sequence[torch.Tensor],
        held_out: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Return the scale with the least error on samples, if held-out samples confirm it."""
        bits, config, limits = get_bits(self._quantizer), self._config, self._config.ranges
        if self._quantizer.scale.layout.per_channel:
            assert statistics.channels is not None
            low, high = statistics.channels * compute_headroom(bits, statistics, limits)
            shorter = [(low * fraction, high * fraction) for fraction in config.channel_fractions]
        else:
            low, high = compute_whole_range(bits, statistics, limits)
            shorter = [*generate_clipped_ranges(statistics, limits)]
        shorter += [(low * fraction, high * fraction) for fraction in config.short_fractions]
        clips = bits < limits.wide_bits and may_clip(bits, statistics.count / self._channels)
        ranges = [(low, high), *(shorter if clips else ())]
        best = select_candidate(
            [compute_range_scale(self._quantizer, *map(np.asarray, bounds)) for bounds in ranges],
            lambda scale: self._evaluate(scale, samples),
            lambda scale: self._evaluate(scale, held_out),
        )
        return best.scale

    def _evaluate(self, scale: torch.Tensor, samples: Sequence[torch.Tensor]) -> ScaleCandidate:
        """Return the mean error of the consumers."""
        noise, signal = np.zeros(len(self._consumers)), np.zeros(len(self._consumers))
        for x in samples:
            references = self._get_float_outputs(x)
            quantized = quantize_with(self._quantizer, scale, x)
            for index, (_, consumer) in enumerate(self._consumers):
                noise[index] += _compute_power(consumer(quantized) - references[index])
                signal[index] += _compute_power(references[index])
        return ScaleCandidate(scale, float(np.mean(noise / np.where(signal > 0, signal, 1.0))))

    def _get_float_outputs(self, x: torch.Tensor) -> list[torch.Tensor]:
        if id(x) not in self._references:
            self._references[id(x)] = [consumer(x) for consumer, _ in self._consumers]
        return self._references[id(x)]


def quantize_with(quantizer: Quantizer, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Quantize x as the quantizer would with this scale stored."""
    state = quantizer.scale.state
    wide = torch.float64 if state.dtype == torch.float64 else torch.float32
    restricted = quantizer.scale.restrict(scale.to(x.device, wide))
    return quantizer(x, quantizer.scale.layout.broadcast(restricted, x))


def get_bits(quantizer: Quantizer) -> int:
    """Return the bit width of the codes."""
    kind = _get_format(quantizer)
    return 8 if kind is None else kind.bits


def compute_range_scale(quantizer: Quantizer, low: np.ndarray, high: np.ndarray) -> torch.Tensor:
    """Return the smallest scale that does not clip a range, or the ranges of channels.

    Values without codes, such as negative ones of an unsigned quantizer, are ignored.
    """
    largest = quantizer.scale.value_range.largest
    lowest = -largest
    if isinstance(quantizer, IntQuantizer):
        codes = get_codes(quantizer.bits, quantizer.signed, quantizer.narrow)
        lowest = codes[0] - quantizer.zeropt
    scale = np.maximum(high / largest, low / lowest if lowest else 0.0)
    with np.errstate(divide="ignore"):
        scale = np.exp2(np.ceil(np.log2(scale))) if quantizer.scale.power_of_two else scale
    # Any scale is exact for zeros; learning can start from this one.
    return torch.from_numpy(np.where(scale > 0, scale, 1 / largest).astype(np.float32))


def select_weight_scale(quantizer: Quantizer, weight: torch.Tensor) -> torch.Tensor | None:
    """Return the scale with the least squared error of a weight; None if it has no search."""
    kind = _get_format(quantizer)
    layout = quantizer.scale.layout
    one_sided = isinstance(quantizer, IntQuantizer) and (
        not quantizer.signed or quantizer.zeropt != 0
    )
    if kind is None or one_sided:
        return None
    scheme = QuantSpec(
        kind,
        format_spec(quantizer),
        per_channel=layout.per_channel,
        narrow=getattr(quantizer, "narrow", False),
        power_of_two=quantizer.scale.power_of_two,
    )
    axes = (layout.channel_axis(weight),) if layout.per_channel else ()
    array = weight.detach().float().cpu().numpy()
    rounded = round_to_nearest(array, WeightInput(0, axes, None), scheme, DEFAULT.weights)
    scale = torch.from_numpy(np.asarray(rounded.grid.scale))
    scale = scale.flatten() if layout.per_channel else scale.reshape(())
    # Any scale is exact for zeros; learning can start from this one.
    dims = layout.shared_axes(weight)
    largest = weight.detach().abs().amax(dim=dims) if dims else weight.detach().abs()
    return torch.where(largest.cpu() == 0, 1 / quantizer.scale.value_range.largest, scale)


def _get_format(quantizer: Quantizer) -> NumberFormat | None:
    match quantizer:
        case IntQuantizer():
            return IntegerFormat(quantizer.bits, quantizer.signed)
        case FloatQuantizer():
            return quantizer.format
        case BipolarQuantizer():
            return BipolarFormat()
    return None


def _compute_power(x: torch.Tensor) -> float:
    return float(x.double().square().sum())
