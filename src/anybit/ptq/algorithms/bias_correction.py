# SPDX-License-Identifier: Apache-2.0
"""Bias correction: cancel the mean error of a layer's output.

Rounded weights add sum_j mean(x_j) * (rounded - w_j) to each channel, whatever else they add, and
clipped values pull all sums to one side. The mean over samples is subtracted from the bias (Nagel
et al., 2019, https://arxiv.org/abs/1906.04721, there from the statistics of normalization).
"""

from collections.abc import Sequence

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Grid
from anybit.ptq.algorithms.layer_runner import LayerInputs, LayerRunner
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.specs.dynamic_grid import DynamicGrid


def correct_bias(
    runner: LayerRunner,
    grid: Grid | DynamicGrid | None,
    smoothing: Array | None,
    weights: Sequence[QuantizedWeight],
    first: Sequence[LayerInputs],
    second: Sequence[LayerInputs],
) -> tuple[Array, float] | None:
    """Return the bias correction of a layer and the error with it, confirmed on other samples.

    Return None if it does not lower the error, or if the layer has no bias of its own.
    """
    axis = runner.layer.bias_axis
    if axis is None:
        return None
    added, count = np.zeros(()), 0
    for difference, _ in runner.iterate_differences(grid, smoothing, first, weights):
        channels = np.moveaxis(difference, axis, 0).reshape(difference.shape[axis], -1)
        added = added + channels.sum(axis=1, dtype=np.float64)
        count += channels.shape[1]
    if not count:
        return None
    mean = (added / count).astype(np.float32)
    before = after = signal = 0.0
    for difference, power in runner.iterate_differences(grid, smoothing, second, weights):
        last = np.moveaxis(difference, axis, -1).astype(np.float64)
        before += float(np.square(last).sum())
        after += float(np.square(last - mean).sum())
        signal += power
    if not after < before or not signal:
        return None
    return -mean, after / signal
