# SPDX-License-Identifier: Apache-2.0
"""Labels: an array in the data, or a file or array of their own."""

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from anybit.data.array_files import open_arrays
from anybit.data.readers import SliceableArray
from anybit.errors import DataError
from anybit.onnx.graph.constants import Array
from anybit.text import format_count

LabelSource: TypeAlias = str | os.PathLike[str] | npt.ArrayLike
"""The name of an array in the data; or the path of an .npy, or an array, for all rows in order."""


def get_label_name(labels: LabelSource | None) -> str | None:
    """Return the name of the array in the data; None if the labels are elsewhere."""
    return labels if isinstance(labels, str) and not labels.endswith(".npy") else None


class SeparateLabels:
    """Labels from outside the data, one per row or one per sample.

    Raises:
        DataError: A file that cannot be read, or labels that are not an array.
    """

    def __init__(self, labels: LabelSource, samples: int) -> None:
        self._labels: SliceableArray
        if isinstance(labels, str | os.PathLike):
            arrays = open_arrays(Path(labels))
            if len(arrays) != 1:
                raise DataError(
                    f"{labels} holds {format_count(len(arrays), 'array')}; give a file with one"
                )
            self._labels = next(iter(arrays.values()))
        else:
            try:
                self._labels = np.asarray(labels)
            except ValueError as error:  # ragged
                raise DataError(f"labels are not an array: {error}") from error
        if not self._labels.shape:
            raise DataError("labels must be one per row or sample, got a single number")
        self._per_sample = self._labels.shape[0] == samples
        self._used = 0

    def next(self, rows: int) -> Array:
        """Return the labels of the next sample, which has that number of rows.

        Raises:
            DataError: There are too few labels.
        """
        start = self._used
        self._used += 1 if self._per_sample else rows
        if self._used > self._labels.shape[0]:
            raise DataError(
                f"{format_count(self._labels.shape[0], 'label')}, fewer than rows in the data; "
                "give one label per row or per sample"
            )
        return self._labels[start : self._used]

    def check_used(self) -> None:
        """Raise DataError if there are more labels than rows or samples."""
        if self._used < self._labels.shape[0]:
            raise DataError(
                f"{format_count(self._labels.shape[0], 'label')} for {self._used} rows of data; "
                "give one label per row or per sample"
            )
