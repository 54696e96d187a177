# SPDX-License-Identifier: Apache-2.0
"""Readers of data items: files, arrays and dicts of arrays that hold one sample or many."""

import os
from collections.abc import Collection, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from anybit.data.array_files import open_arrays, write_members
from anybit.errors import DataError, prefix_errors
from anybit.inputs import (
    TensorInfo,
    bind_inputs,
    check_shape,
    check_sizes,
    match_arrays,
    require_elements,
)
from anybit.onnx.graph.constants import Array
from anybit.text import format_count, join_names

Sample: TypeAlias = dict[str, Array]
"""The input arrays of one run of a model, by name."""


class SliceableArray(Protocol):
    """An array that can be sliced along its first axis, in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, rows: slice, /) -> Array: ...


@dataclass(frozen=True)
class ArrayRows:
    """Rows of an array that have not been read yet."""

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
    """Reader of the samples of a data item.

    Attributes:
        inputs: The inputs of the model.
        steps: The number of rows per sample of each input that is split along its first axis.
        rows_are_samples: Whether the items are split into samples at all.
        labels: The name of an array that is read along with the inputs; None for none.
    """

    inputs: tuple[TensorInfo, ...]
    steps: Mapping[str, int]
    rows_are_samples: bool
    labels: str | None = None

    def open(self, item: object, where: str) -> Mapping[str, SliceableArray]:
        """Return the arrays of an item by the names of inputs and labels, without reading files.

        Raises:
            DataError: An input or the labels are missing, or an array matches no input.
        """
        names = [tensor.name for tensor in self.inputs]
        arrays = load_item(item, where)
        content = join_names(name or "one array without a name" for name in arrays) or "nothing"
        labels = {} if self.labels is None else {self.labels: arrays.pop(self.labels, None)}
        inputs = match_arrays(names, arrays, "x")
        if len(inputs) != len(names):
            raise DataError(f"{where}it holds {content}; the model takes {join_names(names)}")
        if any(array is None for array in labels.values()):
            raise DataError(f"{where}it holds {content}, and no labels called {self.labels!r}")
        return inputs | labels

    def count_samples(self, item: Mapping[str, SliceableArray]) -> int | None:
        """Return the number of samples of an item; None if the item is not split."""
        counts = set()
        for name, step in self.steps.items() if self.rows_are_samples else ():
            rows = item[name].shape[0] if item[name].shape else 0
            if rows % step or not item[name].shape:
                return None
            counts.add(rows // step)
        return counts.pop() if len(counts) == 1 else None

    def select_sample(
        self, item: Mapping[str, SliceableArray], index: int | None
    ) -> dict[str, ArrayRows]:
        """Return the unread arrays of one sample of an item, or of the whole item for None."""
        rows = (
            {}
            if index is None
            else {
                name: slice(index * step, (index + 1) * step) for name, step in self.steps.items()
            }
        )
        return {
            tensor.name: ArrayRows(item[tensor.name], rows.get(tensor.name, slice(None)))
            for tensor in self.inputs
        }

    def count_bytes(self, sample: Mapping[str, ArrayRows]) -> int:
        """Return the size of a sample in bytes, in the dtypes of the model's inputs."""
        return sum(
            prod(sample[tensor.name].shape) * tensor.dtype.itemsize for tensor in self.inputs
        )

    def read(self, sample: Mapping[str, ArrayRows], where: str, offset: int = 0) -> Sample:
        """Read a sample in the dtypes of the model's inputs.

        Args:
            sample: The unread arrays.
            where: The item, for messages.
            offset: The number of samples that were cut off in front of the item.

        Raises:
            DataError: A shape or dtype does not fit the model. A value is NaN, infinite, or too
                large for the input.
        """
        with prefix_errors(where):
            check_sizes(self.inputs, sample)
            for tensor in self.inputs:
                rows = sample[tensor.name]
                check_shape(tensor, rows, rows.whole.shape)
                if rows.whole.dtype != tensor.dtype and rows.whole.dtype.kind not in "fiub":
                    raise DataError(
                        f"input {tensor.name!r} must be {tensor.dtype}, got {rows.whole.dtype}"
                    )
        arrays = {name: rows.read() for name, rows in sample.items()}
        with prefix_errors(where):
            feeds = bind_inputs(self.inputs, arrays)
            require_elements(self.inputs, feeds)
        for name, array in feeds.items():
            finite = np.isfinite(array) if array.dtype.kind == "f" else np.array(True)
            if not finite.all():
                index = np.argwhere(~finite)[0].tolist()
                value = np.asarray(arrays[name])[tuple(index)]
                if index:
                    index[0] += (sample[name].rows.start or 0) + offset * self.steps.get(name, 0)
                at = f" at {index}" if index else ""
                fault = f"holds NaN or infinity{at}; leave it out"
                if np.isfinite(value):
                    fault = f"holds {value:g}{at}, beyond {array.dtype}; scale it or leave it out"
                raise DataError(f"{where}input {name!r} {fault}")
        return feeds

    def describe_sample(self, number: int) -> str:
        """Return the rows of a sample of an item, for messages."""
        steps = list(self.steps.items())
        if all(step == 1 for _, step in steps):
            return f"row {number}"
        name, step = steps[0]
        return f"rows {number * step} to {(number + 1) * step - 1} of {name!r}"


