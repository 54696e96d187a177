# SPDX-License-Identifier: Apache-2.0
"""How much the outputs of a model suffer from one tensor in few bits, all else being float.

One session of the float model serves all trials: its weights are inputs, and so is what is added to
each tensor that layers multiply, which is 0 for all but the one that is tried.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.inputs import Array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.runtime import exact_session_options, make_session, run_session
from anybit.quantization.items import Sample
from anybit.quantization.pieces import along_channels, smoothed_weight
from anybit.quantization.placement import Layer, Source
from anybit.quantization.recording import Recorder
from anybit.quantization.schemes import Scheme, quantized
from anybit.quantization.search import Choice
from anybit.quantization.verdict import Judge, compared
from anybit.quantization.weights import nearest
from anybit.workers import Here


class Probe:
    """The float model, ready to be run with one of its tensors rounded.

    Noise is that over the signal of the worst output, as powers.

    Args:
        model: The model.
        layers: The layers whose weights are rounded.
        choices: The tensors that layers multiply, and what becomes of them.
        samples: What it is run on.
        where: Its name, for messages.

    Raises:
        ModelError: No output is a float.
    """

    def __init__(
        self,
        model: ir.Model,
        layers: Sequence[Layer],
        choices: Mapping[Source, Choice],
        samples: Sequence[Sample],
        where: str,
    ) -> None:
        self._choices = choices
        self._samples = samples
        self._values = Recorder(model, [source.value for source in choices], where, alone=True)
        copy = model.clone()
        nodes = dict(zip(model.graph, copy.graph, strict=True))
        self._feeds: dict[str, Array] = {}
        self._added = {source: self._disturb(copy, source, nodes) for source in choices}
        for layer in layers:
            for weight, array in layer.constants:
                name = _name(layer, weight.index)
                if name not in self._feeds:
                    copy.graph.inputs.append(copy.graph.initializers.pop(name))
                    self._feeds[name] = array
        # Sums that several threads divide depend on how many there are.
        options = exact_session_options()
        options.intra_op_num_threads = 1
        self._session = make_session(copy, options)
        self._floats = [self._run(sample, {}) for sample in samples]

    def of_weights(self, layer: Layer, scheme: Scheme) -> tuple[float, float]:
        """The noise that the weights of a layer are the reason for, and their own squared error."""
        rounded, error = self._rounded(layer, scheme)
        judge = Judge()
        for sample, floats in zip(self._samples, self._floats, strict=True):
            judge.add(compared(floats, self._run(sample, rounded)))
        return _noise(judge), error

    def error(self, layer: Layer, scheme: Scheme) -> float:
        """The squared error of the weights of a layer."""
        return self._rounded(layer, scheme)[1]

    def _rounded(self, layer: Layer, scheme: Scheme) -> tuple[dict[str, Array], float]:
        read = [choice for source, choice in self._choices.items() if layer in dict(source.readers)]
        smoothing = read[0].smoothing if read else None
        rounded, error = {}, 0.0
        for weight, array in layer.constants:
            if smoothing is None:
                values = nearest(array, weight, scheme).values
            else:
                values = nearest(smoothed_weight(array, weight, smoothing), weight, scheme).values
                values = smoothed_weight(values, weight, 1 / smoothing)
            rounded[_name(layer, weight.index)] = values
            error += float(np.square(values - array, dtype=np.float64).sum())
        return rounded, error

    def of_activations(self) -> dict[Source, float]:
        """The noise that each of the tensors which layers multiply is the reason for."""
        judges = {source: Judge() for source in self._choices}
        for sample, floats in zip(self._samples, self._floats, strict=True):
            found = Here().map(self._rounding, sample, self._choices)
            for judge, outputs in zip(judges.values(), found, strict=True):
                judge.add(compared(floats, outputs))
        return {source: _noise(judge) for source, judge in judges.items()}

    def _rounding(self, sample: Sample) -> Callable[[Source], dict[str, Array]]:
        values = self._values.run(sample)

        def outputs(source: Source) -> dict[str, Array]:
            x = values[str(source.value.name)]
            added = _rounded(x, self._choices[source], source.readers[0][0]) - x
            return self._run(sample, {self._added[source]: added})

        return outputs

    def _disturb(self, copy: ir.Model, source: Source, nodes: Mapping[ir.Node, ir.Node]) -> str:
        """Let a tensor's readers read its sum with an input, which is returned."""
        editor = Editor(copy)
        added = ir.Value(
            name=editor.unique(f"{source.value.name}_noise"),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
        copy.graph.inputs.append(added)
        self._feeds[str(added.name)] = np.zeros((), np.float32)
        (layer, place), *_ = source.readers
        value = nodes[layer.node].inputs[place]
        assert value is not None, "asked before"
        result = editor.insert(
            nodes[layer.node],
            "Add",
            [value, added],
            f"{source.value.name}_disturbed",
            like=value,
            dtype=ir.DataType.FLOAT,
        )
        for layer, place in source.readers:
            nodes[layer.node].replace_input_with(place, result)
        return str(added.name)

    def _run(self, sample: Sample, changed: Mapping[str, Array]) -> dict[str, Array]:
        return run_session(self._session, sample | self._feeds | dict(changed))


def _rounded(x: Array, choice: Choice, layer: Layer) -> Array:
    assert choice.grid is not None, "those that stay are not looked at"
    if choice.smoothing is None:
        return quantized(x, choice.grid)
    smaller = quantized(x * along_channels(1 / choice.smoothing, layer), choice.grid)
    return smaller * along_channels(choice.smoothing, layer)


def _noise(judge: Judge) -> float:
    sqnr = judge.verdict(seen=True).sqnr
    if sqnr is None:
        raise ModelError("no output is a float: what layers do to it cannot be said in dB")
    return float(10 ** (-sqnr / 10))


def _name(layer: Layer, index: int) -> str:
    value = layer.node.inputs[index]
    assert value is not None, "a weight is there"
    return str(value.name)
