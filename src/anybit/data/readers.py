# SPDX-License-Identifier: Apache-2.0
"""What data come in: files and arrays that hold one sample or many, and how these are read."""

import os
from collections.abc import Collection, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from anybit.data.array_files import open_arrays, write_members
from anybit.errors import AnybitError, DataError
from anybit.inputs import Array, TensorInfo, bind_inputs, check_shape, check_sizes, match_arrays
from anybit.text import counted, listed

Sample: TypeAlias = dict[str, Array]


class SliceableArray(Protocol):
    """An array, in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, rows: slice, /) -> Array: ...


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array that have not been read."""

    whole: SliceableArray
    rows: slice

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.whole.shape
        return (len(range(*self.rows.indices(shape[0]))), *shape[1:]) if shape else ()

    def read(self) -> Array:
        if isinstance(self.whole, np.ndarray) and not self.shape:
            return self.whole
        return self.whole[self.rows]


@dataclass(frozen=True)
class SampleReader:
    """How samples are made of what was given.

    Attributes:
        inputs: The model's.
        steps: For inputs that are taken apart, how many rows of them a sample has.
        apart: Whether rows are samples of their own.
        labels: The name of an array that is read beside the inputs; None for none.
    """

    inputs: tuple[TensorInfo, ...]
    steps: Mapping[str, int]
    apart: bool
    labels: str | None = None

    def opened(self, item: object, where: str) -> Mapping[str, SliceableArray]:
        """The arrays of an item, by the names of inputs and labels.

        Raises:
            DataError: It holds others, or none.
        """
        names = [each.name for each in self.inputs]
        arrays = load_item(item, where)
        held = listed(name or "one array without a name" for name in arrays) or "nothing"
        beside = {} if self.labels is None else {self.labels: arrays.pop(self.labels, None)}
        found = match_arrays(names, arrays, "x")
        if len(found) != len(names):
            raise DataError(f"{where}it holds {held}; the model takes {listed(names)}")
        if any(array is None for array in beside.values()):
            raise DataError(f"{where}it holds {held}, and no labels called {self.labels!r}")
        return found | beside

    def count(self, item: Mapping[str, SliceableArray]) -> int | None:
        """How many samples the rows of an item are; None if they stay together."""
        counts = set()
        for name, step in self.steps.items() if self.apart else ():
            first = item[name].shape[0] if item[name].shape else 0
            if first % step or not item[name].shape:
                return None
            counts.add(first // step)
        return counts.pop() if len(counts) == 1 else None

    def part(self, item: Mapping[str, SliceableArray], row: int | None) -> dict[str, ArrayRows]:
        """One sample of an item; all of it if there is no row."""
        steps = (
            {}
            if row is None
            else {n: slice(row * step, (row + 1) * step) for n, step in self.steps.items()}
        )
        return {
            name: ArrayRows(item[name], steps.get(name, slice(None)))
            for name in (each.name for each in self.inputs)
        }

    def size(self, sample: Mapping[str, ArrayRows]) -> int:
        """How many bytes a sample takes, as the model takes it."""
        return sum(prod(sample[each.name].shape) * each.dtype.itemsize for each in self.inputs)

    def read(self, sample: Mapping[str, ArrayRows], where: str, before: int = 0) -> Sample:
        """The arrays of a sample, as the model takes them.

        Args:
            sample: What is to be read.
            where: What to call the item that it is of in messages.
            before: How many samples of the item stood before those that are left of it.

        Raises:
            DataError: It does not fit, or holds NaN, infinity, or more than the model computes.
        """
        with _naming(where):
            check_sizes(self.inputs, sample)
            for each in self.inputs:
                part = sample[each.name]
                check_shape(each, part, part.whole.shape)
                if part.whole.dtype != each.dtype and part.whole.dtype.kind not in "fiub":
                    raise DataError(
                        f"input {each.name!r} must be {each.dtype}, got {part.whole.dtype}"
                    )
        arrays = {name: part.read() for name, part in sample.items()}
        with _naming(where):
            feeds = bind_inputs(self.inputs, arrays)
        for name, array in feeds.items():
            finite = np.isfinite(array) if array.dtype.kind == "f" else np.array(True)
            if not finite.all():
                place = np.argwhere(~finite)[0].tolist()
                given = np.asarray(arrays[name])[tuple(place)]
                if place:
                    place[0] += (sample[name].rows.start or 0) + before * self.steps.get(name, 0)
                at = f" at {place}" if place else ""
                said = f"holds NaN or infinity{at}; leave it out"
                if np.isfinite(given):
                    said = f"holds {given:g}{at}, beyond {array.dtype}; scale it or leave it out"
                raise DataError(f"{where}input {name!r} {said}")
        return feeds

    def place(self, number: int) -> str:
        """What to call one of the samples of an item: by rows, as an array has them."""
        steps = list(self.steps.items())
        if all(step == 1 for _, step in steps):
            return f"row {number}"
        name, step = steps[0]
        return f"rows {number * step} to {(number + 1) * step - 1} of {name!r}"


@contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except AnybitError as error:
        raise type(error)(f"{where}{error}") from error


def load_item(item: object, where: str) -> dict[str, Any]:
    """The arrays of an item by name, or one under the name ""."""
    if isinstance(item, str | os.PathLike):
        return dict(open_arrays(Path(item)))
    if isinstance(item, list | tuple) and not is_numbers(item):
        raise DataError(
            f"{where}a {type(item).__name__} of {len(item)}; give arrays, or dicts by input "
            "name, without labels, such as (x for x, label in loader)"
        )
    named = item if isinstance(item, Mapping) else {"": item}
    return {str(name): _array(value, where) for name, value in named.items()}


def _array(value: Any, where: str) -> Array:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged; of another device
        raise DataError(f"{where}not an array: {error}") from error
    if array.dtype.hasobject:
        raise DataError(f"{where}not numbers but {type(value).__name__} of objects")
    return array


def write_item(folder: Path, index: int, item: object) -> str | os.PathLike[str]:
    """The path of an item, which becomes a file of the folder if it is none."""
    if isinstance(item, str | os.PathLike):
        return item
    path = folder / f"{index}.npz"
    arrays = load_item(item, f"sample {index}: ")
    write_members(path, {name or "x": array for name, array in arrays.items()})
    return path


def is_numbers(data: object) -> bool:
    """Whether it is a number, or lists of numbers."""
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, int | float | np.number)


