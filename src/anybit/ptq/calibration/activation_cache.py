# SPDX-License-Identifier: Apache-2.0
"""Cache of activations: inputs of layers for samples, from as few runs as memory allows."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import onnx_ir as ir

from anybit.data.dataset import Dataset
from anybit.data.readers import Sample
from anybit.onnx.process import trim_heap
from anybit.parallel import ThreadExecutor
from anybit.ptq.calibration.crop import Crop, make_crops
from anybit.ptq.calibration.taps import TapSpec, make_tap_spec
from anybit.ptq.config import CalibrationConfig
from anybit.ptq.graph.targets import ActivationTensor


def cache_activations(
    model: ir.Model,
    sources: Sequence[ActivationTensor],
    samples: Dataset,
    parts: Sequence[tuple[int, ...]],
    farthest: Sequence[Sequence[int]],
    size: int,
    where: str,
    config: CalibrationConfig,
) -> tuple[list[list[Sample]], list[dict[int, Sample]]]:
    """Return the inputs of the layers that read some activations.

    Returns:
        Samples of all activations, one list per part, and further samples of each activation.
    """
    read = [
        [value for layer, _ in source.readers for value in layer.computed_inputs]
        for source in sources
    ]
    names = [tuple(dict.fromkeys(str(value.name) for value in values)) for values in read]
    everything = dict.fromkeys(value for values in read for value in values)
    tensors = make_tap_spec(model, list(everything), where)
    crops = make_crops(sources, config.crop_bytes)
    runs = _Runs(samples, parts, farthest, size, config)
    # One at a time, if one takes that much.
    executor = ThreadExecutor(1 if runs.are_large else None)
    common: list[list[Sample]] = [[] for _ in parts]
    alone: list[dict[int, Sample]] = [{} for _ in sources]
    results = executor.map(make_cacher, (tensors, crops), runs.iterate(tensors.names, names))
    for sample, (places, number) in zip(results, runs.places, strict=True):
        for at in places:
            if number is None:
                common[at].append(sample)
            else:
                alone[at][number] = {name: sample[name] for name in names[at] if name in sample}
    trim_heap(tensors.nbytes)  # the session is gone
    return common, alone


@dataclass(frozen=True)
class ModelRun:
    """A run of the model.

    Attributes:
        feeds: The inputs of the run.
        names: The names of the tensors to keep.
        samples: The number of samples in the run.
        number: The index of the first sample.
        alone: Whether the sample is run because it has the largest magnitudes.
    """

    feeds: Sample
    names: Sequence[str]
    samples: int
    number: int
    alone: bool


class _Runs:
    """Runs of the model, read on demand if samples take much memory.

    Attributes:
        places: The part of each run; or the tensors, and the number of the sample.
        are_large: Whether one run takes much memory.
    """

    def __init__(
        self,
        samples: Dataset,
        parts: Sequence[tuple[int, ...]],
        farthest: Sequence[Sequence[int]],
        size: int,
        config: CalibrationConfig,
    ) -> None:
        self._samples, self._parts, self._farthest = samples, parts, farthest
        self._least_runs, memory = config.least_runs, config.memory_bytes
        input_bytes = sum(array.nbytes for array in next(iter(samples)).values())
        self._together = max(1, memory // (size + input_bytes))
        numbers = {*chain(*parts), *chain(*farthest)}
        sizes = list(samples.iterate_sizes())
        is_little = sum(sizes[number] for number in numbers) <= memory
        self._known = dict(samples.select(numbers)) if is_little else {}
        most = max(map(self._count_joined, parts), default=1)
        self.are_large = 2 * most * (size + input_bytes) > memory
        self.places: list[tuple[tuple[int, ...], int | None]] = []

    def iterate(
        self, all_names: Sequence[str], names: Sequence[Sequence[str]]
    ) -> Iterator[ModelRun]:
        """Yield runs of the parts, with samples joined, and then runs of single samples."""
        for at, part in enumerate(self._parts):
            for start in range(0, len(part), self._count_joined(part)):
                numbers = part[start : start + self._count_joined(part)]
                feeds_by_number = dict(self._read(numbers))
                for feeds, count in self._join([feeds_by_number[number] for number in numbers]):
                    self.places.append(((at,), None))
                    yield ModelRun(feeds, all_names, count, numbers[0], False)
        for number, sample in self._read({*chain(*self._farthest)}):
            tensors = tuple(at for at, farthest in enumerate(self._farthest) if number in farthest)
            self.places.append((tensors, number))
            own_names = dict.fromkeys(chain.from_iterable(names[at] for at in tensors))
            yield ModelRun(sample, tuple(own_names), 1, number, True)

    def _count_joined(self, part: Sequence[int]) -> int:
        """Return the number of samples of a part that are joined."""
        return max(min(self._together, math.ceil(len(part) / self._least_runs)), 1)

    def _join(self, samples: list[Sample]) -> Iterator[tuple[Sample, int]]:
        joined = self._samples.concatenate(samples)
        for feeds in joined:
            yield feeds, len(samples) // len(joined)

    def _read(self, numbers: Collection[int]) -> Iterable[tuple[int, Sample]]:
        if self._known:
            return [(number, self._known[number]) for number in numbers]
        return self._samples.select(numbers)


def make_cacher(common: tuple[TapSpec, Mapping[str, Crop | None]]) -> Callable[[ModelRun], Sample]:
    """Return a function that runs the model and crops its activations."""
    tensors, crops = common
    tap = tensors.open()

    def cache(run: ModelRun) -> Sample:
        outputs = tap.run(run.feeds, run.names)
        cropped = {}
        for name in run.names:
            if name in outputs:
                array, crop = outputs.pop(name), crops.get(name)
                place = run.samples, run.number, run.alone
                cropped[name] = array if crop is None else crop(array, *place)
        return cropped

    return cache
