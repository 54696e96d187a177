# SPDX-License-Identifier: Apache-2.0
"""What a classifier predicts: the class with the largest output, row by row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anybit.array_files import read_arrays
from anybit.errors import ModelError
from anybit.inputs import Array
from anybit.text import counted

_MOST_ROWS = 12


@dataclass(frozen=True)
class Labels:
    """What is known of classes: their names, and the right one of each row."""

    names: tuple[str, ...] = ()
    right: Array | None = None


def read_labels(path: Path) -> Labels:
    """The names of classes in a text file, or the right classes in an .npy or .npz of one array.

    Raises:
        ModelError: A file that cannot be read, or that holds something else.
    """
    if path.suffix not in (".npy", ".npz"):
        try:
            return Labels(names=tuple(path.read_text(encoding="utf-8").splitlines()))
        except UnicodeDecodeError:
            raise ModelError(f"{path}: --labels must be a text, .npy or .npz file") from None
    arrays = read_arrays(path)
    right = next(iter(arrays.values())).squeeze() if len(arrays) == 1 else np.empty(0)
    if right.dtype.kind not in "iu" or right.ndim > 1:
        raise ModelError(f"{path}: --labels must hold one array of integers, one per row")
    return Labels(right=right.reshape(-1))


def top_classes(outputs: Mapping[str, Array], labels: Labels, *, whole: bool) -> Iterator[str]:
    """A line per output that has a row of classes, with all rows or the first few; and a line on
    how many are right.

    Raises:
        ModelError: Labels for another number of rows or classes.
    """
    found = {name: array for name, array in outputs.items() if _has_classes(array)}
    if whole and not found:
        raise ModelError("no output has rows of classes: --top1 and --labels need [rows, classes]")
    for name, array in found.items():
        classes = array.argmax(axis=1)
        if labels.names and len(labels.names) != array.shape[1]:
            raise ModelError(
                f"--labels has {counted(len(labels.names), 'name')}, "
                f"output {name} {array.shape[1]} classes"
            )
        shown = classes if whole else classes[:_MOST_ROWS]
        words = [labels.names[each] if labels.names else str(each) for each in shown]
        more = ["..."] * (len(shown) < len(classes))
        yield f"{name} is largest at {(', ' if labels.names else ' ').join(words + more)}"
        if labels.right is not None:
            yield _accuracy(name, classes, labels.right)


def _accuracy(name: str, classes: Array, right: Array) -> str:
    if len(right) != len(classes):
        raise ModelError(
            f"--labels is for {counted(len(right), 'row')}, output {name} has {len(classes)}"
        )
    count = int(np.count_nonzero(classes == right))
    return (
        f"{name}: {count} of {counted(len(right), 'row')} right, {100 * count / len(right):.2f} %"
    )


def _has_classes(array: Array) -> bool:
    return array.ndim == 2 and array.shape[1] > 1 and array.size > 0
