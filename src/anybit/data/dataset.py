# SPDX-License-Identifier: Apache-2.0
"""The data that a model is quantized with: samples, read as often as they are asked for, and in
shards that others can read."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
from anybit.data.row_independence import find_differing_pair
from anybit.data.shards import Portion, Shard
from anybit.errors import DataError
from anybit.inputs import Array, Feeds, TensorInfo

DataSource: TypeAlias = str | os.PathLike[str] | Feeds | Iterable[Feeds]

# Among the first so many samples, and as many of the others, two are looked for that differ, to try
# whether rows are independent.
_SEARCHED = 256
# The samples of a shard at least, and the shards at most.
_SHARD, _SHARDS = 16, 4096
# The most samples that are joined in a batch.
_TOGETHER = 16


class Dataset:
    """What a model takes at least, again and again: a row, or all that was given together.

    Rows are taken apart along the first axes that the model leaves free, or has fixed to so many
    rows at a time, if all inputs have as many of them and no name of such an axis stands for
    another one. One of every four samples is held back, to judge by; of a single one nothing is.

    Args:
        data: The path of an .npz, by input name, or of an .npy, or of a folder of them; one array
            or a dict; or an iterable of these. What is not a list or tuple is read once, into a
            temporary folder: another time it may be shuffled.
        inputs: The model's.
        labels: The name of an array beside the inputs, which `shares` gives along with them.

    Raises:
        DataError: There are no samples, or one does not fit the model, or holds NaN or infinity.
    """

    def __init__(
        self,
        data: DataSource,
        inputs: tuple[TensorInfo, ...],
        labels: str | None = None,
    ) -> None:
        free = {each.name: each.shape[0] for each in inputs if each.shape and each.rows is None}
        others = {size for each in inputs for size in (each.shape or ())[1:]} - {None}
        fixed = {each.name: each.rows for each in inputs if each.rows is not None}
        steps: dict[str, int] = dict.fromkeys(free, 1) if free else fixed
        apart = others.isdisjoint(free.values())
        self._reader = SampleReader(inputs, steps, apart, labels)
        self._together, self._joinable = bool(free), False
        self._why = "not all inputs have the same rows along their first axis"
        self._folder: Path | None = None
        self._items = self._kept(data)
        self._count: int | None = None
        if next(iter(self), None) is None:
            raise DataError("the data hold no samples; give at least one, better hundreds")

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why all rows are one sample, if they are."""
        if self.apart or len(self) > 1:
            return ()
        arrays = [array for name, array in next(iter(self)).items() if name in self._reader.steps]
        if all(len(array) < 2 for array in arrays if array.ndim):
            return ()
        return (
            f"All rows are one sample, by which quantizers are chosen and judged: {self._why}; "
            "give an item per sample.",
        )

    @property
    def apart(self) -> bool:
        """Whether rows are samples of their own."""
        return self._reader.apart

    def __iter__(self) -> Iterator[Sample]:
        for _, arrays, where in self._opened():
            count = self._reader.count(arrays)
            for row in (None,) if count is None else range(count):
                yield self._reader.read(self._reader.part(arrays, row), where)

    def shares(self) -> Iterator[tuple[int, Array | None]]:
        """For each sample how many rows it has, 1 where inputs differ in that or have none, and its
        labels, or None where these have no name. Inputs are not read.

        Raises:
            DataError: Labels that are missing, or that cannot be dealt out among the samples.
        """
        for _, arrays, where in self._opened():
            count = self._reader.count(arrays)
            labels = None if self._reader.labels is None else arrays[self._reader.labels]
            for row in (None,) if count is None else range(count):
                parts = self._reader.part(arrays, row)
                sizes = {(*parts[name].shape, 1)[0] for name in self._reader.steps}
                rows = sizes.pop() if len(sizes) == 1 else 1
                given = (
                    None if labels is None else select_labels(labels, row or 0, count or 1, where)
                )
                yield rows, given

    def sizes(self) -> Iterator[int]:
        """How many bytes each of them takes, as the model takes it. Inputs are not read."""
        for _, arrays, _ in self._opened():
            count = self._reader.count(arrays)
            first = self._reader.part(arrays, None if count is None else 0)
            yield from repeat(self._reader.size(first), 1 if count is None else count)

    def __len__(self) -> int:
        """How many there are."""
        if self._count is None:
            counts = (self._reader.count(arrays) for _, arrays, _ in self._opened())
            self._count = sum(1 if count is None else count for count in counts)
        return self._count

    def shards(self, near: bool = True, size: int | None = None) -> Iterator[Shard]:
        """All of them, in order. How many a shard has depends on how many there are, and on
        nothing else, so that what is made of shards is the same whoever reads them.

        Files are named, and read by who reads the shard, where that does not mean reading what
        lies before it again and again; all else is read here, once, as shards are asked for.

        Args:
            near: Whether those who read them see the temporary files of this process.
            size: The number of samples of a shard, if there are not too many; 16 by default.
        """
        size = size or _SHARD
        while size * _SHARDS < len(self):
            size *= 2
        portions: list[Portion] = []
        number = 0
        for item, arrays, where in self._opened():
            count = self._reader.count(arrays)
            named = self._named(item, arrays, count, size, near)
            start = 0
            while start < (1 if count is None else count):
                stop = start + size - number % size
                rows = None if count is None else range(start, min(stop, count))
                portions.append(self._portion(named, arrays, rows, where))
                number += 1 if rows is None else len(rows)
                start = stop
                if number % size == 0:
                    yield Shard(number - size, self._reader, tuple(portions))
                    portions = []
        if portions:
            yield Shard(number - number % size, self._reader, tuple(portions))

    def names(self) -> Iterator[str]:
        """What to call each of them: the file that it is from, and the place in that."""
        for item, arrays, _ in self._opened():
            is_given = isinstance(item, str | os.PathLike) and Path(item).parent != self._folder
            file = Path(str(item)).name if is_given else ""
            count = self._reader.count(arrays) or 1
            for row in range(count):
                yield f"{file}[{row}]" if file and count > 1 else file

    def numbered(self, wanted: Container[int]) -> Iterator[tuple[int, Sample]]:
        """Some of them, with their numbers."""
        for shard in self.shards():
            yield from shard.read(wanted.__contains__)

    def joined(self, samples: Sequence[Sample]) -> list[Sample]:
        """The same rows in fewer samples, as far as that is known to give the same."""
        return concatenate_samples(samples, self._reader.steps if self._joinable else {})

    def count(self, sample: Sample) -> int:
        """How many of them are joined in one."""
        return self._reader.count(sample) or 1

    def fitting(self, numbers: Sequence[int], memory: int) -> list[int]:
        """Return the first of these samples that fit into n bytes together; at least one."""
        sizes = list(self.sizes())
        ends = accumulate(sizes[number] for number in numbers)
        few = [number for number, end in zip(numbers, ends, strict=True) if end <= memory]
        return few or list(numbers[:1])

    def several(self, numbers: Sequence[int], at_once: int) -> list[Sample]:
        """Return samples by number, joined into batches of at most n bytes where rows allow.

        Neighbours often have the same shape.
        """
        known = [each for _, each in self.numbered(frozenset(numbers))]
        most = max(sum(array.nbytes for array in each.values()) for each in known)
        step = max(min(_TOGETHER, at_once // max(most, 1)), 1)
        return [
            each for at in range(0, len(known), step) for each in self.joined(known[at : at + step])
        ]

    def take_whole_unless(
        self, independent: Callable[[Sample, Sample, Sample], bool | None]
    ) -> None:
        """Take rows apart only if a predicate holds for two that differ and for both in one, or
        is None, where the model takes one at a time."""
        if self.apart and self._together:
            tried = chain(islice(self, _SEARCHED), self._spread())
            pair = find_differing_pair(tried, self._reader.steps)
            answer = pair is not None and independent(*pair)
            if pair is not None:
                self._why = "rows do not give together what they give apart"
            elif any(self._reader.count(arrays) is not None for _, arrays, _ in self._opened()):
                self._why = "rows are all the same, as far as they were compared"
            self._reader = replace(self._reader, apart=answer is not False)
            self._joinable = answer is True
            self._count = None

    def _spread(self) -> Iterator[Sample]:
        """Some from all over the data behind the first."""
        others = range(_SEARCHED, len(self), max(len(self) // _SEARCHED, 1))
        yield from (each for _, each in self.numbered(others))

    def _named(
        self,
        item: object,
        arrays: Mapping[str, SliceableArray],
        count: int | None,
        size: int,
        near: bool,
    ) -> str | None:
        """The path of an item that others read by themselves; None if there is none."""
        if not isinstance(item, str | os.PathLike):
            return None
        if not near and Path(item).parent == self._folder:
            return None
        cut = [each for name, each in arrays.items() if name in self._reader.steps]
        in_place = all(isinstance(each, StoredArray) and each.is_indexed for each in cut)
        # A small file is cut at most once.
        return str(Path(item).absolute()) if (count or 1) <= size or in_place else None

    def _portion(
        self,
        named: str | None,
        arrays: Mapping[str, SliceableArray],
        rows: range | None,
        where: str,
    ) -> Portion:
        if named is not None:
            return Portion(named, rows, where)
        found = {}
        for name, array in arrays.items():
            step = self._reader.steps.get(name) if rows is not None else None
            if name == self._reader.labels and array.shape:
                step = 0  # they are dealt out by `shares`
            part = (
                slice(None)
                if rows is None or step is None
                else slice(rows.start * step, rows.stop * step)
            )
            found[name] = ArrayRows(array, part).read()
        return Portion(found, rows and range(len(rows)), where, rows.start if rows else 0)

    def _opened(self) -> Iterator[tuple[object, Mapping[str, SliceableArray], str]]:
        """The items, their arrays by input name, and what to call each in messages."""
        for index, item in enumerate(self._items):
            is_given = isinstance(item, str | os.PathLike) and Path(item).parent != self._folder
            where = f"{item}: " if is_given else f"sample {index}: "
            yield item, self._reader.opened(item, where), where

    def _kept(self, data: DataSource) -> Iterable[object]:
        """The items: as often as one asks, and the same."""
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
