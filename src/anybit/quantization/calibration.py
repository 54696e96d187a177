# SPDX-License-Identifier: Apache-2.0
"""What the data say of the tensors that are to be quantized, in two passes of bounded memory."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

import onnx_ir as ir

from anybit.inputs import Array
from anybit.quantization.findings import Findings
from anybit.quantization.placement import Source
from anybit.quantization.recording import recording
from anybit.quantization.samples import Samples, is_held
from anybit.quantization.search import smoothable
from anybit.quantization.statistics import Statistics
from anybit.quantization.survey import Survey, keeper, surveyor
from anybit.workers import Workers

_TO_CHOOSE, _TO_DECIDE = 12, 6
# What the layers of one group read, for the samples that are kept.
_MEMORY = 2**28


@dataclass(frozen=True)
class Evidence:
    """What is known of one tensor.

    Attributes:
        source: The tensor.
        statistics: Of all its values.
        to_choose, to_decide: What the layers that read it read, by name, for some samples: one
            of the two with its largest magnitudes each, and others, which all tensors share.
    """

    source: Source
    statistics: Statistics
    to_choose: Sequence[dict[str, Array]]
    to_decide: Sequence[dict[str, Array]]


def gather(
    model: ir.Model,
    sources: Sequence[Source],
    samples: Samples,
    where: str,
    workers: Workers,
    cache: str | os.PathLike[str] | None,
    progress: Callable[[float], None],
) -> Iterator[Evidence]:
    """The evidence for each tensor, in their order.

    Raises:
        ModelError: The model cannot be run, or a tensor holds NaN or infinity.
    """
    if not sources:
        return
    folder = None if cache is None else Path(cache)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    names = [str(source.value.name) for source in sources]
    axes = tuple(smoothable(each) for each in sources)
    survey = Survey(recording(model, [source.value for source in sources], where), axes, folder)
    seen = Findings.none(names, axes)
    for shard, found in workers.map(surveyor, survey, samples.shards(workers.near)):
        seen.merge(found, shard.first)
        progress((shard.first + len(shard)) / len(samples))
    common = _common(samples)
    first, second = _divided(common)
    together = max(1, _MEMORY * len(sources) // (seen.size * len(common)))
    for start in range(0, len(sources), together):
        group = slice(start, start + together)
        farthest = [[-index for _, index in pair] for pair in seen.farthest[group]]
        wanted = {*common, *(index for pair in farthest for index in pair)}
        kept = _kept(model, sources[group], samples, frozenset(wanted), where, workers)
        for source, statistics, pair in zip(
            sources[group], seen.statistics[group], farthest, strict=True
        ):
            to_choose, to_decide = {*first, pair[0]}, {*second, pair[-1]}
            yield Evidence(
                source,
                statistics,
                [kept[each] for each in sorted(to_choose)],
                [kept[each] for each in sorted(to_decide)],
            )


def _common(samples: Samples) -> list[int]:
    """The numbers of a few samples: the first by a hash, whoever asks and in whatever order."""
    numbers = [index for index in range(len(samples)) if not is_held(index)]
    numbers.sort(key=lambda index: sha256(index.to_bytes(8, "little")).digest())
    return numbers[: _TO_CHOOSE + _TO_DECIDE]


def _divided(numbers: list[int]) -> tuple[list[int], list[int]]:
    """Two parts to choose by and one to decide by, as far as there are several."""
    to_choose = math.ceil(len(numbers) * _TO_CHOOSE / (_TO_CHOOSE + _TO_DECIDE))
    return numbers[:to_choose], numbers[to_choose:] or numbers


def _kept(
    model: ir.Model,
    sources: Sequence[Source],
    samples: Samples,
    wanted: frozenset[int],
    where: str,
    workers: Workers,
) -> dict[int, dict[str, Array]]:
    """All that the layers which read some tensors read, for these samples."""
    layers = [layer for source in sources for layer, _ in source.readers]
    read = dict.fromkeys(value for layer in layers for value in layer.computed)
    pieces = (
        (shard, among)
        for shard in takewhile(lambda each: each.first <= max(wanted), samples.shards(workers.near))
        if (among := wanted.intersection(range(shard.first, shard.first + len(shard))))
    )
    kept: dict[int, dict[str, Array]] = {}
    for found in workers.map(keeper, recording(model, list(read), where), pieces):
        kept |= found
    return kept
