# SPDX-License-Identifier: Apache-2.0
"""Labels: an array in the data, or one by itself."""

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from anybit.array_files import open_arrays
from anybit.errors import ModelError
from anybit.inputs import Array
from anybit.quantization.items import Rows
from anybit.text import counted

LabelSource: TypeAlias = str | os.PathLike[str] | npt.ArrayLike
"""The name of an array in the data; or the path of an .npy, or an array, for all rows in order."""


def named_in_data(labels: LabelSource | None) -> str | None:
    """The name of the array in the data, where it is one."""
    return labels if isinstance(labels, str) and not labels.endswith(".npy") else None


class Apart:
    """Labels that are not among the data: one for each row, or one for each sample.

    Raises:
        ModelError: A file that cannot be read, or what is not an array.
    """

    def __init__(self, labels: LabelSource, samples: int) -> None:
        self._all: Rows
        if isinstance(labels, str | os.PathLike):
            arrays = open_arrays(Path(labels))
            if len(arrays) != 1:
                raise ModelError(f"{labels} holds {counted(len(arrays), 'array')}; give one")
            self._all = next(iter(arrays.values()))
        else:
            try:
                self._all = np.asarray(labels)
            except ValueError as error:  # ragged
                raise ModelError(f"labels are not an array: {error}") from error
        if not self._all.shape:
            raise ModelError("labels must be one per row or sample, got a single number")
        self._by_sample = self._all.shape[0] == samples
        self._taken = 0

    def next(self, rows: int) -> Array:
        """Those of the next sample, which has so many rows.

        Raises:
            ModelError: There are too few.
        """
        start = self._taken
        self._taken += 1 if self._by_sample else rows
        if self._taken > self._all.shape[0]:
            raise ModelError(
                f"there are {counted(self._all.shape[0], 'label')}, fewer than rows in the data"
            )
        return self._all[start : self._taken]

    def check_used(self) -> None:
        """ModelError if there are more labels than data."""
        if self._taken < self._all.shape[0]:
            raise ModelError(
                f"there are {counted(self._all.shape[0], 'label')} for {self._taken} rows of data"
            )
