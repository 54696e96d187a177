# SPDX-License-Identifier: Apache-2.0
"""How long layers take on this machine at several widths.

Widths that are stored alike take the same time, whatever the values: the model is compiled with the
weights of all layers in 8, 4 and 2 bits, rounded to nearest, and each layer is timed. What has more
than 8 bits stays float.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from anybit.compiler.compiled import Compiled
from anybit.compiler.pipeline import compile
from anybit.compiler.prepare.input_shapes import fix_shapes
from anybit.compiler.timing import time_layers
from anybit.onnx import Source as ModelSource
from anybit.quantization.choices import Choice
from anybit.quantization.insertion import written
from anybit.quantization.items import Sample
from anybit.quantization.placement import Layer, Source
from anybit.quantization.plan import Plan
from anybit.quantization.weights import nearest
from anybit.text import duration, sizes

STORED = (8, 4, 2)
"""Bits in which weights are stored."""
_SECONDS, _FEWEST = 0.3, 5


@dataclass(frozen=True)
class Latency:
    """What was measured.

    Attributes:
        layers: The seconds of each layer by the width in which its weights are stored, and of its
            floats at infinity.
        rest: Those of what is not a layer.
    """

    layers: Mapping[Layer, Mapping[float, float]]
    rest: float

    def of(self, layer: Layer, bits: int) -> float:
        """The seconds of a layer with weights of so many bits."""
        return self.layers[layer][min((each for each in STORED if each >= bits), default=math.inf)]


class Clock:
    """Times models on one sample, as they are compiled for its sizes.

    Args:
        sample: The inputs.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def remark(self, seconds: float) -> str:
        """What is to be said of a model that takes so long."""
        shapes = (f"{name} of {sizes(array.shape)}" for name, array in self._sample.items())
        return f"Compiled for {', '.join(shapes)}, it takes {duration(seconds)} on this machine."

    def compiled(self, model: ir.Model) -> tuple[Compiled, ModelSource]:
        """A model that is compiled for the sample, and the one that it is made of."""
        source = fix_shapes(model, {name: array.shape for name, array in self._sample.items()})
        return compile(source), source

    def seconds(self, compiled: Compiled) -> float:
        """The fastest of several runs."""
        taken: list[float] = []
        end = time.perf_counter() + _SECONDS
        while len(taken) < _FEWEST or time.perf_counter() < end:
            start = time.perf_counter()
            compiled.run(self._sample)
            taken.append(time.perf_counter() - start)
        return min(taken)


def latency(
    model: ir.Model,
    plans: Mapping[int, Plan],
    choices: Mapping[Source, Choice],
    clock: Clock,
) -> Latency:
    """The seconds of the layers of a float model.

    Args:
        model: The model.
        plans: By bits, a plan in which the weights of all layers that may have so few have them.
        choices: What becomes of the tensors that layers multiply.
        clock: What times models.
    """
    found: dict[Layer, dict[float, float]] = {}
    rests = []
    for bits, plan in plans.items():
        weights = {
            layer: [nearest(each, weight, scheme) for weight, each in layer.constants]
            for layer, scheme in plan.weights.items()
        }
        compiled, source = clock.compiled(written(model, weights, choices))
        by_name = {each.name: each for each in time_layers(compiled.report, source).layers}
        for layer in plan.layers:
            known = by_name.get(layer.name)
            floats = (known.float_seconds if known else None) or 0.0
            own = known.seconds if known and known.seconds is not None else floats
            found.setdefault(layer, {math.inf: floats})[bits] = own
        rests.append(clock.seconds(compiled) - sum(each[bits] for each in found.values()))
    return Latency(found, max(min(rests), 0.0))
