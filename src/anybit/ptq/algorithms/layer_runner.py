# SPDX-License-Identifier: Apache-2.0
"""Runs of a single layer, quantized and in float."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit._native import squared_difference
from anybit.onnx.graph.constants import Array, read_array
from anybit.onnx.graph.cut import extract_subgraph
from anybit.onnx.runtime import make_session, run_session
from anybit.ops.grids import Grid
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight, round_to_nearest
from anybit.ptq.config import QuantizeConfig
from anybit.ptq.graph.targets import TargetNode, WeightInput
from anybit.ptq.specs.dynamic_grid import DynamicGrid
from anybit.ptq.specs.quantize import make_rounding
from anybit.quant_types.spec import QuantSpec

LayerInputs = dict[str, Array]


@dataclass(frozen=True, eq=False)
class ChannelWeight:
    """The only weight of a layer, with an axis along which the channels of the activation lie.

    Attributes:
        weight: Its input of the layer.
        axis: Axis of the channels.
        values: The float weight.
    """

    weight: WeightInput
    axis: int
    values: Array

    @property
    def magnitudes(self) -> Array:
        """The largest magnitude per channel."""
        return np.asarray(self.to_channel_rows(np.abs(self.values)).max(axis=1))

    def to_channel_rows(self, array: Array) -> Array:
        """Reshape an array of the weight's shape to [channels, others]."""
        channels = array.shape[self.axis] // self.weight.repeats
        return np.moveaxis(array, self.axis, 0).reshape(channels, -1)


