# SPDX-License-Identifier: Apache-2.0
"""Shards: runs of consecutive samples that another process can read."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from anybit.data.readers import Sample, SampleReader


@dataclass(frozen=True)
class ShardPart:
    """Consecutive samples of one item.

    Attributes:
        item: A path, or arrays by name.
        indices: The samples of the item; None if the whole item is one sample.
        where: The item, for messages.
        offset: The number of samples that were cut off in front of the arrays.
    """

    item: object
    indices: range | None
    where: str
    offset: int = 0

    @property
    def count(self) -> int:
        """The number of samples."""
        return 1 if self.indices is None else len(self.indices)


@dataclass(frozen=True)
class Shard:
    """Consecutive samples of a dataset, which can be pickled unread.

    Attributes:
        first: The index of the first sample in the dataset.
    """

    first: int
    _reader: SampleReader
    _parts: tuple[ShardPart, ...]

    def read(self, predicate: Callable[[int], bool]) -> Iterator[tuple[int, Sample]]:
        """Yield (index, sample) for indices that fulfil a predicate; other samples stay unread.

        Raises:
            DataError: A sample does not fit the model, or holds NaN or infinity.
        """
        number = self.first
        for part in self._parts:
            indices: Iterable[int | None] = (None,) if part.indices is None else part.indices
            selected = [(at, index) for at, index in enumerate(indices, number) if predicate(at)]
            number += part.count
            if selected:
                arrays = self._reader.open(part.item, part.where)
            for at, index in selected:
                sample = self._reader.select_sample(arrays, index)
                yield at, self._reader.read(sample, part.where, part.offset)

    def describe_sample(self, number: int) -> str:
        """Return the item and the rows of a sample, for messages."""
        first = self.first
        for part in self._parts:
            if number < first + part.count:
                break
            first += part.count
        if part.indices is None:
            return part.where
        index = part.indices[number - first] + part.offset
        return f"{part.where.removesuffix(': ')}, {self._reader.describe_sample(index)}: "

    def __len__(self) -> int:
        return sum(part.count for part in self._parts)
