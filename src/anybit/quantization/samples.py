# SPDX-License-Identifier: Apache-2.0
"""The data that a model is quantized with: samples, read as often as they are asked for."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from anybit.array_files import open_arrays
from anybit.errors import ModelError
from anybit.inputs import Array, Feeds, Tensor, bound, check_shape, check_sizes, matched
from anybit.text import listed

Data: TypeAlias = str | os.PathLike[str] | Feeds | Iterable[Feeds]
Sample: TypeAlias = dict[str, Array]

# Every fourth sample judges, from the second on.
_PERIOD, _FIRST = 4, 1


class Rows(Protocol):
    """An array, in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, rows: slice, /) -> Array: ...


class Samples:
    """What a model takes at least, again and again: a row, or all that was given together.

    Rows are taken apart along the first axes that the model leaves free, or has fixed to so many
    rows at a time, if all inputs have as many of them. Every fourth sample is held back, to judge
    by; of a single one nothing is.

    Args:
        data: The path of an .npz, by input name, or of an .npy, or of a folder of them; one array
            or a dict; or an iterable of these. What can be read only once is written to a
            temporary folder.
        inputs: The model's.

    Raises:
        ModelError: There are no samples, or one does not fit the model, or holds NaN or infinity.
    """

    def __init__(self, data: Data, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = inputs
        free = [each.name for each in inputs if each.shape and each.rows is None]
        fixed = {each.name: each.rows for each in inputs if each.rows is not None}
        self._steps: dict[str, int] = dict.fromkeys(free, 1) if free else fixed
        self._together = bool(free)
        self._folder: Path | None = None
        self._items = self._kept(data)
        self.apart = True
        self._count: int | None = None
        if next(iter(self), None) is None:
            raise ModelError("the data hold no samples; give at least one, better hundreds")

    def __iter__(self) -> Iterator[Sample]:
        for item, where in self._opened():
            rows = self._rows(item) if self.apart else None
            if rows is None:
                yield self._checked({name: _part(item[name], None) for name in item}, where)
                continue
            for row in range(rows):
                parts = {
                    name: slice(row * step, (row + 1) * step) for name, step in self._steps.items()
                }
                yield self._checked(
                    {name: _part(item[name], parts.get(name)) for name in item}, where
                )

    def __len__(self) -> int:
        """How many there are."""
        if self._count is None:
            apart = (self._rows(item) if self.apart else None for item, _ in self._opened())
            self._count = sum(1 if rows is None else rows for rows in apart)
        return self._count

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
        """Take rows apart only if a predicate holds for two samples and for both in one."""
        first = list(islice(self, 2))
        if len(first) == 2 and self._together and _shapes(first[0]) == _shapes(first[1]):
            joined = {
                name: np.concatenate([each[name] for each in first])
                if name in self._steps
                else array
                for name, array in first[0].items()
            }
            self.apart = independent(first[0], first[1], joined)
            self._count = None

    def _rows(self, item: Mapping[str, Rows]) -> int | None:
        """How many samples the rows of an item are; None if they cannot be taken apart."""
        counts = set()
        for name, step in self._steps.items():
            first = item[name].shape[0] if item[name].shape else 0
            if first % step or not item[name].shape:
                return None
            counts.add(first // step)
        return counts.pop() if len(counts) == 1 else None

    def _checked(self, sample: Mapping[str, Any], where: str) -> Sample:
        try:
            feeds = bound(self._inputs, sample)
            check_sizes(self._inputs, feeds)
            for each in self._inputs:
                check_shape(each, feeds[each.name])
        except ModelError as error:
            raise ModelError(f"{where}{error}") from error
        for name, array in feeds.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ModelError(f"{where}input {name!r} holds NaN or infinity; leave it out")
        return feeds

    def _opened(self) -> Iterator[tuple[Mapping[str, Rows], str]]:
        """The items, by input name, and what to call each in messages."""
        names = [each.name for each in self._inputs]
        for index, item in enumerate(self._items):
            is_file = isinstance(item, Path)
            where = f"{item}: " if is_file and self._folder is None else f"sample {index}: "
            arrays: Mapping[str, Any]
            if is_file:
                arrays = dict(open_arrays(cast(Path, item)))
            elif isinstance(item, Mapping):
                arrays = {str(name): np.asarray(array) for name, array in item.items()}
            else:
                arrays = {"": np.asarray(item)}
            found = matched(names, arrays, "x")
            if len(found) != len(names):
                held = listed(name or "one array without a name" for name in arrays) or "nothing"
                raise ModelError(f"{where}it holds {held}; the model takes {listed(names)}")
            yield found, where

    def _kept(self, data: Data) -> Iterable[object]:
        """The items: as often as one asks."""
        if isinstance(data, str | os.PathLike):
            return _files(Path(data))
        if isinstance(data, Mapping) or hasattr(data, "__array__") or _is_numbers(data):
            return [data]
        items: Iterable[Any] = cast(Iterable[Any], data)
        if iter(items) is items:
            self._folder = Path(tempfile.mkdtemp(prefix="anybit-samples-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            items = self._written(self._folder, items)
        if next(iter(items), None) is None:
            raise ModelError("there are no samples; give at least one, better hundreds")
        return items

    def _written(self, folder: Path, items: Iterable[Any]) -> list[Path]:
        paths = []
        for index, item in enumerate(items):
            arrays = item if isinstance(item, Mapping) else {"x": item}
            paths.append(folder / f"{index}.npz")
            named: dict[str, Any] = {str(name): np.asarray(each) for name, each in arrays.items()}
            np.savez(paths[-1], **named)
        return paths


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in (".npy", ".npz"))
    if not found:
        raise ModelError(f"{path} holds no .npy and no .npz files")
    return found


def _is_numbers(data: object) -> bool:
    return isinstance(data, list | tuple) and bool(data) and isinstance(data[0], int | float)


def _part(array: Rows, rows: slice | None) -> Array:
    if rows is None:
        return array[:] if array.shape or not isinstance(array, np.ndarray) else array
    return array[rows]


def _shapes(sample: Sample) -> list[tuple[int, ...]]:
    return [array.shape for array in sample.values()]
