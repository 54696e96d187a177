# SPDX-License-Identifier: Apache-2.0
"""Registry of the algorithms that the layer search tries, by role and in order.

A candidate of any algorithm is kept only if it lowers the error of the layers on samples.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Grid
from anybit.ptq.algorithms.awq import select_awq_factors
from anybit.ptq.algorithms.bias_correction import correct_bias
from anybit.ptq.algorithms.gptq import GptqRounder
from anybit.ptq.algorithms.layer_runner import LayerInputs, LayerRunner
from anybit.ptq.algorithms.range_clipping import generate_clipped_ranges
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.algorithms.smoothquant import generate_outlier_factors, generate_smoothquant_factors
from anybit.ptq.calibration.tensor_statistics import TensorStatistics
from anybit.ptq.config import QuantizeConfig, RangeConfig, ScalingConfig
from anybit.ptq.specs.dynamic_grid import DynamicGrid

RangeGenerator = Callable[[TensorStatistics, RangeConfig], Iterator[tuple[float, float]]]
"""Candidate ranges of an activation, as (lowest, highest)."""

FactorGenerator = Callable[[TensorStatistics, Array, ScalingConfig], Iterator[Array]]
"""Candidate factors of an activation's channels, given the weights' magnitudes per channel."""


class WeightRounder(Protocol):
    """Rounding of the weights of layers that share an input."""

    def round(self, runner: LayerRunner) -> Sequence[QuantizedWeight]:
        """Return the rounded weights of a layer; none if the algorithm does not apply."""


RounderFactory = Callable[
    [Grid | DynamicGrid | None, Array | None, Sequence[LayerInputs]], WeightRounder
]
"""Makes the rounder for an input's grid, channel factors and samples."""

WeightScaling = Callable[[Sequence[LayerRunner], GptqRounder, QuantizeConfig], Array | None]
"""Selects factors of a float activation's channels, which weights are multiplied with."""

BiasCorrection = Callable[
    [
        LayerRunner,
        Grid | DynamicGrid | None,
        Array | None,
        Sequence[QuantizedWeight],
        Sequence[LayerInputs],
        Sequence[LayerInputs],
    ],
    tuple[Array, float] | None,
]
"""Computes what to add to a layer's bias from samples, and the error on others; None if no gain.

Further arguments are the grid of the input, its channel factors and the rounded weights.
"""

RANGE_GENERATORS: list[RangeGenerator] = [generate_clipped_ranges]
FACTOR_GENERATORS: list[FactorGenerator] = [generate_smoothquant_factors, generate_outlier_factors]
WEIGHT_ROUNDERS: list[RounderFactory] = [GptqRounder]
WEIGHT_SCALINGS: list[WeightScaling] = [select_awq_factors]
BIAS_CORRECTIONS: list[BiasCorrection] = [correct_bias]
