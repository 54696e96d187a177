# SPDX-License-Identifier: Apache-2.0
"""The verdict on a quantized model: samples that were held back are run by both, shard by shard."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from anybit.data.dataset import Dataset
from anybit.data.shards import Shard
from anybit.data.splits import is_held_out
from anybit.metrics.output_parts import OutputPart, find_output_parts
from anybit.metrics.quality import (
    QualityAccumulator,
    QualityMetrics,
    SampleComparison,
    compare_outputs,
)
from anybit.parallel import Executor
from anybit.ptq.calibration.taps import Recording, recording


@dataclass(frozen=True)
class Pair:
    """A float model and the quantized one.

    Attributes:
        floats, quantized: Their outputs.
        all: Whether all samples judge, since there is only one.
        parts: The parts of the outputs.
    """

    floats: Recording
    quantized: Recording
    all: bool
    parts: Mapping[str, Sequence[OutputPart]]


@dataclass(frozen=True)
class Outputs:
    """What a model gives.

    Attributes:
        recording: The outputs.
        parts: Their parts.
    """

    recording: Recording
    parts: Mapping[str, Sequence[OutputPart]]


def outputs_of(model: ir.Model, where: str) -> Outputs:
    """Those of a model that has that name in messages."""
    return Outputs(recording(model, model.graph.outputs, where), find_output_parts(model))


def judged(
    floats: Outputs, quantized: Recording, samples: Dataset, executor: Executor
) -> QualityMetrics:
    """What quantization did to the outputs of a model, on samples that were held back.

    Raises:
        ModelError: A model cannot be run, or a sample does not fit.
    """
    only = len(samples) == 1
    judge = QualityAccumulator()
    pair = Pair(floats.recording, quantized, only, floats.parts)
    for shard in executor.map(comparer, pair, samples.iterate_shards(executor.is_local)):
        for number, each in shard:
            judge.add(each, number)
    return judge.compute(seen=only)


def comparer(pair: Pair) -> Callable[[Shard], list[tuple[int, SampleComparison]]]:
    """Who runs both models for the samples of a shard that judge, and numbers what comes of it."""
    floats, quantized = pair.floats.recorder(), pair.quantized.recorder()

    def found(shard: Shard) -> list[tuple[int, SampleComparison]]:
        wanted = shard.read(lambda number: pair.all or is_held_out(number))
        return [
            (at, compare_outputs(floats.run(each), quantized.run(each), pair.parts))
            for at, each in wanted
        ]

    return found
