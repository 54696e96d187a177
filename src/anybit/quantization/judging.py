# SPDX-License-Identifier: Apache-2.0
"""The verdict on a quantized model: samples that were held back are run by both, shard by shard."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from anybit.quantization.recording import Recording, recording
from anybit.quantization.samples import Samples
from anybit.quantization.shards import Shard, is_held
from anybit.quantization.verdict import Comparison, Judge, Verdict, compared
from anybit.workers import Workers


@dataclass(frozen=True)
class Pair:
    """A float model and the quantized one.

    Attributes:
        floats, quantized: Their outputs.
        all: Whether all samples judge, since there is only one.
    """

    floats: Recording
    quantized: Recording
    all: bool


def judged(
    model: ir.Model, quantized: ir.Model, samples: Samples, where: str, workers: Workers
) -> Verdict:
    """What quantization did to the outputs of a model, on samples that were held back.

    Raises:
        ModelError: A model cannot be run, or a sample does not fit.
    """
    floats, found = (recording(each, each.graph.outputs, where) for each in (model, quantized))
    only = len(samples) == 1
    judge = Judge()
    for shard in workers.map(comparer, Pair(floats, found, only), samples.shards(workers.near)):
        for number, each in shard:
            judge.add(each, number)
    return judge.verdict(seen=only)


def comparer(pair: Pair) -> Callable[[Shard], list[tuple[int, Comparison]]]:
    """Who runs both models for the samples of a shard that judge, and numbers what comes of it."""
    floats, quantized = pair.floats.recorder(), pair.quantized.recorder()

    def found(shard: Shard) -> list[tuple[int, Comparison]]:
        wanted = shard.read(lambda number: pair.all or is_held(number))
        return [(at, compared(floats.run(each), quantized.run(each))) for at, each in wanted]

    return found
