# SPDX-License-Identifier: Apache-2.0
"""Sensitivity of the outputs to the quantization of one weight or activation alone.

One session of the float model serves all measurements. Its weights are inputs, and so are offsets
of all activations to quantize, which are 0 except for the measured one.
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
from anybit.metrics.output_parts import OutputPart
from anybit.metrics.quality import (
    QualityAccumulator,
    QualityMetrics,
    SampleComparison,
    compare_outputs,
)
from anybit.metrics.sqnr import sqnr_to_noise
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.editor import Editor, is_read
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.runtime import make_session, run_session
from anybit.parallel import Executor
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.layer_runner import broadcast_channels, scale_weight
from anybit.ptq.algorithms.round_to_nearest import round_to_nearest
from anybit.ptq.calibration.taps import make_tap_spec
from anybit.ptq.config import QuantizeConfig
from anybit.ptq.graph.branches import find_branch_owners, find_enclosing_reader
from anybit.ptq.graph.targets import ActivationTensor, TargetNode, WeightInput
from anybit.ptq.search.model_copies import map_on_copies
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.quant_types.spec import QuantSpec

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ProbeSpec:
    """Inputs of a `SensitivityProbe`, except for the model.

    Attributes:
        layers: The layers whose weights are measured.
        params: The quantization parameters of each activation.
        samples: The samples to run.
        where: The name of the model, for messages.
        config: The thresholds.
        narrow_params: The parameters of some activations at fewer bits.
        parts: The parts of the outputs, by output name.
    """

    layers: tuple[TargetNode, ...]
    params: Mapping[ActivationTensor, LayerParams]
    samples: Sequence[Sample]
    where: str
    config: QuantizeConfig
    narrow_params: Mapping[ActivationTensor, LayerParams] = field(default_factory=dict)
    parts: Mapping[str, Sequence[OutputPart]] = field(default_factory=dict)

    def list_params(self, tensor: ActivationTensor) -> list[LayerParams]:
        """Return the parameters of an activation, then those at fewer bits, if there are any."""
        narrow = self.narrow_params.get(tensor)
        return [self.params[tensor], *([] if narrow is None else [narrow])]


class SensitivityProbe:
    """Session of the float model with one weight or activation quantized at a time.

    Noise is the noise-to-signal power ratio of the worst output.

    Raises:
        ModelError: The model cannot be run.
    """

    def __init__(self, model: ir.Model, spec: ProbeSpec) -> None:
        self._spec = spec
        self._tensors = tuple(spec.params)
        values = [tensor.value for tensor in self._tensors]
        self._recorder = make_tap_spec(model, values, spec.where).open()
        copy = model.clone()
        nodes = dict(zip(iter_nodes(model.graph), iter_nodes(copy.graph), strict=True))
        self._feeds: dict[str, Array] = {}
        self._branch_owners = find_branch_owners(copy)
        self._offsets = {tensor: self._add_offset(copy, tensor, nodes) for tensor in self._tensors}
        self._weights: dict[Hashable, ir.Value] = {}
        for layer in spec.layers:
            for weight, array in layer.constants:
                name = self._replace_weight(copy, nodes[layer.node], layer, weight)
                self._feeds.setdefault(name, array)
        # With several threads, rounding errors of sums depend on the number of threads.
        self._session = make_session(copy, threads=1)
        self._floats = [self._run(sample, {}) for sample in spec.samples]

    def measure_weights(self, layers: Sequence[TargetNode], spec: QuantSpec) -> tuple[float, float]:
        """Return the noise of quantizing the weights of layers that share them.

        Returns:
            The noise, and the squared error of the weights.
        """
        rounded, error = self._round_weights(layers, spec)
        accumulator = QualityAccumulator()
        for sample, floats in zip(self._spec.samples, self._floats, strict=True):
            outputs = self._run(sample, rounded)
            accumulator.add(compare_outputs(floats, outputs, self._spec.parts))
        return get_noise(accumulator.compute(seen=True)), error

    def compute_weight_error(self, layers: Sequence[TargetNode], spec: QuantSpec) -> float:
        """Return the squared rounding error of the weights of layers that share them."""
        return self._round_weights(layers, spec)[1]

    def measure_activations(self, sample: int, tensors: range) -> list[list[SampleComparison]]:
        """Compare the outputs for a sample with those after quantizing one activation.

        Args:
            sample: The index of the sample.
            tensors: Indices of activations, which are measured one after the other.

        Returns:
            The comparisons of each activation: one for each of `ProbeSpec.list_params`.
        """
        feeds, floats = self._spec.samples[sample], self._floats[sample]
        selected = self._tensors[tensors.start : tensors.stop]
        values = self._recorder.run(feeds, [str(tensor.value.name) for tensor in selected])
        comparisons = []
        for tensor in selected:
            x = values.pop(str(tensor.value.name))
            errors = (
                _quantize_activation(x, params, tensor.readers[0][0]) - x
                for params in self._spec.list_params(tensor)
            )
            runs = (self._run(feeds, {self._offsets[tensor]: error}) for error in errors)
            comparisons.append([compare_outputs(floats, run, self._spec.parts) for run in runs])
        return comparisons

    def _round_weights(
        self, layers: Sequence[TargetNode], spec: QuantSpec
    ) -> tuple[dict[str, Array], float]:
        """Return the rounded weights by input name, and their squared error."""
        smoothings = {
            layer: params.smoothing
            for tensor, params in self._spec.params.items()
            for layer, _ in tensor.readers
        }
        rounded: dict[str, Array] = {}
        total = 0.0
        for layer in layers:
            smoothing = smoothings.get(layer)
            for weight, array in layer.constants:
                name = str(self._weights[_make_weight_key(layer, weight)].name)
                if name in rounded:
                    continue
                config = self._spec.config.weights
                if smoothing is None:
                    values = round_to_nearest(array, weight, spec, config).values
                else:
                    scaled = scale_weight(array, weight, smoothing)
                    values = round_to_nearest(scaled, weight, spec, config).values
                    values = scale_weight(values, weight, 1 / smoothing)
                rounded[name] = values
                total += float(np.square(values - array, dtype=np.float64).sum())
        return rounded, total

    def _replace_weight(
        self, copy: ir.Model, node: ir.Node, layer: TargetNode, weight: WeightInput
    ) -> str:
        """Replace a weight of a copied node by a graph input, and return its name."""
        constant = _get_input(node, weight.index)
        key = _make_weight_key(layer, weight)
        if key not in self._weights:
            graph_input = ir.Value(name=Editor(copy).unique(f"{constant.name}_weight"))
            graph_input.type, graph_input.shape = constant.type, constant.shape
            copy.graph.inputs.append(graph_input)
            self._weights[key] = graph_input
        graph_input = self._weights[key]
        node.replace_input_with(weight.index, graph_input)
        if not is_read(constant) and not constant.is_graph_output():
            copy.graph.initializers.pop(str(constant.name), None)
        return str(graph_input.name)

    def _add_offset(
        self, copy: ir.Model, tensor: ActivationTensor, nodes: Mapping[ir.Node, ir.Node]
    ) -> str:
        """Add a graph input to an activation for its consumers, and return its name."""
        editor = Editor(copy)
        offset = ir.Value(
            name=editor.unique(f"{tensor.value.name}_noise"),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        copy.graph.inputs.append(offset)
        self._feeds[str(offset.name)] = np.zeros((), np.float32)
        uses = [(nodes[node], index) for node, index in tensor.uses]
        value = _get_input(*uses[0])
        positions = {node: position for position, node in enumerate(nodes.values())}
        consumers = (find_enclosing_reader(value, node, self._branch_owners) for node, _ in uses)
        result = editor.insert(
            min(consumers, key=positions.__getitem__),
            "Add",
            [value, offset],
            f"{tensor.value.name}_with_noise",
            like=value,
            dtype=ir.DataType.FLOAT,
        )
        for node, index in uses:
            node.replace_input_with(index, result)
        return str(offset.name)

    def _run(self, sample: Sample, replaced: Mapping[str, Array]) -> dict[str, Array]:
        return run_session(self._session, sample | self._feeds | dict(replaced))


Query: TypeAlias = Callable[[SensitivityProbe], Answer]
"""A function of a probe, which a worker calls."""


def make_probe_worker(model: ir.Model, spec: ProbeSpec) -> Callable[[Query[Any]], Any]:
    """Return a function that evaluates queries on a probe of its own."""
    probe = SensitivityProbe(model, spec)
    return lambda query: query(probe)


def measure_sensitivity(
    executor: Executor,
    model: ir.Model,
    spec: ProbeSpec,
    queries: Sequence[Query[Answer]],
    progress: Callable[[float], None],
) -> tuple[dict[ActivationTensor, list[float]], list[Answer]]:
    """Measure the noise of each activation, and evaluate queries on the same probes.

    Returns:
        The noise of each activation for each of `ProbeSpec.list_params`, and the results of the
        queries.
    """
    accumulators = {
        tensor: [QualityAccumulator() for _ in spec.list_params(tensor)] for tensor in spec.params
    }
    step = spec.config.sensitivity.tensors_per_run
    batches = [range(len(accumulators))[at : at + step] for at in range(0, len(accumulators), step)]
    runs = list(product(range(len(spec.samples)), batches))
    run_queries = (
        partial(SensitivityProbe.measure_activations, sample=sample, tensors=batch)
        for sample, batch in runs
    )
    tasks: Iterator[Query[Any]] = chain(run_queries, queries)
    answers = map_on_copies(executor, model, make_probe_worker, spec, tasks)
    count = len(runs) + len(queries)
    for done, (_, batch) in enumerate(runs, 1):
        selected = [*accumulators.values()][batch.start : batch.stop]
        for by_params, comparisons in zip(selected, next(answers), strict=True):
            for accumulator, comparison in zip(by_params, comparisons, strict=True):
                accumulator.add(comparison)
        progress(done / count)
    results = []
    for answer in answers:
        results.append(answer)
        progress((len(runs) + len(results)) / count)
    noises = {
        tensor: [get_noise(accumulator.compute(seen=True)) for accumulator in by_params]
        for tensor, by_params in accumulators.items()
    }
    return noises, results


def get_noise(quality: QualityMetrics | None) -> float:
    """Return the noise-to-signal power ratio of the worst output.

    Raises:
        ModelError: No float output was evaluated.
    """
    if quality is None or quality.sqnr is None:
        raise ModelError("no output is a float: the noise of single layers has no SQNR")
    return sqnr_to_noise(quality.sqnr)


def _quantize_activation(x: Array, params: LayerParams, layer: TargetNode) -> Array:
    if params.grid is None or not x.size:  # no sample computes it, or not this one
        return x
    if params.smoothing is None:
        return quantize_to_grid(x, params.grid)
    scaled = quantize_to_grid(x * broadcast_channels(1 / params.smoothing, layer), params.grid)
    return scaled * broadcast_channels(params.smoothing, layer)


def _get_input(node: ir.Node, index: int) -> ir.Value:
    """Return an input of a node.

    Raises:
        IndexError: The node does not have that input.
    """
    value = node.inputs[index]
    if value is None:
        raise IndexError(f"{node.name} has no input {index}")
    return value


def _make_weight_key(layer: TargetNode, weight: WeightInput) -> Hashable:
    """Return a key that is equal for uses of a constant along the same axes."""
    constant = layer.node.inputs[weight.index]
    return constant, weight.channel_axes, weight.input_axis, weight.repeats
