# SPDX-License-Identifier: Apache-2.0
"""The data that a model is quantized with: samples, read as often as they are asked for."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from anybit.array_files import open_arrays, write_members
from anybit.errors import ModelError
from anybit.inputs import Array, Feeds, Tensor, bound, check_shape, check_sizes, matched
from anybit.text import counted, listed

Data: TypeAlias = str | os.PathLike[str] | Feeds | Iterable[Feeds]
Sample: TypeAlias = dict[str, Array]

# Every fourth sample judges, from the second on.
_PERIOD, _FIRST = 4, 1
# Among so many samples two are looked for that differ, to try whether rows are independent.
_SEARCHED = 256


class Rows(Protocol):
    """An array, in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, rows: slice, /) -> Array: ...


@dataclass(frozen=True)
class _Part:
    """Rows of an array that have not been read."""

    whole: Rows
    rows: slice

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.whole.shape
        return (len(range(*self.rows.indices(shape[0]))), *shape[1:]) if shape else ()

    def read(self) -> Array:
        if isinstance(self.whole, np.ndarray) and not self.shape:
            return self.whole
        return self.whole[self.rows]


class Samples:
    """What a model takes at least, again and again: a row, or all that was given together.

    Rows are taken apart along the first axes that the model leaves free, or has fixed to so many
    rows at a time, if all inputs have as many of them and no name of such an axis stands for
    another one. Every fourth sample is held back, to judge by; of a single one nothing is.

    Args:
        data: The path of an .npz, by input name, or of an .npy, or of a folder of them; one array
            or a dict; or an iterable of these. What is not a list or tuple is read once, into a
            temporary folder: another time it may be shuffled.
        inputs: The model's.
        labels: The name of an array beside the inputs, which `labelled` gives along with them.

    Raises:
        ModelError: There are no samples, or one does not fit the model, or holds NaN or infinity.
    """

    def __init__(self, data: Data, inputs: tuple[Tensor, ...], labels: str | None = None) -> None:
        self._inputs = inputs
        self._labels = labels
        free = {each.name: each.shape[0] for each in inputs if each.shape and each.rows is None}
        others = {size for each in inputs for size in (each.shape or ())[1:]} - {None}
        fixed = {each.name: each.rows for each in inputs if each.rows is not None}
        self._steps: dict[str, int] = dict.fromkeys(free, 1) if free else fixed
        self._together = bool(free)
        self._folder: Path | None = None
        self._items = self._kept(data)
        self.apart = others.isdisjoint(free.values())
        self._count: int | None = None
        if next(iter(self), None) is None:
            raise ModelError("the data hold no samples; give at least one, better hundreds")

    def __iter__(self) -> Iterator[Sample]:
        return (sample for sample, _ in self.labelled())

    def labelled(self) -> Iterator[tuple[Sample, Array | None]]:
        """The samples, each with its share of the labels, or None where these have no name.

        Raises:
            ModelError: Labels that are missing, or that cannot be dealt out among the samples.
        """
        for item, where in self._opened():
            rows = self._rows(item) if self.apart else None
            steps = {} if rows is None else self._steps
            labels = item.pop(self._labels) if self._labels is not None else None
            for row in range(1 if rows is None else rows):
                parts = {name: slice(row * step, (row + 1) * step) for name, step in steps.items()}
                sample = self._checked(
                    {name: _Part(item[name], parts.get(name, slice(None))) for name in item}, where
                )
                yield sample, None if labels is None else _share(labels, row, rows or 1, where)

    def __len__(self) -> int:
        """How many there are."""
        if self._count is None:
            apart = (self._rows(item) if self.apart else None for item, _ in self._opened())
            self._count = sum(1 if rows is None else rows for rows in apart)
        return self._count

    def rows_in(self, sample: Sample) -> int:
        """How many rows a sample has: 1 where inputs differ in that, or have none."""
        sizes = {len(sample[name]) if sample[name].ndim else 1 for name in self._steps}
        return sizes.pop() if len(sizes) == 1 else 1

    def is_held(self, index: int) -> bool:
        """Whether that one is held back."""
        return index % _PERIOD == _FIRST

    def calibration(self) -> Iterator[tuple[int, Sample]]:
        """The samples to choose quantizers by, with their numbers."""
        return ((i, each) for i, each in enumerate(self) if not self.is_held(i))

    def held_back(self) -> Iterator[Sample]:
        """Those to judge them by: others, unless there is only one."""
        return islice(self, 0 if len(self) == 1 else _FIRST, None, _PERIOD)

    def take_whole_unless(self, independent: Callable[[Sample, Sample, Sample], bool]) -> None:
        """Take rows apart only if a predicate holds for two that differ and for both in one."""
        if self.apart and self._together:
            pair = self._pair()
            self.apart = pair is not None and independent(*pair)
            self._count = None

    def _pair(self) -> tuple[Sample, Sample, Sample] | None:
        """Two samples that differ, and both in one; None if there are none among the first."""
        seen: dict[tuple[object, ...], Sample] = {}
        for sample in islice(self, _SEARCHED):
            alike = tuple(
                array.shape if name in self._steps else array.tobytes()
                for name, array in sample.items()
            )
            first = seen.setdefault(alike, sample)
            if not all(np.array_equal(first[name], sample[name]) for name in self._steps):
                joined = {name: np.concatenate([first[name], sample[name]]) for name in self._steps}
                return first, sample, sample | joined
        return None

    def _rows(self, item: Mapping[str, Rows]) -> int | None:
        """How many samples the rows of an item are; None if they cannot be taken apart."""
        counts = set()
        for name, step in self._steps.items():
            first = item[name].shape[0] if item[name].shape else 0
            if first % step or not item[name].shape:
                return None
            counts.add(first // step)
        return counts.pop() if len(counts) == 1 else None

    def _checked(self, sample: Mapping[str, _Part], where: str) -> Sample:
        with _naming(where):
            check_sizes(self._inputs, sample)
            for each in self._inputs:
                part = sample[each.name]
                check_shape(each, part)
                if part.whole.dtype != each.dtype and part.whole.dtype.kind not in "fiub":
                    raise ModelError(
                        f"input {each.name!r} must be {each.dtype}, got {part.whole.dtype}"
                    )
        arrays = {name: part.read() for name, part in sample.items()}
        with _naming(where):
            feeds = bound(self._inputs, arrays)
        for name, array in feeds.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ModelError(f"{where}input {name!r} holds NaN or infinity; leave it out")
        return feeds

    def _opened(self) -> Iterator[tuple[dict[str, Rows], str]]:
        """The items, by the names of inputs and labels, and what to call each in messages."""
        names = [each.name for each in self._inputs]
        for index, item in enumerate(self._items):
            is_given = isinstance(item, str | os.PathLike) and Path(item).parent != self._folder
            where = f"{item}: " if is_given else f"sample {index}: "
            arrays = _arrays(item, where)
            held = listed(name or "one array without a name" for name in arrays) or "nothing"
            beside = {self._labels: arrays.pop(self._labels, None)} if self._labels else {}
            found = matched(names, arrays, "x")
            if len(found) != len(names):
                raise ModelError(f"{where}it holds {held}; the model takes {listed(names)}")
            if any(array is None for array in beside.values()):
                raise ModelError(f"{where}it holds {held}, and no labels called {self._labels!r}")
            yield found | beside, where

    def _kept(self, data: Data) -> Iterable[object]:
        """The items: as often as one asks, and the same."""
        if isinstance(data, str | os.PathLike):
            return _files(Path(data))
        if isinstance(data, Mapping) or hasattr(data, "__array__") or _is_numbers(data):
            return [data]
        items: Iterable[Any] = cast(Iterable[Any], data)
        if not isinstance(items, list | tuple):
            self._folder = Path(tempfile.mkdtemp(prefix="anybit-samples-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            items = [_written(self._folder, index, item) for index, item in enumerate(items)]
        if not items:
            raise ModelError("there are no samples; give at least one, better hundreds")
        return items


def _share(labels: Rows, index: int, count: int, where: str) -> Array:
    """The labels of one sample, of as many as the item has."""
    if count == 1:
        return _Part(labels, slice(None)).read()
    if not labels.shape or labels.shape[0] % count:
        raise ModelError(
            f"{where}there are labels of shape {list(labels.shape)} for {counted(count, 'sample')}"
        )
    step = labels.shape[0] // count
    return _Part(labels, slice(index * step, (index + 1) * step)).read()


@contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{where}{error}") from error


def _arrays(item: object, where: str) -> dict[str, Any]:
    """The arrays of an item by name, or one under the name ""."""
    if isinstance(item, str | os.PathLike):
        return dict(open_arrays(Path(item)))
    if isinstance(item, list | tuple) and not _is_numbers(item):
        raise ModelError(
            f"{where}a {type(item).__name__} of {len(item)}; give arrays, or dicts by input "
            "name, without labels, such as (x for x, label in loader)"
        )
    named = item if isinstance(item, Mapping) else {"": item}
    return {str(name): _array(value, where) for name, value in named.items()}


def _array(value: Any, where: str) -> Array:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged; of another device
        raise ModelError(f"{where}not an array: {error}") from error
    if array.dtype.hasobject:
        raise ModelError(f"{where}not numbers but {type(value).__name__} of objects")
    return array


def _written(folder: Path, index: int, item: object) -> str | os.PathLike[str]:
    if isinstance(item, str | os.PathLike):
        return item
    path = folder / f"{index}.npz"
    arrays = _arrays(item, f"sample {index}: ")
    write_members(path, {name or "x": array for name, array in arrays.items()})
    return path


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in (".npy", ".npz"))
    if not found:
        raise ModelError(f"{path} holds no .npy and no .npz files")
    return found


def _is_numbers(data: object) -> bool:
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, int | float | np.number)
