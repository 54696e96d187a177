# SPDX-License-Identifier: Apache-2.0
"""What becomes of a tensor that layers multiply, and of their weights."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import FloatGrid, Grid, IntegerGrid
from anybit.quantization.dynamic import DynamicGrid
from anybit.quantization.placement import Layer
from anybit.quantization.ranges import Candidate
from anybit.quantization.weights import Rounded


@dataclass(frozen=True)
class Choice:
    """What becomes of a tensor.

    Attributes:
        grid: The values that it is rounded to; None if it stays as it is.
        smoothing: Per channel, what it is divided by before, and its weights are multiplied with.
        errors: Of the layers that read it, noise over signal, as powers; not known of what was not
            tried.
        corrections: What is added to the biases of layers that read it.
        weights: Those of layers that read it, as they are stored, times the smoothing; those of
            layers that are not named here are rounded to nearest.
        tried: What else was tried, the best first, and the whole range.
        simpler: The same with weights rounded to nearest and biases as they were, and the same of
            the whole range, if that is another one; none of what was not tried.
    """

    grid: Grid | DynamicGrid | None
    smoothing: Array | None = None
    errors: Mapping[Layer, float] = field(default_factory=dict)
    corrections: Mapping[Layer, Array] = field(default_factory=dict)
    weights: Mapping[Layer, Sequence[Rounded]] = field(default_factory=dict)
    tried: tuple[Candidate, ...] = ()
    simpler: tuple["Choice", ...] = ()

    @property
    def error(self) -> float:
        """That of all layers."""
        return sum(self.errors.values()) / len(self.errors)

    @property
    def numbers(self) -> tuple[Hashable, ...]:
        """What candidates for one tensor differ in."""
        factors = None if self.smoothing is None else self.smoothing.tobytes()
        if isinstance(self.grid, IntegerGrid):
            return factors, self.grid.scale.tobytes(), self.grid.zeropt.tobytes(), self.grid.codes
        if isinstance(self.grid, FloatGrid):
            return factors, self.grid.scale.tobytes(), self.grid.format
        return factors, self.grid
