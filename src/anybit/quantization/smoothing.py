# SPDX-License-Identifier: Apache-2.0
"""By what channels of activations are divided, and those of weights multiplied: x / s and s * W.

Smoothing (Xiao et al., 2022, https://arxiv.org/abs/2211.10438) moves the range of channels from
activations to weights. Or only those that go further than others are brought back (Wei et al.,
2023, https://arxiv.org/abs/2304.09145), so that a few outliers cost the weights of the rest
nothing. Here every s is a power of two, so that the float function does not change by a bit.
"""

from collections.abc import Iterator

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.quantization.placement import Source
from anybit.quantization.ranges import spare
from anybit.quantization.statistics import Statistics

_STRENGTHS = (0.3, 0.5, 0.7, 0.85, 1.0)
# Channels that go further than these shares of the largest are brought back.
_OUTLIERS = (0.7, 0.5, 0.35, 0.25, 0.18, 0.125, 0.0625)
# Channels that were nearly dead are not blown up without end.
_FARTHEST = 24
# Over the number of values, the share of the whole range that is added: how much further the next
# one goes is not known, and with so few values nothing is.
_UNKNOWN = 16
# And of no more than so many times what was seen of a channel: otherwise a single one that is large
# would keep the others from being divided.
_TIMES = 16


def smoothings(statistics: Statistics, weights: Array) -> Iterator[Array]:
    """What a tensor might be divided by, per channel, if anything is known of its channels.

    Args:
        statistics: The tensor's.
        weights: The largest magnitude of what each channel is multiplied with.
    """
    if statistics.channels is None:
        return
    reach = np.abs(reaches(statistics)).max(axis=0)
    if weights.shape != reach.shape or not (reach.any() and weights.any()):
        return
    safe = np.where(weights > 0, reach, 1.0)
    for strength in _STRENGTHS:
        wish = safe**strength / np.where(weights > 0, weights, 1.0) ** (1 - strength)
        exponents = np.rint(np.log2(wish) - np.median(np.log2(wish)))
        yield np.exp2(np.clip(exponents, -_FARTHEST, _FARTHEST)).astype(np.float32)
    for share in _OUTLIERS:
        beyond = np.ceil(np.log2(np.maximum(reach / (share * reach.max()), 1.0)))
        yield np.exp2(np.minimum(beyond, _FARTHEST)).astype(np.float32)


def reaches(statistics: Statistics) -> Array:
    """How far each channel goes, down and up.

    One that is divided has a range of its own, and loses what goes further; in that of the whole
    tensor it would fit. The next value goes further than n others once in n + 1 times: that share,
    times some, of the whole range, or of a multiple of its own, is added to what was seen, up to
    the whole. A channel of which nothing but 0 was seen may go as far as any.
    """
    seen = statistics.channels
    assert seen is not None, "who smooths asked for them"
    whole = np.array([[min(statistics.lowest, 0.0)], [max(statistics.highest, 0.0)]])
    most = _TIMES * np.abs(seen).max(axis=0).astype(np.float64)
    added = np.clip(whole, -most, most) * min(_UNKNOWN / statistics.per_channel, 1.0)
    further = np.clip(seen + added, *whole)
    return np.where(seen.any(axis=0), further, whole)


def smoothed_range(bits: int, statistics: Statistics, smoothing: Array) -> tuple[float, float]:
    """The range that holds all channels as far as they go, once they are divided."""
    channels = reaches(statistics) / smoothing * spare(bits, statistics)
    return float(channels.min()), float(channels.max())


def smoothable(source: Source) -> int | None:
    """The axis of the channels of a tensor whose readers all allow for smoothing; else None."""
    axes = set()
    if source.anchors or not source.smooth:
        return None  # others read it, too
    for layer, index in source.readers:
        (weight,) = layer.weights if len(layer.weights) == 1 else (None,)
        if weight is None or weight.inputs is None or index == weight.index:
            return None
        axes.add(layer.x_axis)
    return axes.pop() if len(axes) == 1 else None


def channels_of(source: Source) -> int:
    """How many channels a tensor has that can be smoothed."""
    layer, _ = source.readers[0]
    (weight, array), *_ = layer.constants
    assert weight.inputs is not None, "asked before"
    return int(array.shape[weight.inputs]) // weight.repeated
