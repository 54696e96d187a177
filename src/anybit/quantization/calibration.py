# SPDX-License-Identifier: Apache-2.0
"""What the data say of the tensors that are to be quantized, in two passes of bounded memory."""

import math
import os
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from anybit.inputs import Array
from anybit.parallel import Executor
from anybit.quantization.effort import Effort
from anybit.quantization.findings import Findings
from anybit.quantization.items import Sample
from anybit.quantization.keeping import MEMORY, kept
from anybit.quantization.placement import Source
from anybit.quantization.recording import recording
from anybit.quantization.samples import Samples
from anybit.quantization.shards import is_held, scattered
from anybit.quantization.smoothing import channels_of, smoothable
from anybit.quantization.statistics import Statistics
from anybit.quantization.survey import Survey, surveyor

_TO_CHOOSE, _TO_DECIDE = 12, 6
# Rows of few numbers say little each: so many times as many samples are kept as fit into that.
_MOST_TIMES, _SMALL = 8, 2**20
# So many samples at most say how to round weights.
_TO_ROUND = 128
# One of so many is set apart to decide about the whole, and so many at most.
_APART, _MOST_APART = 6, 64


@dataclass(frozen=True)
class Evidence:
    """What is known of one tensor.

    Attributes:
        source: The tensor.
        statistics: Of all its values.
        to_choose, to_decide: What the layers that read it read, by name, for some samples: one
            of the two with its largest magnitudes each, and others, which all tensors share. With
            more than two samples nothing is learned from those to decide by.
        to_round: The same for those to choose by, and as many more as there is memory for.
    """

    source: Source
    statistics: Statistics
    to_choose: Sequence[dict[str, Array]]
    to_decide: Sequence[dict[str, Array]]
    to_round: Sequence[dict[str, Array]]


def surveyed(
    model: ir.Model,
    sources: Sequence[Source],
    samples: Samples,
    where: str,
    executor: Executor,
    cache: str | os.PathLike[str] | None,
    progress: Callable[[float], None],
) -> Findings:
    """What all samples say of some tensors, in their order.

    Raises:
        ModelError: The model cannot be run, or a tensor holds NaN or infinity.
    """
    folder = None if cache is None else Path(cache)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    names = [str(source.value.name) for source in sources]
    axes = tuple(smoothable(each) for each in sources)
    widths = tuple(None if smoothable(each) is None else channels_of(each) for each in sources)
    tensors = recording(model, [source.value for source in sources], where)
    survey = Survey(tensors, axes, widths, folder)
    seen = Findings.none(names, axes)
    for shard, found in executor.map(surveyor, survey, samples.shards(executor.is_local)):
        seen.merge(found, shard.first)
        progress((shard.first + len(shard)) / len(samples))
    return seen


def gather(
    model: ir.Model,
    sources: Sequence[Source],
    samples: Samples,
    where: str,
    seen: Findings,
    wanted: Container[Source],
    effort: Effort,
) -> Iterator[Evidence]:
    """The evidence for each tensor that is wanted, in their order, by what was seen of all.

    With no samples kept there are statistics alone.
    """
    if not effort.kept:
        for source, statistics in zip(sources, seen.statistics, strict=True):
            if source in wanted:
                yield Evidence(source, statistics, (), (), ())
        return
    order, _ = divided_samples(samples)
    common = order[: _count(seen.size, effort.kept)]
    divided = _divided(common)
    allowed = frozenset(order)
    own = [_own([-i for _, i in pair if -i in allowed], *divided) for pair in seen.farthest]
    deciding = {number for _, decider in own for number in decider}
    others = [number for number in order[len(common) :] if number not in deciding]
    more = others[: max(effort.kept * min(_TO_ROUND, MEMORY // seen.size) - len(common), 0)]
    parts = *divided, tuple(more)
    together = max(1, MEMORY * len(sources) // (seen.size * (len(common) + len(more))))
    known = zip(sources, seen.statistics, own, strict=True)
    left = [each for each in known if each[0] in wanted]
    for start in range(0, len(left), together):
        group = left[start : start + together]
        runs = [(*chooser, *decider) for _, _, (chooser, decider) in group]
        common_to_all, alone = kept(
            model, [source for source, *_ in group], samples, parts, runs, seen.size, where
        )
        for (source, statistics, numbers), far in zip(group, alone, strict=True):
            parts_read = [_only(source, each) for each in common_to_all]
            to_choose, to_decide = (
                [*each, *(far[number] for number in ours)]
                for each, ours in zip(parts_read[:2], numbers, strict=True)
            )
            ran = [_that_ran(each) for each in (to_choose, to_decide, parts_read[2])]
            yield Evidence(source, statistics, ran[0], ran[1], [*ran[0], *ran[2]])


def _that_ran(samples: Sequence[Sample]) -> list[Sample]:
    """Those for which the layers ran: what stands in a branch need not."""
    return [sample for sample in samples if all(array.size for array in sample.values())]


def _only(source: Source, samples: Sequence[Sample]) -> list[Sample]:
    """What the layers that read one tensor read."""
    names = {str(value.name) for layer, _ in source.readers for value in layer.computed}
    return [{name: sample[name] for name in sample if name in names} for sample in samples]


def _own(
    farthest: Sequence[int], to_choose: Sequence[int], to_decide: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which of the samples with the largest magnitudes of a tensor are taken beside those of all,
    to choose and to decide by: the first and the last that is not in the other part."""
    chooser = next((each for each in farthest if each not in to_decide), None)
    others = (each for each in reversed(farthest) if each not in (*to_choose, chooser))
    decider = next(others, None)
    return (
        () if chooser is None or chooser in to_choose else (chooser,),
        () if decider is None or decider in to_decide else (decider,),
    )


def _count(size: int, times: int) -> int:
    """Of how few samples of that many bytes all is kept, or of so many times as many."""
    fewest = times * (_TO_CHOOSE + _TO_DECIDE)
    return fewest * min(max(_SMALL // (size * fewest), 1), _MOST_TIMES)


def divided_samples(samples: Samples) -> tuple[list[int], list[int]]:
    """The numbers of those that are not held back, by a hash: to choose by, and to decide about
    what was chosen for all layers. These are for nothing else but statistics."""
    numbers = [index for index in range(len(samples)) if not is_held(index)]
    order = sorted(numbers, key=scattered)
    apart = min(len(order) // _APART, _MOST_APART)
    return order[: len(order) - apart], order[len(order) - apart :]


def decides_by_others(samples: Samples) -> bool:
    """Whether there are enough samples for some to decide about what others chose."""
    to_choose, to_decide = _divided(divided_samples(samples)[0])
    return set(to_choose).isdisjoint(to_decide)


def _divided(numbers: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two parts to choose by and one to decide by, as far as there are several."""
    to_choose = math.ceil(len(numbers) * _TO_CHOOSE / (_TO_CHOOSE + _TO_DECIDE))
    return tuple(numbers[:to_choose]), tuple(numbers[to_choose:] or numbers)
