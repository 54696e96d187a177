# SPDX-License-Identifier: Apache-2.0
"""How much the outputs of a model suffer from one tensor in few bits, all else being float.

One session of the float model serves all trials: its weights are inputs, and so is what is added to
each tensor that layers multiply, which is 0 for all but the one that is tried.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from anybit.data.readers import Sample
from anybit.errors import ModelError
from anybit.inputs import Array
from anybit.metrics.output_parts import OutputPart
from anybit.metrics.quality import QualityAccumulator, SampleComparison, compare_outputs
from anybit.metrics.sqnr import sqnr_to_noise
from anybit.onnx.graph.editor import Editor, is_read
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.runtime import make_session, run_session
from anybit.parallel import Executor
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.layer_runner import along_channels, smoothed_weight
from anybit.ptq.algorithms.round_to_nearest import nearest
from anybit.ptq.calibration.taps import recording
from anybit.ptq.config import QuantizeConfig
from anybit.ptq.graph.branches import find_branch_owners, find_enclosing_reader
from anybit.ptq.graph.targets import ActivationTensor, TargetNode, WeightInput
from anybit.ptq.search.model_copies import on_copies
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.quant_types.spec import QuantSpec

Answer = TypeVar("Answer")

# Tensors that are recorded with one run.
_TOGETHER = 8


@dataclass(frozen=True)
class ProbeSpec:
    """The data of a SensitivityProbe, beside the model.

    Attributes:
        layers: The layers whose weights are rounded.
        choices: The tensors that layers multiply, and what becomes of them.
        samples: What it is run on.
        where: The model's name, for messages.
        config: The thresholds.
        narrow: What becomes of some of the tensors in fewer bits.
        parts: The parts of the outputs, of which the worst counts.
    """

    layers: tuple[TargetNode, ...]
    choices: Mapping[ActivationTensor, LayerParams]
    samples: Sequence[Sample]
    where: str
    config: QuantizeConfig
    narrow: Mapping[ActivationTensor, LayerParams] = field(default_factory=dict)
    parts: Mapping[str, Sequence[OutputPart]] = field(default_factory=dict)

    def tried(self, source: ActivationTensor) -> list[LayerParams]:
        """What becomes of a tensor, and then that in fewer bits, if there is that."""
        return [self.choices[source], *([self.narrow[source]] if source in self.narrow else [])]


class SensitivityProbe:
    """The float model, ready to be run with one of its tensors rounded.

    Noise is that over the signal of the worst output, as powers.

    Raises:
        ModelError: No output is a float.
    """

    def __init__(self, model: ir.Model, probed: ProbeSpec) -> None:
        choices, samples = probed.choices, probed.samples
        values = [source.value for source in choices]
        self._probed = probed
        self._sources, self._choices = tuple(choices), choices
        self._samples = samples
        self._values = recording(model, values, probed.where).recorder()
        copy = model.clone()
        nodes = dict(zip(iter_nodes(model.graph), iter_nodes(copy.graph), strict=True))
        self._feeds: dict[str, Array] = {}
        self._holders = find_branch_owners(copy)
        self._added = {source: self._disturb(copy, source, nodes) for source in choices}
        self._weights: dict[Hashable, ir.Value] = {}
        for layer in probed.layers:
            for weight, array in layer.constants:
                name = self._give(copy, nodes[layer.node], layer, weight)
                self._feeds.setdefault(name, array)
        # Sums that several threads divide depend on how many there are.
        self._session = make_session(copy, threads=1)
        self._floats = [self._run(sample, {}) for sample in samples]

    def of_weights(self, layers: Sequence[TargetNode], scheme: QuantSpec) -> tuple[float, float]:
        """The noise that the weights which some layers share are the reason for, and their own
        squared error."""
        rounded, error = self._rounded(layers, scheme)
        judge = QualityAccumulator()
        for sample, floats in zip(self._samples, self._floats, strict=True):
            judge.add(compare_outputs(floats, self._run(sample, rounded), self._probed.parts))
        return _noise(judge), error

    def error(self, layers: Sequence[TargetNode], scheme: QuantSpec) -> float:
        """The squared error of the weights which some layers share."""
        return self._rounded(layers, scheme)[1]

    def _rounded(
        self, layers: Sequence[TargetNode], scheme: QuantSpec
    ) -> tuple[dict[str, Array], float]:
        smoothings = {
            layer: choice.smoothing
            for source, choice in self._choices.items()
            for layer, _ in source.readers
        }
        rounded: dict[str, Array] = {}
        error = 0.0
        for layer in layers:
            smoothing = smoothings.get(layer)
            for weight, array in layer.constants:
                name = str(self._weights[_read(layer, weight)].name)
                if name in rounded:
                    continue
                config = self._probed.config.weights
                if smoothing is None:
                    values = nearest(array, weight, scheme, config).values
                else:
                    values = nearest(
                        smoothed_weight(array, weight, smoothing), weight, scheme, config
                    ).values
                    values = smoothed_weight(values, weight, 1 / smoothing)
                rounded[name] = values
                error += float(np.square(values - array, dtype=np.float64).sum())
        return rounded, error

    def of_activations(self, sample: int, sources: range) -> list[list[SampleComparison]]:
        """What rounding each of some tensors that layers multiply does to the outputs for a
        sample, all by their numbers; for each what it is in fewer bits, too."""
        feeds, floats = self._samples[sample], self._floats[sample]
        these = self._sources[sources.start : sources.stop]
        values = self._values.run(feeds, [str(each.value.name) for each in these])
        found = []
        for source in these:
            x = values.pop(str(source.value.name))
            added = (
                _rounded(x, each, source.readers[0][0]) - x for each in self._probed.tried(source)
            )
            runs = (self._run(feeds, {self._added[source]: each}) for each in added)
            found.append([compare_outputs(floats, each, self._probed.parts) for each in runs])
        return found

    def _give(self, copy: ir.Model, node: ir.Node, layer: TargetNode, weight: WeightInput) -> str:
        """Let a node, the copy of a layer's, read an input in the place of a weight."""
        old = node.inputs[weight.index]
        assert old is not None, "a weight is there"
        key = _read(layer, weight)
        if key not in self._weights:
            given = ir.Value(name=Editor(copy).unique(f"{old.name}_given"))
            given.type, given.shape = old.type, old.shape
            copy.graph.inputs.append(given)
            self._weights[key] = given
        given = self._weights[key]
        node.replace_input_with(weight.index, given)
        if not is_read(old) and not old.is_graph_output():
            copy.graph.initializers.pop(str(old.name), None)
        return str(given.name)

    def _disturb(
        self, copy: ir.Model, source: ActivationTensor, nodes: Mapping[ir.Node, ir.Node]
    ) -> str:
        """Let a tensor's readers read its sum with an input, which is returned."""
        editor = Editor(copy)
        added = ir.Value(
            name=editor.unique(f"{source.value.name}_noise"),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        copy.graph.inputs.append(added)
        self._feeds[str(added.name)] = np.zeros((), np.float32)
        uses = [(nodes[node], place) for node, place in source.uses]
        value = uses[0][0].inputs[uses[0][1]]
        assert value is not None, "asked before"
        positions = {node: place for place, node in enumerate(nodes.values())}
        readers = (find_enclosing_reader(value, node, self._holders) for node, _ in uses)
        result = editor.insert(
            min(readers, key=positions.__getitem__),
            "Add",
            [value, added],
            f"{source.value.name}_disturbed",
            like=value,
            dtype=ir.DataType.FLOAT,
        )
        for node, place in uses:
            node.replace_input_with(place, result)
        return str(added.name)

    def _run(self, sample: Sample, changed: Mapping[str, Array]) -> dict[str, Array]:
        return run_session(self._session, sample | self._feeds | dict(changed))


Question: TypeAlias = Callable[[SensitivityProbe], Answer]


def prober(model: ir.Model, probed: ProbeSpec) -> Callable[[Question[Any]], Any]:
    """Who answers questions about noise."""
    probe = SensitivityProbe(model, probed)
    return lambda question: question(probe)


def answers(
    executor: Executor,
    model: ir.Model,
    probed: ProbeSpec,
    questions: Sequence[Question[Answer]],
    progress: Callable[[float], None],
) -> tuple[dict[ActivationTensor, list[float]], list[Answer]]:
    """The noise that each of the tensors which layers multiply is the reason for, and then in fewer
    bits, if that is tried; what is asked."""
    judges = {
        source: [QualityAccumulator() for _ in probed.tried(source)] for source in probed.choices
    }
    parts = [range(len(judges))[at : at + _TOGETHER] for at in range(0, len(judges), _TOGETHER)]
    pieces = list(product(range(len(probed.samples)), parts))
    first = (
        partial(SensitivityProbe.of_activations, sample=at, sources=part) for at, part in pieces
    )
    asked: Iterator[Question[Any]] = chain(first, questions)
    found = on_copies(executor, model, prober, probed, asked)
    count = len(pieces) + len(questions)
    for done, (_, part) in enumerate(pieces, 1):
        these = [*judges.values()][part.start : part.stop]
        for several, answer in zip(these, next(found), strict=True):
            for judge, each in zip(several, answer, strict=True):
                judge.add(each)
        progress(done / count)
    told = []
    for each in found:
        told.append(each)
        progress((len(pieces) + len(told)) / count)
    return {source: [*map(_noise, each)] for source, each in judges.items()}, told


def _rounded(x: Array, choice: LayerParams, layer: TargetNode) -> Array:
    if choice.grid is None or not x.size:  # what no sample ran, or not this one
        return x
    if choice.smoothing is None:
        return quantize_to_grid(x, choice.grid)
    smaller = quantize_to_grid(x * along_channels(1 / choice.smoothing, layer), choice.grid)
    return smaller * along_channels(choice.smoothing, layer)


def _noise(judge: QualityAccumulator) -> float:
    sqnr = judge.compute(seen=True).sqnr
    if sqnr is None:
        raise ModelError("no output is a float: what layers do to it cannot be said in dB")
    return sqnr_to_noise(sqnr)


def _read(layer: TargetNode, weight: WeightInput) -> Hashable:
    """The same for a constant that is read in one way."""
    return layer.node.inputs[weight.index], weight.channel_axes, weight.input_axis, weight.repeats
