# SPDX-License-Identifier: Apache-2.0
"""What the data say of the tensors that are to be quantized, in two passes of bounded memory."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile

import numpy as np
import onnx_ir as ir

from anybit.inputs import Array
from anybit.quantization.placement import Source
from anybit.quantization.recording import Recorder
from anybit.quantization.samples import Samples
from anybit.quantization.search import smoothable
from anybit.quantization.statistics import Statistics

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
    progress: Callable[[float], None],
) -> Iterator[Evidence]:
    """The evidence for each tensor, in their order.

    Raises:
        ModelError: The model cannot be run, or a tensor holds NaN or infinity.
    """
    recorder = Recorder(model, [source.value for source in sources], where)
    seen = [Statistics(str(each.value.name), smoothable(each)) for each in sources]
    # The two samples with the largest magnitudes; the first of equal ones.
    extremes: list[list[tuple[float, int]]] = [[] for _ in sources]
    size = 1
    for index, sample in samples.calibration():
        arrays = recorder.run(sample)
        size = max(size, sum(array.nbytes for array in arrays.values()))
        for place, statistics in enumerate(seen):
            statistics.add(arrays[statistics.name])
            reach = float(np.abs(arrays[statistics.name]).max(initial=0))
            extremes[place] = sorted([*extremes[place], (reach, -index)], reverse=True)[:2]
        progress(index / len(samples))
    common = _common(samples)
    first, second = _divided(common)
    together = max(1, _MEMORY * len(sources) // (size * len(common)))
    for start in range(0, len(sources), together):
        group = slice(start, start + together)
        farthest = [[-index for _, index in pair] for pair in extremes[group]]
        wanted = {*common, *(index for pair in farthest for index in pair)}
        kept = _kept(model, sources[group], samples, wanted, where)
        for source, statistics, pair in zip(sources[group], seen[group], farthest, strict=True):
            to_choose, to_decide = {*first, pair[0]}, {*second, pair[-1]}
            yield Evidence(
                source,
                statistics,
                [kept[each] for each in sorted(to_choose)],
                [kept[each] for each in sorted(to_decide)],
            )


def _common(samples: Samples) -> list[int]:
    """The numbers of a few samples: the first by a hash, whoever asks and in whatever order."""
    numbers = [index for index in range(len(samples)) if not samples.is_held(index)]
    numbers.sort(key=lambda index: sha256(index.to_bytes(8, "little")).digest())
    return numbers[: _TO_CHOOSE + _TO_DECIDE]


def _divided(numbers: list[int]) -> tuple[list[int], list[int]]:
    """Two parts to choose by and one to decide by, as far as there are several."""
    to_choose = math.ceil(len(numbers) * _TO_CHOOSE / (_TO_CHOOSE + _TO_DECIDE))
    return numbers[:to_choose], numbers[to_choose:] or numbers


def _kept(
    model: ir.Model, sources: Sequence[Source], samples: Samples, wanted: set[int], where: str
) -> dict[int, dict[str, Array]]:
    """All that the layers which read some tensors read, for these samples."""
    layers = [layer for source in sources for layer, _ in source.readers]
    read = dict.fromkeys(value for layer in layers for value in layer.computed)
    recorder = Recorder(model, list(read), where)
    needed = takewhile(lambda each: each[0] <= max(wanted), samples.calibration())
    return {index: recorder.run(sample) for index, sample in needed if index in wanted}
