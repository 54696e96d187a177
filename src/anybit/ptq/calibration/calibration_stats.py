# SPDX-License-Identifier: Apache-2.0
"""Calibration statistics of tensors: collected in one pass, merged, and cached in files."""

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anybit.data.array_files import open_arrays, write_members
from anybit.errors import AnybitError
from anybit.onnx.files.writer import name_file_in_errors
from anybit.onnx.graph.constants import Array
from anybit.ptq.calibration.tensor_statistics import BINS, TensorStatistics, add_arrays

Extreme = tuple[float, int]

# Changed with what is written, or with what it means.
CACHE_FORMAT = "anybit findings 2"

# More bytes, or values in one bin, than anybody has looked at.
_MAX_COUNT = 2**50
_DTYPES = {
    "counts": np.int64,
    "bins": np.uint16,
    "used": np.int64,
    "channels": np.float32,
    "widths": np.int64,
    "ranges": np.float64,
    "reaches": np.float64,
    "numbers": np.int64,
    "size": np.int64,
    "name": np.uint8,
}


@dataclass
class CalibrationStats:
    """Calibration statistics of some tensors.

    Attributes:
        statistics: The statistics of the values of each tensor.
        farthest: For each tensor, its largest magnitude in two samples, and the number of the
            sample times -1: the two with the largest, and of equal ones the first.
        size: The most bytes that all take for one sample.
    """

    statistics: list[TensorStatistics]
    farthest: list[list[Extreme]]
    size: int = 1

    @classmethod
    def make_empty(cls, names: Sequence[str], axes: Sequence[int | None]) -> "CalibrationStats":
        """Return statistics without samples."""
        statistics = [TensorStatistics(name, axis) for name, axis in zip(names, axes, strict=True)]
        return cls(statistics, [[] for _ in names])

    def add(self, number: int, arrays: Mapping[str, Array]) -> None:
        """Look at the tensors of a sample.

        Raises:
            ModelError: One holds NaN or infinity.
        """
        self.size = max(self.size, sum(array.nbytes for array in arrays.values()))
        reaches = add_arrays(self.statistics, [arrays[tensor.name] for tensor in self.statistics])
        for place, reach in enumerate(reaches):
            self.farthest[place] = _keep_two_largest([*self.farthest[place], (reach, -number)])

    def merge(self, other: "CalibrationStats", first: int) -> None:
        """Add the statistics of more samples, numbered from there on."""
        self.size = max(self.size, other.size)
        for mine, theirs in zip(self.statistics, other.statistics, strict=True):
            mine.merge(theirs)
        for place, pair in enumerate(other.farthest):
            moved = [(reach, number - first) for reach, number in pair]
            self.farthest[place] = _keep_two_largest([*self.farthest[place], *moved])

    def save(self, path: Path) -> None:
        """Write them, wholly or not at all.

        Raises:
            OSError: That is not possible; the error names the file.
        """
        used = [np.flatnonzero(tensor.counts) for tensor in self.statistics]
        channels = [tensor.channels for tensor in self.statistics]
        pairs = [(*pair, *[(-1.0, 0)] * (2 - len(pair))) for pair in self.farthest]
        arrays = {
            "bins": np.concatenate(used),
            "counts": np.concatenate(
                [tensor.counts[bins] for tensor, bins in zip(self.statistics, used, strict=True)]
            ),
            "used": [len(bins) for bins in used],
            "channels": np.concatenate(
                [np.empty(0), *(np.ravel(ends) for ends in channels if ends is not None)]
            ),
            "widths": [-1 if tensor is None else tensor.shape[1] for tensor in channels],
            "ranges": [(tensor.lowest, tensor.highest) for tensor in self.statistics],
            "reaches": [[reach for reach, _ in pair] for pair in pairs],
            "numbers": [[-number for _, number in pair] for pair in pairs],
            "size": [self.size],
            "name": list(path.stem.encode()),
        }
        with (
            name_file_in_errors(path),
            tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder,
        ):
            written = Path(folder) / path.name
            write_members(
                written, {name: np.asarray(arrays[name], _DTYPES[name]) for name in _DTYPES}
            )
            os.replace(written, path)

    @classmethod
    def read(
        cls,
        path: Path,
        names: Sequence[str],
        axes: Sequence[int | None],
        widths: Sequence[int | None],
        samples: int,
    ) -> "CalibrationStats | None":
        """Read the statistics of tensors and samples from a file; None if it is not valid."""
        try:
            arrays = _read_arrays(path)
        except (AnybitError, OSError):
            return None
        stats = cls.make_empty(names, axes)
        if arrays is None or arrays["name"].tobytes() != path.stem.encode():
            return None
        if not _is_sound(arrays, widths, samples):
            return None
        ends = np.cumsum(arrays["used"])
        wide = np.cumsum(2 * np.maximum(arrays["widths"], 0))
        for place, tensor in enumerate(stats.statistics):
            part = slice(ends[place] - arrays["used"][place], ends[place])
            tensor.counts[arrays["bins"][part]] = arrays["counts"][part]
            tensor.count = int(arrays["counts"][part].sum())
            tensor.lowest, tensor.highest = map(float, arrays["ranges"][place])
            if arrays["widths"][place] >= 0:
                width = 2 * arrays["widths"][place]
                tensor.channels = arrays["channels"][wide[place] - width : wide[place]].reshape(
                    2, -1
                )
            pairs = zip(arrays["reaches"][place], arrays["numbers"][place], strict=True)
            stats.farthest[place] = [
                (float(reach), -int(number)) for reach, number in pairs if reach >= 0
            ]
        stats.size = int(arrays["size"][0])
        return stats


