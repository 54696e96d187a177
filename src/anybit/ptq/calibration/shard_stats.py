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
    """What is asked of shards.

    Attributes:
        recording: The tensors.
        axes: Those of their channels, from the end; None where nobody asks for them.
        widths: How many channels there are, where somebody asks.
        cache: The folder of what was found before; None for none.
    """

    recording: TapSpec
    axes: tuple[int | None, ...]
    widths: tuple[int | None, ...]
    cache: Path | None = None


def make_stats_collector(survey: StatsTask) -> Callable[[Shard], tuple[Shard, CalibrationStats]]:
    """Who looks at the samples of shards that are not held back, and gives back each with what is
    found, numbered from its first.

    With a cache, what is found of a shard becomes a file there, whose name is a hash of all that
    determines it: the model, the tensors, the samples, the runtime and the processor. Samples are
    read twice then, so that no more than one is in memory.
    """
    recorder = survey.recording.open()

    def found(shard: Shard) -> tuple[Shard, CalibrationStats]:
        path = (
            None if survey.cache is None else survey.cache / f"{_compute_digest(survey, shard)}.npz"
        )
        names = survey.recording.names
        if path is not None:
            known = CalibrationStats.read(path, names, survey.axes, survey.widths, len(shard))
            if known is not None:
                return shard, known
        made = CalibrationStats.empty(names, survey.axes)
        for number, sample in _read_calibration_samples(shard):
            seen = recorder.run(sample, kept=False)
            with _name_sample_in_errors(shard, number):
                made.add(number - shard.first, seen)
        if path is not None:
            made.save(path)
        return shard, made

    return found


@contextmanager
def _name_sample_in_errors(shard: Shard, number: int) -> Iterator[None]:
    """Say which sample it is that is refused."""
    try:
        yield
    except AnybitError as error:
        raise type(error)(f"{shard.describe_sample(number)}{error}") from error


def _read_calibration_samples(shard: Shard) -> Iterator[tuple[int, Sample]]:
    return shard.read(lambda number: not is_held_out(number))


def _compute_digest(survey: StatsTask, shard: Shard) -> str:
    """Of what determines what is found in a shard."""
    versions = (CACHE_FORMAT, onnxruntime.__version__, platform.machine(), isa())
    state = sha256(repr((versions, survey.axes)).encode() + survey.recording.digest)
    for number, sample in _read_calibration_samples(shard):
        for name, array in sample.items():
            kind = (number - shard.first, name, array.dtype.str, array.shape)
            state.update(repr(kind).encode())
            state.update(array.tobytes())
    return state.hexdigest()
