# SPDX-License-Identifier: Apache-2.0
"""Learns the weights of a quantized model, stretch by stretch, from its first layers on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array, array_of
from anybit.quantization.attempts import Attempt, Attempts
from anybit.quantization.calibration import divided_samples
from anybit.quantization.choices import Choice
from anybit.quantization.decibels import noise_of
from anybit.quantization.items import Sample
from anybit.quantization.learned.rounding import Neighbours, learned, neighbours_of, reproducible
from anybit.quantization.learned.running import Runner, tensor_of
from anybit.quantization.learned.stretches import Stretch, singles, stretches_of
from anybit.quantization.pieces import Piece, smoothed_weight
from anybit.quantization.placement import Layer, Source
from anybit.quantization.recording import recording
from anybit.quantization.samples import Samples
from anybit.quantization.shards import scattered
from anybit.quantization.verdict import Judge, compared
from anybit.quantization.weights import Rounded

# From so many bits on there is little to be learned.
_FINE = 8
_STEPS = 500
# What all that a stretch reads and gives may take.
_MEMORY = 2**28
# Sums that PyTorch and ONNX Runtime add in another order fall on other sides of a border at times.
_SAME = 1e-3


def with_learned_weights(
    found: Attempt, attempts: Attempts, samples: Samples, progress: Callable[[float], None]
) -> Attempt:
    """The attempt with weights of few bits that are learned, where this lowers the error of the
    stretch that they lie in, and that of the network's outputs, on samples for nothing else."""
    learning, deciding = divided_samples(samples)
    if not (learning and deciding):
        return found
    with reproducible():
        learner = _Learner(found, attempts, samples, learning, deciding)
        return replace(learner.learned(progress), remarks=found.remarks)


@dataclass(frozen=True)
class _Errors:
    """Of a stretch, and of the outputs."""

    stretch: float
    outputs: float

    def is_less(self, other: "_Errors") -> bool:
        return self.stretch < other.stretch and self.outputs < other.outputs


class _Learner:
    def __init__(
        self,
        found: Attempt,
        attempts: Attempts,
        samples: Samples,
        learning: Sequence[int],
        deciding: Sequence[int],
    ) -> None:
        self._attempts, self._plan = attempts, found.plan
        self._choices = dict(found.choices)
        self._network, self._model = attempts.model, found.model
        self._learning = samples.several(samples.fitting(learning))
        self._deciding = samples.several(samples.fitting(deciding))
        self._opset = self._network.graph.opset_imports.get("", 1)

    def learned(self, progress: Callable[[float], None]) -> Attempt:
        layers = [layer for layer in self._plan.layers if self._is_learnable(layer)]
        disturbed = {layer.node for layer in self._plan.layers}
        waiting = list(stretches_of(self._network, disturbed, layers))
        done = 0
        while waiting:
            stretch = waiting.pop(0)
            lesson = self._lesson(stretch)
            if lesson.is_right:
                self._learn(lesson)
            elif len(stretch.nodes) > 1:
                waiting[:0] = singles(stretch.layers)
                continue
            done += len(stretch.layers)
            progress(done / len(layers))
        return self._attempts.judged(self._plan, self._choices)

    def _is_learnable(self, layer: Layer) -> bool:
        scheme, source = self._plan.weights.get(layer), self._source(layer)
        if scheme is None or scheme.bits >= _FINE or source is None or len(layer.weights) != 1:
            return False
        weight = layer.node.inputs[layer.weights[0].index]
        return weight is not None and len(list(weight.uses())) == 1

    def _source(self, layer: Layer) -> Source | None:
        """The tensor whose choice has the weights of a layer."""
        found = (each for each, choice in self._choices.items() if layer in choice.weights)
        return next(found, None)

    def _lesson(self, stretch: Stretch) -> "_Lesson":
        read = [*stretch.inputs, stretch.output]
        quantized = recording(self._model, read, self._attempts.where).recorder()
        floats = recording(self._network, [stretch.output], self._attempts.where).recorder()
        found: dict[int, tuple[Sample, Array]] = {}
        size = 0
        # Data may be sorted: those for which there is memory lie anywhere.
        for number in sorted(range(len(self._learning)), key=scattered):
            sample = self._learning[number]
            feeds, wanted = quantized.run(sample), floats.run(sample)[str(stretch.output.name)]
            found[number] = feeds, wanted
            size += sum(each.nbytes for each in feeds.values()) + wanted.nbytes
            if size > _MEMORY:
                break
        sources = {layer: self._source(layer) for layer in stretch.layers}
        choices = {
            layer: self._choices[each] for layer, each in sources.items() if each is not None
        }
        runner = Runner(stretch, self._choices, self._opset)
        examples = [found[number] for number in sorted(found)]
        return _Lesson(stretch, choices, runner, *zip(*examples, strict=True))

    def _learn(self, lesson: "_Lesson") -> None:
        found = lesson.learned()
        if not found:
            return
        changed = dict(self._choices)
        for layer, (rounded, correction) in found.items():
            source = self._source(layer)
            assert source is not None, "asked before"
            choice = changed[source]
            corrections = dict(choice.corrections)
            if correction is not None:
                corrections[layer] = corrections.get(layer, np.float32(0)) + correction
            weights = {**choice.weights, layer: [rounded]}
            choice = replace(choice, weights=weights, corrections=corrections)
            errors = {**choice.errors, layer: self._error(layer, source, choice)}
            changed[source] = replace(choice, errors=errors)
        model = self._attempts.written(self._plan, changed)
        if self._errors(model, lesson.stretch).is_less(self._errors(self._model, lesson.stretch)):
            self._choices, self._model = changed, model

    def _error(self, layer: Layer, source: Source, choice: Choice) -> float:
        """Of a layer by itself, noise over signal."""
        piece = Piece(self._network, layer, dict(source.readers)[layer], self._plan.weights[layer])
        read = recording(self._network, layer.computed, self._attempts.where).recorder()
        samples = (read.run(each) for each in self._deciding)
        noise, signal = 0.0, 0.0
        moved = choice.corrections.get(layer, np.zeros(1, np.float32))
        axis = -1 if layer.bias_axis is None else layer.bias_axis
        found = piece.differences(choice.grid, choice.smoothing, samples, choice.weights[layer])
        for difference, power in found:
            left = np.moveaxis(difference, axis, -1) + moved
            noise += float(np.square(left, dtype=np.float64).sum())
            signal += power
        return noise / signal if signal else noise

    def _errors(self, model: ir.Model, stretch: Stretch) -> _Errors:
        outputs = [*self._network.graph.outputs]
        where, name = self._attempts.where, str(stretch.output.name)
        quantized = recording(model, [stretch.output, *model.graph.outputs], where).recorder()
        floats = recording(self._network, [stretch.output, *outputs], where).recorder()
        noise, judge = 0.0, Judge()
        for sample in self._deciding:
            y, q = floats.run(sample), quantized.run(sample)
            noise += float(np.square(y[name] - q[name], dtype=np.float64).sum())
            # Constants are not recorded: nothing happens to them.
            names = [str(each.name) for each in outputs if {each.name} <= y.keys() & q.keys()]
            a, b = ({each: given[each] for each in names} for given in (y, q))
            judge.add(compared(a, b, self._attempts.parts))
        sqnr = judge.verdict(seen=True).sqnr
        return _Errors(noise, noise if sqnr is None else noise_of(sqnr))