def _keep_two_largest(extremes: list[Extreme]) -> list[Extreme]:
    return sorted(extremes, reverse=True)[:2]


def _read_arrays(path: Path) -> dict[str, Array] | None:
    """Return the arrays of a file, if their names and types match and they are uncompressed."""
    stored = open_arrays(path)
    if {name: array.dtype for name, array in stored.items()} != _DTYPES:
        return None
    sizes = (math.prod(array.shape, start=array.dtype.itemsize) for array in stored.values())
    if sum(sizes) > path.stat().st_size:  # compressed, by others
        return None
    return {name: array[:] for name, array in stored.items()}


def _is_sound(arrays: Mapping[str, Array], channels: Sequence[int | None], samples: int) -> bool:
    """Return whether arrays are consistent with the tensors and the number of samples."""
    pairs, single = (len(channels), 2), (len(channels),)
    shapes: dict[str, tuple[int, ...]] = {"used": single, "widths": single, "size": (1,)}
    shapes |= dict.fromkeys(("ranges", "reaches", "numbers"), pairs)
    if any(arrays[name].shape != shape for name, shape in shapes.items()):
        return False
    used, widths, counts = arrays["used"], arrays["widths"], arrays["counts"]
    low, high = arrays["ranges"].T
    ends = arrays["channels"]
    expected = np.array([-1 if width is None else width for width in channels], np.int64)
    return bool(
        (used >= 0).all()
        and (used <= BINS).all()
        and counts.shape == arrays["bins"].shape == (used.sum(),)
        and (arrays["bins"] < BINS).all()
        and (counts > 0).all()
        and (counts < _MAX_COUNT).all()
        and ((widths == -1) | (widths == expected)).all()
        and ends.shape == (2 * np.maximum(widths, 0).sum(),)
        and np.isfinite(ends).all()
        and np.where(
            used > 0, np.isfinite(low) & (low <= high) & np.isfinite(high), high < low
        ).all()
        and np.isfinite(arrays["reaches"]).all()
        and (arrays["reaches"][:, 0] >= 0).all()
        and (arrays["numbers"] >= 0).all()
        and (arrays["numbers"] < samples).all()
        and 0 < arrays["size"][0] < _MAX_COUNT
    )
