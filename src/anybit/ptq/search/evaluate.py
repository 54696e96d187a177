# SPDX-License-Identifier: Apache-2.0
"""Quality of a quantized model: its outputs on held-out samples, compared with the float model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from anybit.data.dataset import Dataset, DataSource
from anybit.data.row_independence import make_independence_test
from anybit.data.shards import Shard
from anybit.data.splits import is_held_out
from anybit.inputs import list_inputs
from anybit.metrics.output_parts import OutputPart, find_output_parts
from anybit.metrics.quality import (
    QualityAccumulator,
    QualityMetrics,
    SampleComparison,
    compare_outputs,
)
from anybit.ptq.calibration.taps import TapSpec, make_tap_spec
from anybit.ptq.context import Context


@dataclass(frozen=True)
class ModelOutputs:
    """Outputs of a model, ready to be computed.

    Attributes:
        recording: The model and its outputs.
        parts: The parts of each output that are compared one by one.
    """

    recording: TapSpec
    parts: Mapping[str, Sequence[OutputPart]]


@dataclass(frozen=True)
class ModelPair:
    """A float model and its quantized form.

    Attributes:
        floats, quantized: Their outputs.
        parts: The parts of the outputs.
        all_samples: Whether all samples are compared, because there is only one.
    """

    floats: TapSpec
    quantized: TapSpec
    parts: Mapping[str, Sequence[OutputPart]]
    all_samples: bool


def record_outputs(model: ir.Model, name: str) -> ModelOutputs:
    """Return the outputs of a model, ready to be computed; `name` is for messages."""
    return ModelOutputs(make_tap_spec(model, model.graph.outputs, name), find_output_parts(model))


def open_dataset(data: DataSource, model: ir.Model, name: str) -> tuple[Dataset, ModelOutputs]:
    """Return the samples, and the outputs of the float model, which show what a sample is.

    Each row is a sample if two rows have the same outputs apart and together.

    Raises:
        DataError: The data are empty or do not fit the model.
        ModelError: The model cannot be run.
    """
    dataset = Dataset(data, list_inputs(model.graph, name))
    floats = record_outputs(model, name)
    run = floats.recording.open(single_thread=False).run
    dataset.verify_row_independence(make_independence_test(run))
    return dataset, floats


def measure_quality(ctx: Context, floats: ModelOutputs, quantized: TapSpec) -> QualityMetrics:
    """Compare the outputs of the quantized model with those of the float model.

    The held-out samples are compared, shard by shard; a single sample is compared, too.

    Raises:
        ModelError: A model cannot be run, or a sample does not fit.
    """
    single = len(ctx.dataset) == 1
    pair = ModelPair(floats.recording, quantized, floats.parts, single)
    judge = QualityAccumulator()
    shards = ctx.dataset.iterate_shards(ctx.executor.is_local)
    for comparisons in ctx.executor.map(make_comparer, pair, shards):
        for number, comparison in comparisons:
            judge.add(comparison, number)
    return judge.compute(seen=single)


def make_comparer(pair: ModelPair) -> Callable[[Shard], list[tuple[int, SampleComparison]]]:
    """Return a function that runs both models on the held-out samples of a shard.

    It returns the comparison of each sample with the number of the sample.
    """
    floats, quantized = pair.floats.open(), pair.quantized.open()

    def compare_shard(shard: Shard) -> list[tuple[int, SampleComparison]]:
        samples = shard.read(lambda number: pair.all_samples or is_held_out(number))
        return [
            (number, compare_outputs(floats.run(sample), quantized.run(sample), pair.parts))
            for number, sample in samples
        ]

    return compare_shard
