# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant: per-channel factors s for (x / s) @ (s * W), where x is quantized.

Smoothing (Xiao et al., 2022, https://arxiv.org/abs/2211.10438) moves the range of channels from
activations to weights. Or only those that go further than others are brought back (Wei et al.,
2023, https://arxiv.org/abs/2304.09145), so that a few outliers cost the weights of the rest
nothing. Here every s is a power of two, so that the float function does not change by a bit.
"""

from collections.abc import Iterator

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ptq.algorithms.range_clipping import compute_headroom
from anybit.ptq.calibration.tensor_statistics import TensorStatistics
from anybit.ptq.config import RangeConfig, ScalingConfig


def generate_smoothquant_factors(
    statistics: TensorStatistics, weights: Array, config: ScalingConfig
) -> Iterator[Array]:
    """Yield SmoothQuant factors of a tensor's channels; none without statistics of channels.

    Args:
        statistics: The statistics of the tensor.
        weights: The largest magnitude of the weights of each channel.
        config: The thresholds.
    """
    reach = _compute_magnitudes(statistics, weights, config)
    if reach is None:
        return
    safe = np.where(weights > 0, reach, 1.0)
    largest = config.largest_exponent
    for strength in config.strengths:
        ratio = safe**strength / np.where(weights > 0, weights, 1.0) ** (1 - strength)
        exponents = np.rint(np.log2(ratio) - np.median(np.log2(ratio)))
        yield np.exp2(np.clip(exponents, -largest, largest)).astype(np.float32)


def generate_outlier_factors(
    statistics: TensorStatistics, weights: Array, config: ScalingConfig
) -> Iterator[Array]:
    """Yield factors that scale down only channels with outliers; arguments as for SmoothQuant."""
    reach = _compute_magnitudes(statistics, weights, config)
    if reach is None:
        return
    for share in config.outlier_shares:
        exponents = np.ceil(np.log2(np.maximum(reach / (share * reach.max()), 1.0)))
        yield np.exp2(np.minimum(exponents, config.largest_exponent)).astype(np.float32)


def _compute_magnitudes(
    statistics: TensorStatistics, weights: Array, config: ScalingConfig
) -> Array | None:
    """Return the largest magnitude of each channel; None if the tensor cannot be scaled."""
    channels = estimate_channel_ranges(statistics, config)
    if channels is None:
        return None
    reach = np.abs(channels).max(axis=0)
    if weights.shape != reach.shape or not (reach.any() and weights.any()):
        return None
    return np.asarray(reach)


def estimate_channel_ranges(statistics: TensorStatistics, config: ScalingConfig) -> Array | None:
    """Return the estimated lowest and highest value of each channel; None without statistics.

    One that is divided has a range of its own, and loses what goes further; in that of the whole
    tensor it would fit. The next value goes further than n others once in n + 1 times: that share,
    times some, of the whole range, or of a multiple of its own, is added to what was seen, up to
    the whole. A channel that was always 0 gets the whole range.
    """
    seen = statistics.channels
    if seen is None:
        return None
    whole = np.array([[min(statistics.lowest, 0.0)], [max(statistics.highest, 0.0)]])
    most = config.headroom_times * np.abs(seen).max(axis=0).astype(np.float64)
    added = np.clip(whole, -most, most) * min(config.headroom / statistics.values_per_channel, 1.0)
    further = np.clip(seen + added, *whole)
    return np.where(seen.any(axis=0), further, whole)


def compute_scaled_range(
    bits: int,
    statistics: TensorStatistics,
    channels: Array,
    smoothing: Array,
    config: RangeConfig,
) -> tuple[float, float]:
    """Return the range of a tensor whose channels are divided by factors.

    Args:
        bits: The bit width of the tensor.
        statistics: The statistics of the tensor.
        channels: The estimated lowest and highest value of each channel.
        smoothing: The factors.
        config: The thresholds.
    """
    scaled = channels / smoothing * compute_headroom(bits, statistics, config)
    return float(scaled.min()), float(scaled.max())