@dataclass(frozen=True)
class _Lesson:
    """A stretch with what it reads in the quantized network, and what it gives in floats.

    Attributes:
        choices: By layer, that of what it reads.
    """

    stretch: Stretch
    choices: Mapping[Layer, Choice]
    runner: Runner
    feeds: Sequence[Sample]
    wanted: Sequence[Array]

    @property
    def is_right(self) -> bool:
        """Whether PyTorch gives nearly what the runtime does."""
        weights = [tensor_of(self._rounded(layer).values) for layer in self.stretch.layers]
        added = [np.zeros(each.shape, np.float32) for each in self._units]
        y = self._output(0, weights, [tensor_of(each) for each in added]).detach().numpy()
        q = self.feeds[0][str(self.stretch.output.name)]
        if y.shape != q.shape:
            return False
        noise, signal = np.square(y - q).mean(), np.square(q).mean()
        return bool(noise <= _SAME * signal)

    def learned(self) -> dict[Layer, tuple[Rounded, Array | None]]:
        """The weights by layer, and what is added to their biases; nothing if no weight has a
        choice."""
        known = [self._neighbours(layer) for layer in self.stretch.layers]
        if not any(each.are_some for each in known):
            return {}

        def outputs(item: int, soft: Sequence[Any], added: Sequence[Any]) -> tuple[Any, Any]:
            return self._output(item, soft, added), self._targets[item]

        weights, added = learned(known, self._units, len(self.feeds), outputs, _STEPS)
        corrections = dict(zip(self._biased, added, strict=True))
        return {
            layer: (replace(self._rounded(layer), array=array), corrections.get(layer))
            for layer, array in zip(self.stretch.layers, weights, strict=True)
        }

    @cached_property
    def _targets(self) -> list[Any]:
        return [tensor_of(each) for each in self.wanted]

    @cached_property
    def _tensors(self) -> list[dict[str, Any]]:
        return [{name: tensor_of(x) for name, x in each.items()} for each in self.feeds]

    @cached_property
    def _biased(self) -> list[Layer]:
        return [layer for layer in self.stretch.layers if layer.bias_axis is not None]

    @cached_property
    def _units(self) -> list[Array]:
        """By how much biases may be moved at a time: something of their size."""
        biases = [self._bias(layer) for layer in self._biased]
        return [np.full(each.shape, np.sqrt(np.square(each).mean()) + 1e-6) for each in biases]

    def _output(self, item: int, weights: Sequence[Any], added: Sequence[Any]) -> Any:
        changed = {
            (layer.node, layer.weights[0].index): each
            for layer, each in zip(self.stretch.layers, weights, strict=True)
        }
        for layer, each in zip(self._biased, added, strict=True):
            assert layer.bias is not None, "it has an axis"
            changed[layer.node, layer.bias] = tensor_of(self._bias(layer)) + each
        return self.runner.run(self._tensors[item], changed)

    def _bias(self, layer: Layer) -> Array:
        """As it is today."""
        assert layer.bias is not None, "it has an axis"
        value = layer.node.inputs[layer.bias]
        assert value is not None, "it has an axis"
        bias = array_of(value) + self.choices[layer].corrections.get(layer, np.float32(0))
        return np.asarray(bias, np.float32)

    def _rounded(self, layer: Layer) -> Rounded:
        return self.choices[layer].weights[layer][0]

    def _neighbours(self, layer: Layer) -> Neighbours:
        ((weight, array),) = layer.constants
        smoothing = self.choices[layer].smoothing
        if smoothing is not None:
            array = smoothed_weight(array, weight, smoothing)
        rounded = self._rounded(layer)
        return neighbours_of(array, rounded.values, rounded.grid)
