# SPDX-License-Identifier: Apache-2.0
"""Arrays in .npy and .npz files of strangers: read whole, or a few rows at a time."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from anybit.errors import ModelError

Array: TypeAlias = npt.NDArray[Any]

_NOT_NUMBERS = "it holds objects, and loading them (pickle) would run code from the file"


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz by name, or the one array of an .npy under the name "".

    Raises:
        ModelError: It is not such a file, or holds pickled objects.
    """
    return {name: array[:] for name, array in open_arrays(path).items()}


def open_arrays(path: Path) -> "dict[str, StoredArray]":
    """The arrays of a file, by name, of which nothing has been read but types and shapes.

    Raises:
        ModelError: It is not such a file, or holds pickled objects.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise ModelError(f"{path}: not a file")
    with _naming(path):
        if not zipfile.is_zipfile(path):
            return {"": StoredArray(path, "")}
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
        return {name.removesuffix(".npy"): StoredArray(path, name) for name in members}


class StoredArray:
    """An array in a file, whose rows are read when they are asked for.

    The file stays open. Rows of a compressed one are read in order quickly; going back starts
    again.

    Attributes:
        shape, dtype: Those of the whole.
    """

    def __init__(self, path: Path, member: str) -> None:
        self._path = path
        if member:
            archive = zipfile.ZipFile(path)
            self._stream: IO[bytes] = archive.open(member)
            size = archive.getinfo(member).file_size
        else:
            self._stream = path.open("rb")
            size = path.stat().st_size
        self._read_header(size)

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None:
            stream.close()

    def _read_header(self, size: int) -> None:
        version = np.lib.format.read_magic(self._stream)
        read = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}", None)
        if read is None:
            raise ValueError(f"version {version} of the format is not known")
        self.shape, self._by_columns, self.dtype = read(self._stream)
        self._start = self._stream.tell()
        if self.dtype.hasobject:
            raise ValueError(_NOT_NUMBERS)
        if size - self._start < self._bytes(self.shape):
            raise ValueError(f"an array of shape {self.shape} is cut off")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Array:
        """Rows of the array; all of an array without axes."""
        with _naming(self._path):
            if not self.shape:
                return self._read(0, ())
            if self._by_columns:
                return self._read(0, self.shape[::-1]).T[rows]
            first, last, _ = rows.indices(len(self))
            start = first * self._bytes(self.shape[1:])
            return self._read(start, (max(last - first, 0), *self.shape[1:]))

    def _read(self, start: int, shape: tuple[int, ...]) -> Array:
        size = self._bytes(shape)
        self._stream.seek(self._start + start)
        content = self._stream.read(size)
        if len(content) != size:
            raise EOFError("it ends before its last element")
        return np.frombuffer(bytearray(content), self.dtype).reshape(shape)

    def _bytes(self, shape: tuple[int, ...]) -> int:
        count = int(self.dtype.itemsize)
        for size in shape:
            count *= int(size)
        return count


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path} is not an .npy or .npz file of numbers: {error}") from error