class LayerRunner:
    """One layer, cut out of a model.

    Args:
        model: The float model.
        layer: The layer.
        index: The input that is quantized.
        spec: The spec of its weights; None keeps them float.
        config: The thresholds of the search.

    Attributes:
        input_name: The name of the tensor that is quantized.
    """

    def __init__(
        self,
        model: ir.Model,
        layer: TargetNode,
        index: int,
        spec: QuantSpec | None,
        config: QuantizeConfig,
    ) -> None:
        node = layer.node
        self.spec, self.config = spec, config
        self.layer = layer
        self.input_name = str(node.inputs[index].name)  # type: ignore[union-attr]
        self._fragment = extract_subgraph(
            model, [node], [next(value for value in node.outputs if value.name)]
        )
        self._session: Any = None
        self._references: dict[int, tuple[LayerInputs, Array, float]] = {}
        self._constants = {
            str(value.name): read_array(value)
            for value in node.inputs
            if value is not None and value.is_initializer()
        }
        self._nearest: dict[bytes | None, tuple[QuantizedWeight, ...]] = {}
        inputs = [node.inputs[weight.index] for weight in layer.weights]
        self._names = [str(value.name) for value in inputs if value is not None]
        self.weight = self._find_channel_weight()

    def _find_channel_weight(self) -> ChannelWeight | None:
        """Return the only weight, if it has a spec and its elements belong to channels."""
        if self.spec is None or len(self.layer.weights) != 1:
            return None
        (weight,), (name,) = self.layer.weights, self._names
        axis = weight.input_axis
        return None if axis is None else ChannelWeight(weight, axis, self._constants[name])

    def round_to_nearest(self, smoothing: Array | None) -> tuple[QuantizedWeight, ...]:
        """Return the scaled weights, rounded to nearest; none if they have no spec."""
        if self.spec is None:
            return ()
        key = None if smoothing is None else smoothing.tobytes()
        if key not in self._nearest:
            quantized = [
                round_to_nearest(array, weight, self.spec, self.config.weights)
                for weight, array in zip(
                    self.layer.weights, self.scale_weights(smoothing), strict=True
                )
            ]
            self._nearest = {key: tuple(quantized)}  # cached for the last scaling only
        return self._nearest[key]

    def measure_error(
        self,
        grid: Grid | DynamicGrid | None,
        smoothing: Array | None,
        samples: Sequence[LayerInputs],
        weights: Sequence[QuantizedWeight] = (),
    ) -> float:
        """Return noise power over signal power of the layer's output."""
        return compute_noise_ratio(self.measure_powers(grid, smoothing, samples, weights))

    def measure_powers(
        self,
        grid: Grid | DynamicGrid | None,
        smoothing: Array | None,
        samples: Sequence[LayerInputs],
        weights: Sequence[QuantizedWeight] = (),
    ) -> Iterator[tuple[float, float]]:
        """Yield the powers of noise and signal of the layer's output for each sample."""
        for quantized, reference, power in self._iterate_outputs(grid, smoothing, samples, weights):
            yield squared_difference(quantized, reference), power

    def iterate_differences(
        self,
        grid: Grid | DynamicGrid | None,
        smoothing: Array | None,
        samples: Iterable[LayerInputs],
        weights: Sequence[QuantizedWeight] = (),
    ) -> Iterator[tuple[Array, float]]:
        """Yield the output error of each sample, and the power of its float output.

        Weights without `weights` are rounded to nearest.
        """
        for quantized, reference, power in self._iterate_outputs(grid, smoothing, samples, weights):
            with np.errstate(all="ignore"):
                yield np.subtract(quantized, reference, out=quantized), power

    def _iterate_outputs(
        self,
        grid: Grid | DynamicGrid | None,
        smoothing: Array | None,
        samples: Iterable[LayerInputs],
        weights: Sequence[QuantizedWeight],
    ) -> Iterator[tuple[Array, Array, float]]:
        """Yield the quantized output, the float output and its power for each sample."""
        rounded = [weight.values for weight in weights or self.round_to_nearest(smoothing)]
        constants = dict(zip(self._names, rounded or self.scale_weights(smoothing), strict=True))
        round_input = self.make_input_rounding(grid, smoothing)
        for sample in samples:
            reference, power = self._run_float(sample)
            feeds = sample | {self.input_name: round_input(self.get_input(sample)), **constants}
            quantized = self._run(feeds, kept=False)
            yield quantized, reference, power

    def get_input(self, sample: LayerInputs) -> Array:
        """Return the float input that is quantized."""
        return sample[self.input_name]

    def make_input_rounding(
        self, grid: Grid | DynamicGrid | None, smoothing: Array | None
    ) -> Callable[[Array], Array]:
        """Return a function that scales and quantizes the input; it stays float without a grid."""
        factors = None if smoothing is None else broadcast_channels(1 / smoothing, self.layer)
        rounded = None if grid is None else make_rounding(grid)

        def round_input(x: Array) -> Array:
            if factors is None:
                return x if rounded is None else rounded(x, None)
            with np.errstate(over="ignore"):  # quantizers saturate
                x = x * factors
            return x if rounded is None else rounded(x, x)

        return round_input

    def scale_weights(self, smoothing: Array | None) -> list[Array]:
        """Return the float weights times the factors."""
        arrays = [self._constants[name] for name in self._names]
        if smoothing is None:
            return arrays
        return [
            scale_weight(array, weight, smoothing)
            for array, weight in zip(arrays, self.layer.weights, strict=True)
        ]

    def _run_float(self, sample: dict[str, Array]) -> tuple[Array, float]:
        if id(sample) not in self._references:
            y = self._run(sample, kept=True)
            power = float(np.square(y, dtype=np.float64).sum())
            self._references[id(sample)] = sample, y, power  # the reference keeps the id unique
        return self._references[id(sample)][1:]

    def _run(self, feeds: dict[str, Array], *, kept: bool) -> Array:
        feeds = self._constants | feeds
        if self._session is None:
            for value in self._fragment.graph.inputs:
                array = feeds[str(value.name)]
                value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
                value.shape = ir.Shape([None] * array.ndim)
            self._session = make_session(self._fragment, threads=1)  # layers run in parallel
        (result,) = run_session(self._session, feeds, kept=kept).values()
        return result


def compute_noise_ratio(powers: Iterable[tuple[float, float]]) -> float:
    """Return noise power over signal power, summed over samples."""
    noise = signal = 0.0
    for error, power in powers:
        noise += error
        signal += power
    return noise / signal if signal else noise


def scale_weight(array: Array, weight: WeightInput, smoothing: Array) -> Array:
    """Return a weight times the factors of its input channels.

    Raises:
        ValueError: The weight has no axis of input channels.
    """
    if weight.input_axis is None:
        raise ValueError(f"the weight at input {weight.index} has no axis of input channels")
    # Rows as long as possible: short ones take several times as long.
    inner = math.prod(array.shape[weight.input_axis + 1 :])
    factors = np.repeat(smoothing, weight.repeats * inner)
    return np.asarray(array.reshape(-1, len(factors)) * factors).reshape(array.shape)


def broadcast_channels(values: Array, layer: TargetNode) -> Array:
    """Reshape numbers per channel to broadcast to the layer's input.

    Raises:
        ValueError: The input has no known axis of channels.
    """
    axis, weight = layer.activation_axis, layer.node.inputs[layer.weights[0].index]
    if axis is None or weight is None or weight.const_value is None:
        raise ValueError(f"{layer.name}: its input has no known axis of channels")
    # A negative axis needs only the axes after it; images have the rank of their weights.
    shape = [1] * (-axis if axis < 0 else len(weight.const_value.shape))
    shape[axis] = -1
    return values.reshape(shape)