def make_batch_key(sample: Sample, steps: Container[str]) -> Hashable:
    """The same for samples whose rows, in the inputs that have some, can be joined."""
    return tuple(
        array.shape if name in steps else array.tobytes() for name, array in sample.items()
    )


def concatenate_samples(samples: Sequence[Sample], steps: Collection[str]) -> list[Sample]:
    """The same rows, of those inputs, in fewer samples; without such inputs the same samples."""
    groups: dict[Hashable, list[Sample]] = {}
    for number, sample in enumerate(samples):
        groups.setdefault(make_batch_key(sample, steps) if steps else number, []).append(sample)
    return [
        group[0] | {name: np.concatenate([each[name] for each in group]) for name in steps}
        for group in groups.values()
    ]


def select_labels(labels: SliceableArray, index: int, count: int, where: str) -> Array:
    """The labels of one sample, of as many as the item has."""
    if count == 1:
        return ArrayRows(labels, slice(None)).read()
    if not labels.shape or labels.shape[0] % count:
        raise DataError(
            f"{where}there are labels of shape {list(labels.shape)} for {counted(count, 'sample')}"
        )
    step = labels.shape[0] // count
    return ArrayRows(labels, slice(index * step, (index + 1) * step)).read()


def list_data_files(path: Path) -> list[Path]:
    """The files of a folder, or the one that it is."""
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in (".npy", ".npz"))
    if not found:
        raise DataError(f"{path} holds no .npy and no .npz files")
    return found