def load_item(item: object, where: str) -> dict[str, Any]:
    """Return the arrays of an item by name; a single unnamed array gets the name ""."""
    if isinstance(item, str | os.PathLike):
        return dict(open_arrays(Path(item)))
    if isinstance(item, list | tuple) and not is_numbers(item):
        raise DataError(
            f"{where}a {type(item).__name__} of {len(item)}; give arrays, or dicts by input "
            "name, without labels, such as (x for x, label in loader)"
        )
    named = item if isinstance(item, Mapping) else {"": item}
    return {str(name): _convert(value, where) for name, value in named.items()}


def _convert(value: Any, where: str) -> Array:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged; of another device
        raise DataError(f"{where}not an array: {error}") from error
    if array.dtype.hasobject:
        raise DataError(f"{where}not numbers but {type(value).__name__} of objects")
    return array


def write_item(folder: Path, index: int, item: object) -> str | os.PathLike[str]:
    """Write an item to an .npz file in a folder and return its path; return a path unchanged."""
    if isinstance(item, str | os.PathLike):
        return item
    path = folder / f"{index}.npz"
    arrays = load_item(item, f"sample {index}: ")
    write_members(path, {name or "x": array for name, array in arrays.items()})
    return path


def is_numbers(data: object) -> bool:
    """Return whether the data are a number, or nested lists of numbers."""
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, int | float | np.number)


def make_batch_key(sample: Sample, split_inputs: Container[str]) -> Hashable:
    """Return a key that is equal for samples that can be concatenated along `split_inputs`."""
    return tuple(
        array.shape if name in split_inputs else array.tobytes() for name, array in sample.items()
    )


def concatenate_samples(samples: Sequence[Sample], split_inputs: Collection[str]) -> list[Sample]:
    """Concatenate samples with equal shapes along the first axes of `split_inputs`.

    Without such inputs the samples are returned unchanged.
    """
    groups: dict[Hashable, list[Sample]] = {}
    for number, sample in enumerate(samples):
        key = make_batch_key(sample, split_inputs) if split_inputs else number
        groups.setdefault(key, []).append(sample)
    return [
        group[0]
        | {name: np.concatenate([sample[name] for sample in group]) for name in split_inputs}
        for group in groups.values()
    ]


def select_labels(labels: SliceableArray, index: int, count: int, where: str) -> Array:
    """Return the labels of one of the `count` samples of an item.

    Raises:
        DataError: The labels cannot be divided evenly among the samples.
    """
    if count == 1:
        return ArrayRows(labels, slice(None)).read()
    if not labels.shape or labels.shape[0] % count:
        raise DataError(
            f"{where}there are labels of shape {list(labels.shape)} "
            f"for {format_count(count, 'sample')}"
        )
    step = labels.shape[0] // count
    return ArrayRows(labels, slice(index * step, (index + 1) * step)).read()


def list_data_files(path: Path) -> list[Path]:
    """Return the .npy and .npz files of a folder in order, or the path of a file itself."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
    if not files:
        raise DataError(f"{path} holds no .npy and no .npz files")
    return files
