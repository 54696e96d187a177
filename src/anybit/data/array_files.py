# SPDX-License-Identifier: Apache-2.0
"""Readers and writers of .npy and .npz files; input files are not trusted."""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from io import BufferedIOBase, BufferedReader, BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias, cast

import numpy as np

from anybit.errors import DataError
from anybit.onnx.graph.constants import Array

_Opener: TypeAlias = Callable[[], BufferedIOBase]

_NOT_NUMBERS = "it holds objects, and loading them (pickle) would run code from the file"
# The longest header that NumPy trusts, many times the size of one for numbers.
_HEADER = 10_000
_CHUNK = 2**20


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of an .npz by name, or the array of an .npy under the name "".

    Raises:
        DataError: It is not such a file, or holds pickled objects.
    """
    return {name: array[:] for name, array in open_arrays(path).items()}


def open_arrays(path: Path) -> "dict[str, StoredArray]":
    """Return the arrays of a file by name, without reading them.

    Raises:
        DataError: It is not a file, or a broken .npz. The arrays raise it when they are used.
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise DataError(f"{path}: not a file")
    with _convert_errors(path):
        if not zipfile.is_zipfile(path):
            return {
                "": StoredArray(path, cast(_Opener, partial(path.open, "rb")), path.stat().st_size)
            }
        archive = zipfile.ZipFile(path)
        return {
            member.filename.removesuffix(".npy"): StoredArray(
                path, partial(_open_member, archive, member), member.file_size
            )
            for member in archive.infolist()
            if member.filename.endswith(".npy")
        }


def _open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> BufferedIOBase:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed by another method than deflate")
    return cast(BufferedIOBase, archive.open(member.filename))


def write_members(file: Path | IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write an .npz of named arrays.

    np.savez takes names as keywords, which excludes some names.

    Raises:
        ValueError: An array of objects.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


class _Header(NamedTuple):
    """The header of an .npy file."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    start: int


class StoredArray:
    """An array in a file that is opened on first use and read by rows.

    The file stays open. A compressed file is fast to read in order; going back starts again.
    An array in Fortran order is read once and kept.
    """

    def __init__(self, path: Path, opener: _Opener, size: int) -> None:
        self._path = path
        self._opener = opener
        self._size = size

    def __del__(self) -> None:
        if "_stream" in vars(self):
            self._stream.close()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return self._header.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self._header.dtype

    @property
    def is_indexed(self) -> bool:
        """True if rows can be read without the rows before them."""
        return isinstance(self._stream, BufferedReader) and not self._header.by_columns

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Read rows of the array, or all of an array without axes."""
        if not self.shape:
            return self._read(0, ())
        if self._header.by_columns:
            return self._transposed.T[rows]
        first, last, _ = rows.indices(len(self))
        start = first * _count_bytes(self.dtype, self.shape[1:])
        return self._read(start, (max(last - first, 0), *self.shape[1:]))

    @cached_property
    def _stream(self) -> BufferedIOBase:
        return self._opener()

    @cached_property
    def _header(self) -> _Header:
        with _convert_errors(self._path):
            header = _parse_header(self._stream.read(_HEADER))
            if self._size - header.start < _count_bytes(header.dtype, header.shape):
                raise ValueError(f"an array of shape {header.shape} is cut off")
            return header

    @cached_property
    def _transposed(self) -> Array:
        return self._read(0, self.shape[::-1])

    def _read(self, start: int, shape: tuple[int, ...]) -> Array:
        with _convert_errors(self._path):
            content = np.empty(_count_bytes(self.dtype, shape), np.uint8)
            self._stream.seek(self._header.start + start)
            rest = content.data
            while count := self._stream.readinto(rest[:_CHUNK]):
                rest = rest[count:]
            if rest:
                raise EOFError("it ends before its last element")
            return np.ndarray(shape, self.dtype, content)


def _parse_header(content: bytes) -> _Header:
    """Parse the header at the start of a file.

    Raises:
        ValueError: There is no usable header.
    """
    stream = BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read = getattr(np.lib.format, f"read_array_header_{version[0]}_{version[1]}", None)
    if read is None:
        raise ValueError(f"version {version} of the format is not known")
    try:
        shape, by_columns, dtype = read(stream)
    except (
        *(TypeError, LookupError, SyntaxError),
        *(tokenize.TokenError, RecursionError, MemoryError),
    ) as error:
        raise ValueError("its header is broken") from error
    if dtype.hasobject:
        raise ValueError(_NOT_NUMBERS)
    if not dtype.itemsize or not all(0 <= size < 2**63 for size in shape):
        raise ValueError(f"there is no array of shape {shape} of {dtype.itemsize}-byte elements")
    return _Header(shape, by_columns, dtype, stream.tell())


def _count_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return math.prod(shape, start=dtype.itemsize)


@contextmanager
def _convert_errors(path: Path) -> Iterator[None]:
    """Turn errors of the parsers into a DataError with the path."""
    try:
        yield
    except (
        *(ValueError, EOFError, MemoryError, OverflowError),
        *(RuntimeError, OSError, zlib.error, zipfile.BadZipFile),  # encrypted, absurd, corrupt
    ) as error:
        if isinstance(error, OSError) and error.filename is not None:  # it cannot be opened
            raise
        raise DataError(f"{path} is not an .npy or .npz file of numbers ({error})") from error
