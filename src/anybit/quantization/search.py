# SPDX-License-Identifier: Apache-2.0
"""Which range and which smoothing a tensor gets: those with the least error of what reads it.

The error of a tensor itself misleads: a range that is good for most of its values can be the one
that ruins a sum. So every candidate is tried in the layers that read the tensor, with quantized
weights, on samples of the data, and compared with what the layers give in floats.

Smoothing (Xiao et al., 2022, https://arxiv.org/abs/2211.10438) moves the range of channels from
activations to weights: x / s and s * W. Here every s is a power of two, so that the float function
does not change by a bit.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array, array_of
from anybit.onnx.graph.cut import cut
from anybit.onnx.runtime import exact_session_options, make_session, run_session
from anybit.ops.grids import Grid
from anybit.quantization.placement import Layer, Source, Weight
from anybit.quantization.schemes import Scheme, quantized
from anybit.quantization.statistics import Statistics
from anybit.quantization.weights import weight_grid

_SHARES = (1e-5, 1e-4, 1e-3, 1e-2)
_FRACTIONS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
_STRENGTHS = (0.3, 0.5, 0.7, 0.85)
# Bits from which on ranges are twice as wide as what was seen, and nothing is chosen.
_WIDE, _SPARE = 12, 2.0
# A step that is kept has to lower the error by so much, where it was not chosen.
_WORTH = 0.98


@dataclass(frozen=True)
class Choice:
    """What becomes of a tensor.

    Attributes:
        grid: The values that it is rounded to.
        smoothing: Per channel, what it is divided by before, and its weights are multiplied with.
        errors: Of the layers that read it, noise over signal, as powers; not known yet of a
            candidate.
    """

    grid: Grid
    smoothing: Array | None = None
    errors: Mapping[Layer, float] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """That of all layers."""
        return sum(self.errors.values()) / len(self.errors)


class Trial:
    """The layers that read a tensor, ready to be run with candidates.

    Args:
        model: The float model.
        source: The tensor.
        weights: The schemes of the weights of layers; those of others stay as they are.
    """

    def __init__(self, model: ir.Model, source: Source, weights: Mapping[Layer, Scheme]) -> None:
        self._pieces = [
            _Piece(model, layer, index, weights.get(layer)) for layer, index in source.readers
        ]

    def choice(
        self,
        scheme: Scheme,
        statistics: Statistics,
        first: Sequence[dict[str, Array]],
        second: Sequence[dict[str, Array]],
    ) -> Choice:
        """The best of the candidates on some samples, if it is better on others, too."""
        best = widest = Choice(_grid(scheme, *_widest(scheme, statistics)))
        if scheme.bits >= _WIDE:
            return self._tried(widest, second)
        least = np.inf
        for candidate in self._candidates(scheme, statistics):
            error = self._tried(candidate, first).error
            if error < least:
                best, least = candidate, error
        before, after = self._tried(widest, second), self._tried(best, second)
        return after if after.error <= before.error * _WORTH else before

    def _candidates(self, scheme: Scheme, statistics: Statistics) -> Iterator[Choice]:
        for low, high in (_widest(scheme, statistics), *_ranges(statistics)):
            yield Choice(_grid(scheme, low, high))
        for smoothing in self._smoothings(statistics):
            low, high = _smoothed_range(statistics, smoothing)
            for fraction in (1.0, *_FRACTIONS[:4]):
                yield Choice(_grid(scheme, low * fraction, high * fraction), smoothing)

    def _smoothings(self, statistics: Statistics) -> Iterator[Array]:
        if statistics.channels is None or any(piece.weight is None for piece in self._pieces):
            return
        reach = np.abs(statistics.channels).max(axis=0)
        weights = np.max([piece.reach for piece in self._pieces], axis=0)
        if weights.shape != reach.shape or not (reach.any() and weights.any()):
            return
        safe = np.where((reach > 0) & (weights > 0), reach, 1.0)
        for strength in _STRENGTHS:
            wish = safe**strength / np.where(weights > 0, weights, 1.0) ** (1 - strength)
            yield np.exp2(np.rint(np.log2(wish / np.median(wish)))).astype(np.float32)

    def _tried(self, candidate: Choice, samples: Sequence[dict[str, Array]]) -> Choice:
        errors = {piece.layer: piece.error(candidate, samples) for piece in self._pieces}
        return replace(candidate, errors=errors)


def smoothable(source: Source) -> int | None:
    """The axis of the channels of a tensor whose readers all allow for smoothing; else None."""
    axes = set()
    for layer, index in source.readers:
        (weight,) = layer.weights if len(layer.weights) == 1 else (None,)
        if weight is None or weight.summed is None or index == weight.index:
            return None
        axes.add(layer.x_axis)
    return axes.pop() if len(axes) == 1 else None


class _Piece:
    """One layer, cut out."""

    def __init__(self, model: ir.Model, layer: Layer, index: int, scheme: Scheme | None) -> None:
        node = layer.node
        self._scheme = scheme
        self.layer = layer
        self._x = str(node.inputs[index].name)  # type: ignore[union-attr]
        self._fragment = cut(model, [node], [node.outputs[0]])
        self._session: Any = None
        self._wanted: dict[int, tuple[Array, float]] = {}
        self._constants = {
            str(value.name): array_of(value)
            for value in node.inputs
            if value is not None and value.is_initializer()
        }
        self._weights: dict[bytes | None, dict[str, Array]] = {}
        single = layer.weights[0] if len(layer.weights) == 1 else None
        self.weight = single if single is not None and single.summed is not None else None

    @property
    def reach(self) -> Array:
        """The largest magnitude of the weight per channel of x."""
        assert self.weight is not None
        array = np.abs(self._array(self.weight))
        others = tuple(axis for axis in range(array.ndim) if axis != self.weight.summed)
        return np.asarray(array.max(axis=others))

    def error(self, candidate: Choice, samples: Sequence[dict[str, Array]]) -> float:
        """Noise over signal of the layer's output."""
        noise = signal = 0.0
        weights = self._quantized_weights(candidate.smoothing)
        for sample in samples:
            wanted, power = self._in_floats(sample)
            x = sample[self._x]
            if candidate.smoothing is not None:
                x = x * self._along(1 / candidate.smoothing, x.ndim)
            changed = {self._x: quantized(x, candidate.grid), **weights}
            difference = self._run(sample | changed) - wanted
            noise += float(np.square(difference, dtype=np.float64).sum())
            signal += power
        return noise / signal if signal else noise

    def _along(self, values: Array, rank: int) -> Array:
        axis = self.layer.x_axis
        assert axis is not None
        shape = [1] * rank
        shape[axis] = -1
        return values.reshape(shape)

    def _quantized_weights(self, smoothing: Array | None) -> dict[str, Array]:
        key = None if smoothing is None else smoothing.tobytes()
        if key not in self._weights:
            found = {}
            for weight in self.layer.weights:
                array = self._array(weight)
                if smoothing is not None:
                    array = smoothed_weight(array, weight, smoothing)
                if self._scheme is not None:
                    array = quantized(array, weight_grid(array, weight, self._scheme))
                found[self._name(weight)] = array
            self._weights = {key: found}  # of one smoothing after the other
        return self._weights[key]

    def _in_floats(self, sample: dict[str, Array]) -> tuple[Array, float]:
        if id(sample) not in self._wanted:
            y = self._run(sample)
            self._wanted[id(sample)] = y, float(np.square(y, dtype=np.float64).sum())
        return self._wanted[id(sample)]

    def _run(self, feeds: dict[str, Array]) -> Array:
        feeds = self._constants | feeds
        if self._session is None:
            for value in self._fragment.graph.inputs:
                array = feeds[str(value.name)]
                value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
                value.shape = ir.Shape([None] * array.ndim)
            self._session = make_session(self._fragment, exact_session_options())
        (result,) = run_session(self._session, feeds).values()
        return result

    def _array(self, weight: Weight) -> Array:
        return self._constants[self._name(weight)]

    def _name(self, weight: Weight) -> str:
        value = self.layer.node.inputs[weight.index]
        assert value is not None
        return str(value.name)


def smoothed_weight(array: Array, weight: Weight, smoothing: Array) -> Array:
    """The weight times what its x is divided by."""
    assert weight.summed is not None
    shape = [1] * array.ndim
    shape[weight.summed] = -1
    return array * smoothing.reshape(shape)


def _widest(scheme: Scheme, statistics: Statistics) -> tuple[float, float]:
    """The whole range, and some more: few values do not show how far others go, and where there
    are bits to spare that costs nothing."""
    factor = _SPARE if scheme.bits >= _WIDE else 1 + 1 / math.sqrt(max(statistics.count, 1))
    return statistics.lowest * factor, statistics.highest * factor


def _ranges(statistics: Statistics) -> Iterator[tuple[float, float]]:
    for share in _SHARES:
        yield statistics.quantiles(share)
    for fraction in _FRACTIONS:
        yield statistics.lowest * fraction, statistics.highest * fraction


def _smoothed_range(statistics: Statistics, smoothing: Array) -> tuple[float, float]:
    assert statistics.channels is not None
    channels = statistics.channels / smoothing
    return float(channels.min()), float(channels.max())


def _grid(scheme: Scheme, low: float, high: float) -> Grid:
    return scheme.grid(np.asarray(low, np.float64), np.asarray(high, np.float64))
