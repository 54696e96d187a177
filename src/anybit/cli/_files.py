# SPDX-License-Identifier: Apache-2.0
"""Output files: atomic writing, checks before the work, sizes."""

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from anybit.errors import OptionError
from anybit.text import format_bytes


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file to write to, which appears under its name when it is complete.

    A device or a pipe cannot be replaced: it receives all bytes at the end.
    """
    from anybit.onnx.files.writer import is_special, name_file_in_errors

    if is_special(path):
        with name_file_in_errors(path), io.BytesIO() as buffer:
            yield buffer
            path.write_bytes(buffer.getvalue())
        return
    with (
        name_file_in_errors(path),
        tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file,
    ):
        try:
            yield file
            file.close()
            os.chmod(file.name, 0o666 & ~_get_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 to a file, which appears when it is complete."""
    with replacing(path) as file:
        file.write(text.encode())


def check_folder(path: Path, option: str) -> None:
    """Raise OptionError if a file cannot be written there. Call it before any work."""
    if path.is_dir() or not path.parent.is_dir():
        raise OptionError(f"{path}: {option} must be a file in a folder that exists")


def check_overwrites(
    outputs: Sequence[tuple[str, Path | None]], inputs: Sequence[tuple[str, Path | None]]
) -> None:
    """Refuse outputs that would replace an input or one another. Call it before any work.

    Files are compared, not names: symbolic and hard links and relative paths are resolved. An input
    that is a folder stands for all files in it. A device may be named more than once.

    Args:
        outputs: Options and the files that they write; None for an option that is not given.
        inputs: Options or arguments, and the files or folders that they read.

    Raises:
        OptionError: An output is an input, a file in an input folder, or another output.
    """
    from anybit.onnx.files.writer import is_special

    written = [(option, path) for option, path in outputs if path is not None]
    read = [(option, path) for option, path in inputs if path is not None]
    for index, (option, path) in enumerate(written):
        if is_special(path):
            continue
        for other, source in read:
            if _holds(source, path):
                raise OptionError(
                    f"{path}: {option} would overwrite an input ({other}); choose another name"
                )
        for other, second in written[:index]:
            if path.resolve() == second.resolve() or _holds(second, path):
                raise OptionError(
                    f"{path}: {option} would overwrite the file of {other}; choose another name"
                )


def _holds(source: Path, path: Path) -> bool:
    """Return whether a file is the source, or lies in it."""
    try:
        target = path.stat()
        if not source.is_dir():
            return os.path.samestat(source.stat(), target)
        return any(
            os.path.samestat(os.stat(os.path.join(folder, name)), target)
            for folder, _, names in os.walk(source)
            for name in names
            if os.path.exists(os.path.join(folder, name))
        )
    except (OSError, ValueError):  # there is none, or no file can have that name
        return False


def format_file_size(path: Path) -> str:
    """Return the size of a model and of its external tensors, with a unit."""
    from anybit.onnx.files.writer import is_special

    if is_special(path):
        return "size unknown"
    external = path.with_name(f"{path.name}.data")
    return format_bytes(path.stat().st_size + (external.stat().st_size if external.exists() else 0))


def _get_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
