# SPDX-License-Identifier: Apache-2.0
"""Calibration: statistics and a few samples of each activation, in two passes over the data."""

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from anybit.data.dataset import Dataset
from anybit.data.readers import Sample
from anybit.data.splits import hash_index, is_held_out
from anybit.ptq.calibration.activation_cache import cache_activations
from anybit.ptq.calibration.calibration_stats import CalibrationStats
from anybit.ptq.calibration.shard_stats import StatsTask, make_stats_collector
from anybit.ptq.calibration.taps import make_tap_spec
from anybit.ptq.calibration.tensor_statistics import TensorStatistics
from anybit.ptq.config import CalibrationConfig
from anybit.ptq.context import Context, Progress
from anybit.ptq.graph.targets import ActivationTensor, find_smoothing_channels


@dataclass(frozen=True)
class LayerSamples:
    """Statistics of one activation, and inputs by name of the layers that read it.

    Attributes:
        activation: The activation.
        statistics: The statistics of all its values.
        compare: Samples on which candidates are compared: samples that all activations share, and
            one with the largest magnitudes of this one.
        confirm: Samples to confirm the best candidate. With more than two samples, these are
            others.
        rounding: The samples of `compare`, and further ones for weight rounding, as memory allows.
    """

    activation: ActivationTensor
    statistics: TensorStatistics
    compare: Sequence[Sample] = ()
    confirm: Sequence[Sample] = ()
    rounding: Sequence[Sample] = ()


@dataclass(frozen=True)
class _SampleNumbers:
    """Numbers of the samples that are kept.

    Attributes:
        compare, confirm, rounding: The samples of all activations, by use; `rounding` lists the
            samples for nothing else.
        largest: For each activation, further samples to compare on and to confirm on, which have
            its largest magnitudes.
    """

    compare: tuple[int, ...]
    confirm: tuple[int, ...]
    rounding: tuple[int, ...]
    largest: list[tuple[tuple[int, ...], tuple[int, ...]]]


def collect_stats(
    ctx: Context, activations: Sequence[ActivationTensor], progress: Progress
) -> CalibrationStats:
    """Collect the statistics of activations over all calibration samples.

    Raises:
        ModelError: The model cannot be run, or an activation holds NaN or infinity.
    """
    folder = None if ctx.cache is None else Path(ctx.cache)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    names = [str(activation.value.name) for activation in activations]
    channels = [find_smoothing_channels(activation) for activation in activations]
    axes = tuple(of_tensor.axis if of_tensor else None for of_tensor in channels)
    widths = tuple(of_tensor.count if of_tensor else None for of_tensor in channels)
    tensors = make_tap_spec(ctx.model, [activation.value for activation in activations], ctx.name)
    task = StatsTask(tensors, axes, widths, folder)
    total = CalibrationStats.make_empty(names, axes)
    shards = ctx.dataset.iterate_shards(ctx.executor.is_local)
    for shard, stats in ctx.executor.map(make_stats_collector, task, shards):
        total.merge(stats, shard.first)
        progress((shard.first + len(shard)) / len(ctx.dataset))
    return total


