# SPDX-License-Identifier: Apache-2.0
"""The verdict on a quantized model: samples that were held back are run by both, shard by shard."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from anybit.inputs import Array
from anybit.parallel import Executor
from anybit.quantization.items import Sample
from anybit.quantization.parts import Part, parts_of
from anybit.quantization.recording import Recording, recording
from anybit.quantization.samples import Samples
from anybit.quantization.shards import Shard, is_held
from anybit.quantization.verdict import Comparison, Judge, Verdict, compared

# What a float model gives for a few samples.
_MEMORY = 2**27
# So many samples and bytes at most are a few; and so many bytes run at once, in about so many
# parts: by how much these differ says what is chance.
_FEW, _FEW_BYTES, _AT_ONCE, _PARTS = 40, 2**26, 2**20, 8


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
    parts: Mapping[str, Sequence[Part]]


@dataclass(frozen=True)
class Outputs:
    """What a model gives.

    Attributes:
        recording: The outputs.
        parts: Their parts.
    """

    recording: Recording
    parts: Mapping[str, Sequence[Part]]


def outputs_of(model: ir.Model, where: str) -> Outputs:
    """Those of a model that has that name in messages."""
    return Outputs(recording(model, model.graph.outputs, where), parts_of(model))


def judged(floats: Outputs, quantized: Recording, samples: Samples, executor: Executor) -> Verdict:
    """What quantization did to the outputs of a model, on samples that were held back.

    Raises:
        ModelError: A model cannot be run, or a sample does not fit.
    """
    only = len(samples) == 1
    judge = Judge()
    pair = Pair(floats.recording, quantized, only, floats.parts)
    for shard in executor.map(comparer, pair, samples.shards(executor.is_local)):
        for number, each in shard:
            judge.add(each, number)
    return judge.verdict(seen=only)


@dataclass(frozen=True)
class FewVerdict(Verdict):
    """The verdict on few samples.

    Attributes:
        noises: The noise of each part of them in the worst output, over all of its signal.
    """

    noises: tuple[float, ...] = ()


class Few:
    """What a float model gives for a few samples, to compare others with.

    Args:
        floats: The outputs of the model.
        samples: The samples. Where outputs take too much memory, the first of them.
        counts: How many are joined in each.
        executor: What runs it.
    """

    def __init__(
        self,
        floats: Outputs,
        samples: Sequence[Sample],
        counts: Sequence[int],
        executor: Executor,
    ) -> None:
        self._executor, self._parts = executor, floats.parts
        self._samples, self._floats, size = list(samples), [], 0
        for each in self._outputs(floats.recording):
            self._floats.append(each)
            size += sum(array.nbytes for array in each.values())
            if size > _MEMORY:
                break
        del self._samples[len(self._floats) :]
        self._count = sum(counts[: len(self._floats)])

    def verdict(self, quantized: Recording) -> FewVerdict:
        """What became of the outputs of a quantized model."""
        judge = Judge()
        for floats, each in zip(self._floats, self._outputs(quantized), strict=True):
            judge.add(compared(floats, each, self._parts))
        found = vars(judge.verdict(seen=True)) | {"samples": self._count}
        return FewVerdict(**found, noises=judge.noises)

    def _outputs(self, of: Recording) -> Iterator[dict[str, Array]]:
        return self._executor.map(runner, of, self._samples)


def few_of(
    floats: Outputs,
    samples: Samples,
    first: Sequence[int],
    others: Sequence[int],
    executor: Executor,
) -> Few:
    """A few samples with some numbers, and if these are not many, with others, to judge by."""
    those = samples.fitting([*first, *others][:_FEW], _FEW_BYTES)
    sizes = list(samples.sizes())
    largest = max(sizes[number] for number in those)
    at_once = min(_AT_ONCE, largest * max(len(those) // _PARTS, 1))
    parts = [those[: len(first)], those[len(first) :]]
    pieces = [each for part in parts if part for each in samples.several(part, at_once)]
    return Few(floats, pieces, [*map(samples.count, pieces)], executor)


def runner(of: Recording) -> Callable[[Sample], dict[str, Array]]:
    """Who runs a model."""
    return of.recorder().run


def comparer(pair: Pair) -> Callable[[Shard], list[tuple[int, Comparison]]]:
    """Who runs both models for the samples of a shard that judge, and numbers what comes of it."""
    floats, quantized = pair.floats.recorder(), pair.quantized.recorder()

    def found(shard: Shard) -> list[tuple[int, Comparison]]:
        wanted = shard.read(lambda number: pair.all or is_held(number))
        return [
            (at, compared(floats.run(each), quantized.run(each), pair.parts)) for at, each in wanted
        ]

    return found
