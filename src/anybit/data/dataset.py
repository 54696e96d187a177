# SPDX-License-Identifier: Apache-2.0
"""Datasets: samples of a model's inputs, which can be read repeatedly and in shards."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice, repeat
from pathlib import Path
from typing import Any, TypeAlias, cast

from anybit.data.array_files import StoredArray
from anybit.data.readers import (
    ArrayRows,
    Sample,
    SampleReader,
    SliceableArray,
    concatenate_samples,
    is_numbers,
    list_data_files,
    select_labels,
    write_item,
)
from anybit.data.row_independence import IndependenceTest, find_differing_pair
from anybit.data.shards import Shard, ShardPart
from anybit.errors import DataError
from anybit.inputs import Feeds, TensorInfo
from anybit.onnx.graph.constants import Array

DataSource: TypeAlias = str | os.PathLike[str] | Feeds | Iterable[Feeds]

_SEARCHED_SAMPLES = 256
"""First samples, and as many of the others, that are searched for two that differ."""
_SHARD_SAMPLES = 16
"""The fewest samples per shard."""
_MAX_SHARDS = 4096
_MAX_BATCH = 16
"""The most samples that are concatenated to one batch."""


class Dataset:
    """Samples of a model's inputs: rows of the data, or whole items.

    An item is split into samples along its first axis in two cases. That axis is
    dynamic, or the model fixes it to the number of rows per sample. All inputs must have as many
    samples, and the name of a dynamic axis must not name another axis, too. One of every four
    samples is held out, unless there is only one.

    Args:
        data: The path of an .npz with arrays by input name, of an .npy, or of a folder of these;
            an array or a dict; or an iterable of these. An iterable other than a list or tuple is
            read once, into a temporary folder, because it may be shuffled the next time.
        inputs: The inputs of the model.
        labels: The name of an array beside the inputs, which `iterate_labels` returns.

    Raises:
        DataError: There are no samples, or one does not fit the model, or holds NaN or infinity.
    """

    def __init__(
        self,
        data: DataSource,
        inputs: tuple[TensorInfo, ...],
        labels: str | None = None,
    ) -> None:
        dynamic = {info.name: info.shape[0] for info in inputs if info.shape and info.rows is None}
        other_axes = {size for info in inputs for size in (info.shape or ())[1:]} - {None}
        fixed = {info.name: info.rows for info in inputs if info.rows is not None}
        steps: dict[str, int] = dict.fromkeys(dynamic, 1) if dynamic else fixed
        self._reader = SampleReader(inputs, steps, other_axes.isdisjoint(dynamic.values()), labels)
        self._has_dynamic_rows, self._can_batch = bool(dynamic), False
        self._reason = "not all inputs have the same rows along their first axis"
        self._folder: Path | None = None
        self._items = self._list_items(data)
        self._count: int | None = None
        if next(iter(self), None) is None:
            raise DataError("the data hold no samples; give at least one, better hundreds")

    @property
    def remarks(self) -> tuple[str, ...]:
        """The reason why all rows are one sample, if they are."""
        if self.rows_are_samples or len(self) > 1:
            return ()
        arrays = [array for name, array in next(iter(self)).items() if name in self._reader.steps]
        if all(len(array) < 2 for array in arrays if array.ndim):
            return ()
        return (
            "All rows are treated as one sample, for calibration and evaluation alike: "
            f"{self._reason}; give a folder with a file per sample, or a list.",
        )

    @property
    def rows_are_samples(self) -> bool:
        """True if items are split into samples along their first axis."""
        return self._reader.rows_are_samples

    def __iter__(self) -> Iterator[Sample]:
        for _, arrays, where in self._open_items():
            count = self._reader.count_samples(arrays)
            for index in (None,) if count is None else range(count):
                yield self._reader.read(self._reader.select_sample(arrays, index), where)

    def __len__(self) -> int:
        if self._count is None:
            counts = (self._reader.count_samples(arrays) for _, arrays, _ in self._open_items())
            self._count = sum(1 if count is None else count for count in counts)
        return self._count

    def iterate_labels(self) -> Iterator[tuple[int, Array | None]]:
        """Yield the number of rows and the labels of each sample, without reading inputs.

        The number of rows is 1 where inputs differ in it or have none. Labels without a name in the
        data are None.

        Raises:
            DataError: Labels are missing, or cannot be divided among the samples.
        """
        for _, arrays, where in self._open_items():
            count = self._reader.count_samples(arrays)
            labels = None if self._reader.labels is None else arrays[self._reader.labels]
            for index in (None,) if count is None else range(count):
                parts = self._reader.select_sample(arrays, index)
                sizes = {(*parts[name].shape, 1)[0] for name in self._reader.steps}
                rows = sizes.pop() if len(sizes) == 1 else 1
                if labels is None:
                    yield rows, None
                else:
                    yield rows, select_labels(labels, index or 0, count or 1, where)

    def iterate_sizes(self) -> Iterator[int]:
        """Yield the size of each sample in bytes, without reading inputs."""
        for _, arrays, _ in self._open_items():
            count = self._reader.count_samples(arrays)
            first = self._reader.select_sample(arrays, None if count is None else 0)
            yield from repeat(self._reader.count_bytes(first), 1 if count is None else count)

    def iterate_shards(self, is_local: bool = True, size: int | None = None) -> Iterator[Shard]:
        """Yield all samples in order, in shards.

        The size of shards depends on the number of samples alone, so that results do not depend on
        the number of workers. A shard names its files if a worker can read them without reading
        everything in front of the shard. All other data are read here, once, as shards are asked
        for.

        Args:
            is_local: Whether workers see the temporary files of this process.
            size: The samples per shard, doubled until there are few enough; 16 by default.
        """
        size = size or _SHARD_SAMPLES
        while size * _MAX_SHARDS < len(self):
            size *= 2
        parts: list[ShardPart] = []
        number = 0
        for item, arrays, where in self._open_items():
            count = self._reader.count_samples(arrays)
            path = self._get_worker_path(item, arrays, count, size, is_local)
            start = 0
            while start < (1 if count is None else count):
                stop = start + size - number % size
                indices = None if count is None else range(start, min(stop, count))
                parts.append(self._make_part(path, arrays, indices, where))
                number += 1 if indices is None else len(indices)
                start = stop
                if number % size == 0:
                    yield Shard(number - size, self._reader, tuple(parts))
                    parts = []
        if parts:
            yield Shard(number - number % size, self._reader, tuple(parts))

    def select(self, indices: Container[int]) -> Iterator[tuple[int, Sample]]:
        """Yield (index, sample) of some samples."""
        for shard in self.iterate_shards():
            yield from shard.read(indices.__contains__)

    def concatenate(self, samples: Sequence[Sample]) -> list[Sample]:
        """Concatenate samples to batches, if rows are known to be independent."""
        return concatenate_samples(samples, self._reader.steps if self._can_batch else {})

    def count_samples(self, batch: Sample) -> int:
        """Return the number of samples in a batch."""
        return self._reader.count_samples(batch) or 1

    def limit_memory(self, indices: Sequence[int], max_bytes: int) -> list[int]:
        """Return the leading indices whose samples take at most n bytes together; at least one."""
        sizes = list(self.iterate_sizes())
        totals = accumulate(sizes[index] for index in indices)
        fitting = [
            index for index, total in zip(indices, totals, strict=True) if total <= max_bytes
        ]
        return fitting or list(indices[:1])

    def read_batches(self, indices: Sequence[int], batch_bytes: int) -> list[Sample]:
        """Return samples by index, concatenated to batches of at most n bytes where rows allow.

        Neighbours often have the same shape.
        """
        samples = [sample for _, sample in self.select(frozenset(indices))]
        largest = max(sum(array.nbytes for array in sample.values()) for sample in samples)
        step = max(min(_MAX_BATCH, batch_bytes // max(largest, 1)), 1)
        return [
            batch
            for start in range(0, len(samples), step)
            for batch in self.concatenate(samples[start : start + step])
        ]

    def verify_row_independence(self, test: IndependenceTest) -> None:
        """Treat items as single samples, unless a test shows that rows are independent.

        The test runs on two samples that differ. It returns None if the model takes one sample at a
        time, which leaves rows apart, too.
        """
        if self.rows_are_samples and self._has_dynamic_rows:
            searched = chain(islice(self, _SEARCHED_SAMPLES), self._iterate_spread())
            pair = find_differing_pair(searched, self._reader.steps)
            result = pair is not None and test(*pair)
            if pair is not None:
                self._reason = "the results of a row depend on the other rows"
            elif any(
                self._reader.count_samples(arrays) is not None
                for _, arrays, _ in self._open_items()
            ):
                self._reason = (
                    "all compared rows are equal, which does not show whether they are independent"
                )
            self._reader = replace(self._reader, rows_are_samples=result is not False)
            self._can_batch = result is True
            self._count = None

    def _iterate_spread(self) -> Iterator[Sample]:
        """Yield samples at equal distances from the samples after the first ones."""
        step = max(len(self) // _SEARCHED_SAMPLES, 1)
        indices = range(_SEARCHED_SAMPLES, len(self), step)
        yield from (sample for _, sample in self.select(indices))

    def _get_worker_path(
        self,
        item: object,
        arrays: Mapping[str, SliceableArray],
        count: int | None,
        size: int,
        is_local: bool,
    ) -> str | None:
        """Return the path of a file that workers read by themselves; None for other items."""
        if not isinstance(item, str | os.PathLike):
            return None
        if not is_local and Path(item).parent == self._folder:
            return None
        split = [array for name, array in arrays.items() if name in self._reader.steps]
        is_indexed = all(isinstance(array, StoredArray) and array.is_indexed for array in split)
        # A small file is divided between two shards at most.
        return str(Path(item).absolute()) if (count or 1) <= size or is_indexed else None

    def _make_part(
        self,
        path: str | None,
        arrays: Mapping[str, SliceableArray],
        indices: range | None,
        where: str,
    ) -> ShardPart:
        if path is not None:
            return ShardPart(path, indices, where)
        read = {}
        for name, array in arrays.items():
            step = self._reader.steps.get(name) if indices is not None else None
            if name == self._reader.labels and array.shape:
                step = 0  # `iterate_labels` returns them
            rows = (
                slice(None)
                if indices is None or step is None
                else slice(indices.start * step, indices.stop * step)
            )
            read[name] = ArrayRows(array, rows).read()
        offset = indices.start if indices else 0
        return ShardPart(read, indices and range(len(indices)), where, offset)

    def _open_items(self) -> Iterator[tuple[object, Mapping[str, SliceableArray], str]]:
        """Yield the items, their arrays by input name, and their names for messages."""
        for index, item in enumerate(self._items):
            where = f"{item}: " if self._is_user_file(item) else f"sample {index}: "
            yield item, self._reader.open(item, where), where

    def _is_user_file(self, item: object) -> bool:
        return isinstance(item, str | os.PathLike) and Path(item).parent != self._folder

    def _list_items(self, data: DataSource) -> Iterable[object]:
        """Return the items in a form that can be iterated repeatedly."""
        if isinstance(data, str | os.PathLike):
            return list_data_files(Path(data))
        if isinstance(data, Mapping) or hasattr(data, "__array__") or is_numbers(data):
            return [data]
        items: Iterable[Any] = cast(Iterable[Any], data)
        if not isinstance(items, list | tuple):
            self._folder = Path(tempfile.mkdtemp(prefix="anybit-samples-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            items = [write_item(self._folder, index, item) for index, item in enumerate(items)]
        if not items:
            raise DataError("there are no samples; give at least one, better hundreds")
        return items