def iterate_samples(
    ctx: Context,
    activations: Sequence[ActivationTensor],
    stats: CalibrationStats,
    selected: Container[ActivationTensor],
) -> Iterator[LayerSamples]:
    """Yield the statistics and samples of each activation in `selected`, in order.

    Without a search there are no samples.

    Args:
        ctx: The model and the data.
        activations: The activations of the statistics.
        stats: The statistics.
        selected: The activations whose samples are read.
    """
    if not ctx.config.searches:
        for activation, statistics in zip(activations, stats.statistics, strict=True):
            if activation in selected:
                yield LayerSamples(activation, statistics)
        return
    config = ctx.config.calibration
    numbers = _select_samples(ctx.dataset, stats, config)
    parts = numbers.compare, numbers.confirm, numbers.rounding
    size = stats.size * (len({*numbers.compare, *numbers.confirm}) + len(numbers.rounding))
    group_size = max(1, config.memory_bytes * len(activations) // size)
    entries = [
        entry
        for entry in zip(activations, stats.statistics, numbers.largest, strict=True)
        if entry[0] in selected
    ]
    for start in range(0, len(entries), group_size):
        group = entries[start : start + group_size]
        tensors = [activation for activation, *_ in group]
        largest = [(*compare, *confirm) for *_, (compare, confirm) in group]
        common, own = cache_activations(
            ctx.model, tensors, ctx.dataset, parts, largest, stats.size, ctx.name, config
        )
        for (activation, statistics, (compare, confirm)), by_number in zip(group, own, strict=True):
            shared = [_select_inputs(activation, inputs) for inputs in common]
            compared = _drop_empty([*shared[0], *(by_number[number] for number in compare)])
            confirmed = _drop_empty([*shared[1], *(by_number[number] for number in confirm)])
            rounding = [*compared, *_drop_empty(shared[2])]
            yield LayerSamples(activation, statistics, compared, confirmed, rounding)


def _select_samples(
    dataset: Dataset, stats: CalibrationStats, config: CalibrationConfig
) -> _SampleNumbers:
    """Select the samples that are kept, as many as memory allows."""
    order, _ = split_calibration_samples(dataset, config)
    common = order[: _count_samples(stats.size, config)]
    compare, confirm = _split_samples(common, config)
    searched = frozenset(order)
    largest = [
        _select_largest([-number for _, number in pair if -number in searched], compare, confirm)
        for pair in stats.farthest
    ]
    confirming = {number for _, numbers in largest for number in numbers}
    others = [number for number in order[len(common) :] if number not in confirming]
    most = min(config.rounding_samples, config.memory_bytes // stats.size)
    rounding = others[: max(most - len(common), 0)]
    return _SampleNumbers(compare, confirm, tuple(rounding), largest)


def _drop_empty(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples for which the layers ran: those in a branch need not."""
    return [sample for sample in samples if all(array.size for array in sample.values())]


def _select_inputs(activation: ActivationTensor, samples: Sequence[Sample]) -> list[Sample]:
    """Return the inputs of the layers that read one activation."""
    names = {str(value.name) for layer, _ in activation.readers for value in layer.computed_inputs}
    return [{name: sample[name] for name in sample if name in names} for sample in samples]


def _select_largest(
    largest: Sequence[int], compare: Sequence[int], confirm: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Select a sample to compare on and one to confirm on, from those with the largest magnitudes.

    They are the first and the last one that is not in the other part.
    """
    first = next((number for number in largest if number not in confirm), None)
    others = (number for number in reversed(largest) if number not in (*compare, first))
    last = next(others, None)
    return (
        () if first is None or first in compare else (first,),
        () if last is None or last in confirm else (last,),
    )


def _count_samples(size: int, config: CalibrationConfig) -> int:
    """Return the number of calibration samples to keep in full, for a size in bytes per sample."""
    fewest = config.compare_samples + config.confirm_samples
    return fewest * min(max(config.small_bytes // (size * fewest), 1), config.most_times)


def split_calibration_samples(
    dataset: Dataset, config: CalibrationConfig
) -> tuple[list[int], list[int]]:
    """Split the numbers of the samples that are not held out, in the order of a hash.

    The first part is for the search, the second for the ablation. Both count for statistics.
    """
    numbers = [index for index in range(len(dataset)) if not is_held_out(index)]
    order = sorted(numbers, key=hash_index)
    apart = min(len(order) // config.ablation_one_of, config.most_ablation)
    return order[: len(order) - apart], order[len(order) - apart :]


def has_confirming_samples(dataset: Dataset, config: CalibrationConfig) -> bool:
    """Return whether candidates are confirmed on other samples than they are compared on."""
    compare, confirm = _split_samples(split_calibration_samples(dataset, config)[0], config)
    return set(compare).isdisjoint(confirm)


def _split_samples(
    numbers: list[int], config: CalibrationConfig
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split samples into those to compare candidates on, and those to confirm the best on."""
    fewest = config.compare_samples + config.confirm_samples
    count = math.ceil(len(numbers) * config.compare_samples / fewest)
    return tuple(numbers[:count]), tuple(numbers[count:] or numbers)
