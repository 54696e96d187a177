# SPDX-License-Identifier: Apache-2.0
"""Calibration: statistics and a few samples of each activation, in two passes over the data."""

import math
import os
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from anybit.data.dataset import Dataset
from anybit.data.readers import Sample
from anybit.data.splits import hash_index, is_held_out
from anybit.inputs import Array
from anybit.parallel import Executor
from anybit.ptq.calibration.activation_cache import kept
from anybit.ptq.calibration.statistics import Statistics
from anybit.ptq.calibration.stats import CalibrationStats
from anybit.ptq.calibration.survey import Survey, surveyor
from anybit.ptq.calibration.taps import recording
from anybit.ptq.config import CalibrationConfig, QuantizeConfig
from anybit.ptq.graph.targets import ActivationTensor, find_smoothing_channels


@dataclass(frozen=True)
class LayerSamples:
    """Statistics and samples of one activation.

    Attributes:
        source: The activation.
        statistics: Those of all its values.
        to_choose: Inputs, by name, of the layers that read it, on which candidates are compared:
            samples that all activations share, and one with its largest magnitudes.
        to_decide: The same to confirm the best candidate. With more than two samples, these are
            others.
        to_round: `to_choose`, and further samples for weight rounding, as memory allows.
    """

    source: ActivationTensor
    statistics: Statistics
    to_choose: Sequence[dict[str, Array]]
    to_decide: Sequence[dict[str, Array]]
    to_round: Sequence[dict[str, Array]]


def collect_stats(
    model: ir.Model,
    sources: Sequence[ActivationTensor],
    samples: Dataset,
    where: str,
    executor: Executor,
    cache: str | os.PathLike[str] | None,
    progress: Callable[[float], None],
) -> CalibrationStats:
    """Collect the statistics of activations over all calibration samples.

    Raises:
        ModelError: The model cannot be run, or a tensor holds NaN or infinity.
    """
    folder = None if cache is None else Path(cache)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    names = [str(source.value.name) for source in sources]
    channels = [find_smoothing_channels(source) for source in sources]
    axes = tuple(of_tensor.axis if of_tensor else None for of_tensor in channels)
    widths = tuple(of_tensor.count if of_tensor else None for of_tensor in channels)
    tensors = recording(model, [source.value for source in sources], where)
    survey = Survey(tensors, axes, widths, folder)
    seen = CalibrationStats.none(names, axes)
    for shard, stats in executor.map(surveyor, survey, samples.iterate_shards(executor.is_local)):
        seen.merge(stats, shard.first)
        progress((shard.first + len(shard)) / len(samples))
    return seen


def gather(
    model: ir.Model,
    sources: Sequence[ActivationTensor],
    samples: Dataset,
    where: str,
    seen: CalibrationStats,
    selected: Container[ActivationTensor],
    config: QuantizeConfig,
) -> Iterator[LayerSamples]:
    """Yield the statistics and samples of each activation in `selected`, in the order of `sources`.

    Without a search there are statistics alone.
    """
    if not config.searches:
        for source, statistics in zip(sources, seen.statistics, strict=True):
            if source in selected:
                yield LayerSamples(source, statistics, (), (), ())
        return
    limits = config.calibration
    order, _ = divided_samples(samples, limits)
    common = order[: _count(seen.size, limits)]
    divided = _divided(common, limits)
    allowed = frozenset(order)
    own = [_own([-i for _, i in pair if -i in allowed], *divided) for pair in seen.farthest]
    deciding = {number for _, decider in own for number in decider}
    others = [number for number in order[len(common) :] if number not in deciding]
    most = min(limits.rounding_samples, limits.memory_bytes // seen.size)
    more = others[: max(most - len(common), 0)]
    parts = *divided, tuple(more)
    size = seen.size * (len(common) + len(more))
    together = max(1, limits.memory_bytes * len(sources) // size)
    entries = [
        entry for entry in zip(sources, seen.statistics, own, strict=True) if entry[0] in selected
    ]
    for start in range(0, len(entries), together):
        group = entries[start : start + together]
        runs = [(*chooser, *decider) for _, _, (chooser, decider) in group]
        common_to_all, alone = kept(
            model, [source for source, *_ in group], samples, parts, runs, seen.size, where, limits
        )
        for (source, statistics, numbers), far in zip(group, alone, strict=True):
            shared = [_only(source, inputs) for inputs in common_to_all]
            to_choose, to_decide = (
                [*inputs, *(far[number] for number in farthest)]
                for inputs, farthest in zip(shared[:2], numbers, strict=True)
            )
            ran = [_that_ran(inputs) for inputs in (to_choose, to_decide, shared[2])]
            yield LayerSamples(source, statistics, ran[0], ran[1], [*ran[0], *ran[2]])


def _that_ran(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples for which the layers ran: those in a branch need not."""
    return [sample for sample in samples if all(array.size for array in sample.values())]


def _only(source: ActivationTensor, samples: Sequence[Sample]) -> list[Sample]:
    """Return the inputs of the layers that read one activation."""
    names = {str(value.name) for layer, _ in source.readers for value in layer.computed_inputs}
    return [{name: sample[name] for name in sample if name in names} for sample in samples]


def _own(
    farthest: Sequence[int], to_choose: Sequence[int], to_decide: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Select a sample to compare on and one to confirm on, from those with the largest magnitudes.

    They are the first and the last one that is not in the other part.
    """
    chooser = next((number for number in farthest if number not in to_decide), None)
    others = (number for number in reversed(farthest) if number not in (*to_choose, chooser))
    decider = next(others, None)
    return (
        () if chooser is None or chooser in to_choose else (chooser,),
        () if decider is None or decider in to_decide else (decider,),
    )


def _count(size: int, config: CalibrationConfig) -> int:
    """Return the number of calibration samples to keep in full, for a size in bytes per sample."""
    fewest = config.compare_samples + config.confirm_samples
    return fewest * min(max(config.small_bytes // (size * fewest), 1), config.most_times)


def divided_samples(samples: Dataset, config: CalibrationConfig) -> tuple[list[int], list[int]]:
    """Divide the numbers of the samples that are not held out, in the order of a hash.

    The first part is for the search, the second for the ablation, and else for statistics alone.
    """
    numbers = [index for index in range(len(samples)) if not is_held_out(index)]
    order = sorted(numbers, key=hash_index)
    apart = min(len(order) // config.ablation_one_of, config.most_ablation)
    return order[: len(order) - apart], order[len(order) - apart :]


def decides_by_others(samples: Dataset, config: CalibrationConfig) -> bool:
    """Return whether there are samples to confirm candidates that others were compared on."""
    to_choose, to_decide = _divided(divided_samples(samples, config)[0], config)
    return set(to_choose).isdisjoint(to_decide)


def _divided(
    numbers: list[int], config: CalibrationConfig
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Divide samples into those to compare candidates on, and those to confirm the best on."""
    fewest = config.compare_samples + config.confirm_samples
    to_choose = math.ceil(len(numbers) * config.compare_samples / fewest)
    return tuple(numbers[:to_choose]), tuple(numbers[to_choose:] or numbers)
