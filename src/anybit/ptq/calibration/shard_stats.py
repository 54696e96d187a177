# SPDX-License-Identifier: Apache-2.0
"""Statistics of the tensors in one shard of the data."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import onnxruntime  # type: ignore[import-untyped]

from anybit._native import isa
from anybit.data.readers import Sample
from anybit.data.shards import Shard
from anybit.data.splits import is_held_out
from anybit.errors import AnybitError
from anybit.ptq.calibration.calibration_stats import CACHE_FORMAT, CalibrationStats
from anybit.ptq.calibration.taps import TapSpec


@dataclass(frozen=True)
class StatsTask:
    """Specification of the statistics of a shard.

    Attributes:
        recording: The tensors.
        axes: Their channel axes, from the end; None without statistics of channels.
        widths: The numbers of channels; None without statistics of channels.
        cache: The folder of cached statistics; None disables the cache.
    """

    recording: TapSpec
    axes: tuple[int | None, ...]
    widths: tuple[int | None, ...]
    cache: Path | None = None


def make_stats_collector(survey: StatsTask) -> Callable[[Shard], tuple[Shard, CalibrationStats]]:
    """Return a function that collects statistics of a shard, without held-out samples.

    Samples are numbered from the first of the shard. With a cache, statistics are stored in a file
    whose name is a hash of everything that determines them:
    the model, the tensors, the samples, the runtime and the processor. Samples are read
    twice then, so that one at a time is in memory.
    """
    recorder = survey.recording.open()

    def collect(shard: Shard) -> tuple[Shard, CalibrationStats]:
        path = (
            None if survey.cache is None else survey.cache / f"{_compute_digest(survey, shard)}.npz"
        )
        names = survey.recording.names
        if path is not None:
            cached = CalibrationStats.read(path, names, survey.axes, survey.widths, len(shard))
            if cached is not None:
                return shard, cached
        stats = CalibrationStats.make_empty(names, survey.axes)
        for number, sample in _read_calibration_samples(shard):
            seen = recorder.run(sample, kept=False)
            with _name_sample_in_errors(shard, number):
                stats.add(number - shard.first, seen)
        if path is not None:
            stats.save(path)
        return shard, stats

    return collect


@contextmanager
def _name_sample_in_errors(shard: Shard, number: int) -> Iterator[None]:
    """Name the sample in errors."""
    try:
        yield
    except AnybitError as error:
        raise type(error)(f"{shard.describe_sample(number)}{error}") from error


def _read_calibration_samples(shard: Shard) -> Iterator[tuple[int, Sample]]:
    return shard.read(lambda number: not is_held_out(number))


def _compute_digest(survey: StatsTask, shard: Shard) -> str:
    """Return a hash of everything that determines the statistics of a shard."""
    versions = (CACHE_FORMAT, onnxruntime.__version__, platform.machine(), isa())
    state = sha256(repr((versions, survey.axes)).encode() + survey.recording.digest)
    for number, sample in _read_calibration_samples(shard):
        for name, array in sample.items():
            kind = (number - shard.first, name, array.dtype.str, array.shape)
            state.update(repr(kind).encode())
            state.update(array.tobytes())
    return state.hexdigest()
