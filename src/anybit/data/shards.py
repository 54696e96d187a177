# SPDX-License-Identifier: Apache-2.0
"""Samples that follow one another, to be read by others; and which are held back."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from anybit.data.readers import Sample, SampleReader

# One of so many samples judges.
_PERIOD = 4


def is_held_out(index: int) -> bool:
    """Whether a sample is held back, by its number."""
    return is_selected(index, _PERIOD)


def is_selected(index: int, period: int) -> bool:
    """Whether a number is the one of so many that is taken: the second of the first ones, then
    by a hash, since data often have a period of their own."""
    group, place = divmod(index, period)
    return place == (int.from_bytes(hash_index(group)[:8], "little") if group else 1) % period


def hash_index(number: int) -> bytes:
    """What puts numbers in an order that has nothing to do with theirs, the same for everybody."""
    return sha256(number.to_bytes(8, "little")).digest()


@dataclass(frozen=True)
class Portion:
    """Samples of an item: a path, or arrays.

    Attributes:
        rows: Which samples; None for the whole item as one.
        where: What to call it in messages.
        before: How many samples of what was given stood before these, if they were cut out of it.
    """

    item: object
    rows: range | None
    where: str
    before: int = 0

    @property
    def count(self) -> int:
        return 1 if self.rows is None else len(self.rows)


@dataclass(frozen=True)
class Shard:
    """Samples that follow one another. It can be sent to others, who read them.

    Attributes:
        first: The number of the first of them.
    """

    first: int
    _reader: SampleReader
    _portions: tuple[Portion, ...]

    def read(self, is_wanted: Callable[[int], bool]) -> Iterator[tuple[int, Sample]]:
        """Those whose numbers are wanted; others are not read.

        Raises:
            DataError: One does not fit the model, or holds NaN or infinity.
        """
        number = self.first
        for portion in self._portions:
            rows: Iterable[int | None] = (None,) if portion.rows is None else portion.rows
            wanted = [(at, row) for at, row in enumerate(rows, number) if is_wanted(at)]
            number += portion.count
            if wanted:
                arrays = self._reader.opened(portion.item, portion.where)
            for at, row in wanted:
                part = self._reader.part(arrays, row)
                yield at, self._reader.read(part, portion.where, portion.before)

    def place(self, number: int) -> str:
        """What to call one of them in messages: the item, and the place in that."""
        first = self.first
        for portion in self._portions:
            if number < first + portion.count:
                break
            first += portion.count
        if portion.rows is None:
            return portion.where
        row = portion.rows[number - first] + portion.before
        return f"{portion.where.removesuffix(': ')}, {self._reader.place(row)}: "

    def __len__(self) -> int:
        return sum(each.count for each in self._portions)
