# SPDX-License-Identifier: Apache-2.0
"""Quantization parameters of an activation, and of the layers that read it."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import FloatGrid, Grid, IntegerGrid
from anybit.ptq.algorithms.range_clipping import RangeCandidate
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.graph.targets import TargetNode
from anybit.ptq.specs.dynamic_grid import DynamicGrid


@dataclass(frozen=True)
class LayerParams:
    """Quantization parameters of an activation, and of the layers that read it.

    Attributes:
        grid: The activation's grid; None if it stays float.
        smoothing: Factors per channel: the activation is divided by them, and weights multiplied.
        errors: Noise over signal of each layer, as powers; empty if nothing was searched.
        corrections: Corrections added to the biases of layers.
        weights: Weights of layers as they are stored, times the factors; those of other layers are
            rounded to nearest.
        tried: Other candidates, the best first, after the whole range.
        fallbacks: The same without weight rounding and bias correction, and, if other than that,
            the same of the whole range; empty if nothing was searched.
    """

    grid: Grid | DynamicGrid | None
    smoothing: Array | None = None
    errors: Mapping[TargetNode, float] = field(default_factory=dict)
    corrections: Mapping[TargetNode, Array] = field(default_factory=dict)
    weights: Mapping[TargetNode, Sequence[QuantizedWeight]] = field(default_factory=dict)
    tried: tuple[RangeCandidate, ...] = ()
    fallbacks: tuple["LayerParams", ...] = ()

    @property
    def error(self) -> float:
        """Return the mean error of the layers."""
        return sum(self.errors.values()) / len(self.errors)

    @property
    def numbers(self) -> tuple[Hashable, ...]:
        """Return a key of the numbers in which candidates for one tensor differ."""
        factors = None if self.smoothing is None else self.smoothing.tobytes()
        if isinstance(self.grid, IntegerGrid):
            return factors, self.grid.scale.tobytes(), self.grid.zeropt.tobytes(), self.grid.codes
        if isinstance(self.grid, FloatGrid):
            return factors, self.grid.scale.tobytes(), self.grid.format
        return factors, self.grid
