# SPDX-License-Identifier: Apache-2.0
"""Which scale a quantizer gets: the one with the least error of the layers that read its tensor.

The search is that of `anybit.quantize`: the same ranges and the same rule, on layers of PyTorch.
There channels that reach far are scaled down; here all of them stay, and shorter ranges are tried.
So a range cuts off what only one channel has, and few values of each show nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from anybit.ops.int_quant import codes_of
from anybit.quantization.config import DEFAULT
from anybit.quantization.placement import Weight
from anybit.quantization.ranges import cut_off, least, may_cut, spare, whole
from anybit.quantization.schemes import Scheme
from anybit.quantization.statistics import Statistics
from anybit.quantization.weights import nearest
from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._quantizers import BipolarQuantizer, FloatQuantizer, IntQuantizer
from anybit.torch.nn._words import words
from anybit.words.grammar import Integers, Kind, Signs

_RANGES = DEFAULT.ranges
# Shares of the range per channel, and others beside those of `anybit.quantize`.
_FRACTIONS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
_SHORTER = (0.32, 0.25, 0.2, 0.16, 0.125, 0.1, 0.08, 0.064, 0.05, 0.04, 0.032, 0.025, 0.02)

Reader = Callable[[torch.Tensor], torch.Tensor]
"""What reads a quantized tensor: a layer, with its weights as they will be."""


@dataclass(frozen=True)
class Tried:
    """A scale, and the noise over the signal of what reads the tensor, as powers."""

    scale: torch.Tensor
    error: float


class Trial:
    """What reads the tensor of a quantizer, ready to be run with scales.

    Args:
        quantizer: The quantizer.
        readers: Each as it is in floats, and with its weights quantized.
        channels: How many channels the tensor has, as the readers see it.
    """

    def __init__(
        self, quantizer: Quantizer, readers: Sequence[tuple[Reader, Reader]], channels: int
    ) -> None:
        self._quantizer = quantizer
        self._readers = readers
        self._channels = channels
        self._wanted: dict[int, list[torch.Tensor]] = {}

    def chosen(
        self, statistics: Statistics, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """The scale with the least error on some samples, if it is better on others, too."""
        bits = bits_of(self._quantizer)
        if self._quantizer.scale.layout.per_channel:
            assert statistics.channels is not None
            low, high = statistics.channels * spare(bits, statistics, _RANGES)
            shorter = [(low * each, high * each) for each in _FRACTIONS]
        else:
            low, high = whole(bits, statistics, _RANGES)
            shorter = [*cut_off(statistics, _RANGES)]
        shorter += [(low * each, high * each) for each in _SHORTER]
        cuts = bits < _RANGES.wide_bits and may_cut(bits, statistics.count / self._channels)
        ranges = [(low, high), *(shorter if cuts else ())]
        found = least(
            [scale_for(self._quantizer, *map(np.asarray, each)) for each in ranges],
            lambda scale: self._tried(scale, first),
            lambda scale: self._tried(scale, second),
            _RANGES.kept_ratio,
        )
        return found.scale

    def _tried(self, scale: torch.Tensor, samples: Sequence[torch.Tensor]) -> Tried:
        """The mean of the readers' errors."""
        noise, signal = np.zeros(len(self._readers)), np.zeros(len(self._readers))
        for x in samples:
            wanted = self._in_floats(x)
            rounded = quantized_at(self._quantizer, scale, x)
            for place, (_, reader) in enumerate(self._readers):
                noise[place] += _power(reader(rounded) - wanted[place])
                signal[place] += _power(wanted[place])
        return Tried(scale, float(np.mean(noise / np.where(signal > 0, signal, 1.0))))

    def _in_floats(self, x: torch.Tensor) -> list[torch.Tensor]:
        if id(x) not in self._wanted:
            self._wanted[id(x)] = [reader(x) for reader, _ in self._readers]
        return self._wanted[id(x)]


def quantized_at(quantizer: Quantizer, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What the quantizer gives once that is its scale."""
    state = quantizer.scale.state
    wide = torch.float64 if state.dtype == torch.float64 else torch.float32
    restricted = quantizer.scale.restricted(scale.to(x.device, wide))
    return quantizer(x, quantizer.scale.layout.beside(restricted, x))


def bits_of(quantizer: Quantizer) -> int:
    """The width of a code."""
    kind = _kind(quantizer)
    return 8 if kind is None else kind.bits


def scale_for(quantizer: Quantizer, low: np.ndarray, high: np.ndarray) -> torch.Tensor:
    """The scale at which a range, or one per channel, is just not clipped.

    What the quantizer has no codes for, as unsigned ones have none below 0, counts for nothing.
    """
    largest = quantizer.scale.reach.largest
    lowest = -largest
    if isinstance(quantizer, IntQuantizer):
        codes = codes_of(quantizer.bits, quantizer.signed, quantizer.narrow)
        lowest = codes[0] - quantizer.zeropt
    scale = np.maximum(high / largest, low / lowest if lowest else 0.0)
    with np.errstate(divide="ignore"):
        scale = np.exp2(np.ceil(np.log2(scale))) if quantizer.scale.power_of_two else scale
    # Where all is 0 any scale would do; from this one more can be learned.
    return torch.from_numpy(np.where(scale > 0, scale, 1 / largest).astype(np.float32))


def weight_scale(quantizer: Quantizer, weight: torch.Tensor) -> torch.Tensor | None:
    """The scale at which a weight changes least, per channel; None if that is not known."""
    kind = _kind(quantizer)
    layout = quantizer.scale.layout
    one_sided = isinstance(quantizer, IntQuantizer) and (
        not quantizer.signed or quantizer.zeropt != 0
    )
    if kind is None or one_sided:
        return None
    scheme = Scheme(
        kind,
        words(quantizer),
        per_channel=layout.per_channel,
        narrow=getattr(quantizer, "narrow", False),
        power_of_two=quantizer.scale.power_of_two,
    )
    axes = (layout.axis_of(weight),) if layout.per_channel else ()
    array = weight.detach().float().cpu().numpy()
    rounded = nearest(array, Weight(0, axes, None), scheme, DEFAULT.weights)
    scale = torch.from_numpy(np.asarray(rounded.grid.scale))
    scale = scale.flatten() if layout.per_channel else scale.reshape(())
    # Where all is 0 any scale would do; from this one more can be learned.
    dims = layout.reduced(weight)
    largest = weight.detach().abs().amax(dim=dims) if dims else weight.detach().abs()
    return torch.where(largest.cpu() == 0, 1 / quantizer.scale.reach.largest, scale)


def _kind(quantizer: Quantizer) -> Kind | None:
    match quantizer:
        case IntQuantizer():
            return Integers(quantizer.bits, quantizer.signed)
        case FloatQuantizer():
            return quantizer.format
        case BipolarQuantizer():
            return Signs()
    return None


def _power(x: torch.Tensor) -> float:
    return float(x.double().square().sum())
