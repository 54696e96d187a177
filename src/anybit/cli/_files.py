# SPDX-License-Identifier: Apache-2.0
"""Files: written whole or not at all, and their sizes in words."""

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from anybit.errors import ModelError
from anybit.onnx.files.writer import is_special, naming
from anybit.text import sized


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which appears under its name when all of it is written.

    A device or a pipe is not a file that could be replaced: it gets all of it at the end.
    """
    if is_special(path):
        with naming(path), io.BytesIO() as buffer:
            yield buffer
            path.write_bytes(buffer.getvalue())
        return
    with (
        naming(path),
        tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file,
    ):
        try:
            yield file
            file.close()
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8. The file appears when it is complete."""
    with replacing(path) as file:
        file.write(text.encode())


def check_folder(path: Path, option: str) -> None:
    """ModelError if a file cannot be written there: known before the work, not after it."""
    if path.is_dir() or not path.parent.is_dir():
        raise ModelError(f"{path}: {option} must be a file in a folder that exists")


def check_other(path: Path, model: Path, why: str) -> None:
    """ModelError if a result would take the place of the model that it is made of."""
    if path.exists() and model.exists() and path.samefile(model):
        raise ModelError(f"{path}: --output is the model itself, {why}; give it another name")


def file_size(path: Path) -> str:
    """The size of a model, with that of the tensors beside it, readable."""
    if is_special(path):
        return "size unknown"
    beside = path.with_name(f"{path.name}.data")
    return sized(path.stat().st_size + (beside.stat().st_size if beside.exists() else 0))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
