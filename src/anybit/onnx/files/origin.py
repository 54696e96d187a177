# SPDX-License-Identifier: Apache-2.0
"""The float model that a quantized model was made from, as the quantized model records it.

Two metadata entries of the model: `anybit.float_model`, the path of the file, and
`anybit.float_sha256`, its hash. In a file the path is relative to the folder of the file, so that
both can be moved together; in memory it is absolute.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

PATH_KEY, HASH_KEY = "anybit.float_model", "anybit.float_sha256"


def describe_origin(float_model: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a model that is quantized from a file, in memory.

    Raises:
        OSError: The file cannot be read.
    """
    path = Path(os.path.abspath(float_model))
    return {PATH_KEY: str(path), HASH_KEY: _hash_file(path)}


def find_origin(model: ir.Model) -> tuple[Path | None, str]:
    """Return the file that `model` was quantized from, or None and the reason.

    The recorded path is untrusted: only a regular file with the recorded hash is accepted.
    """
    recorded, expected = (model.metadata_props.get(key, "") for key in (PATH_KEY, HASH_KEY))
    if not recorded:
        return None, "the file does not record its float model"
    path = Path(recorded)
    try:
        if not path.is_file():
            return None, f"its float model {path} is not there"
        if _hash_file(path) != expected:
            return None, f"its float model {path} has changed since it was quantized"
    except (OSError, ValueError) as error:
        return None, f"its float model {recorded!r} cannot be read ({error})"
    return path, ""


def resolve_origin(model: ir.Model, folder: Path) -> None:
    """Make the recorded path absolute, after a file in `folder` was read."""
    recorded = model.metadata_props.get(PATH_KEY)
    if recorded:
        model.metadata_props[PATH_KEY] = os.path.normpath(os.path.join(folder, recorded))


@contextmanager
def make_origin_relative(model: ir.Model, folder: Path) -> Iterator[None]:
    """Make the recorded path relative to `folder` while a file is written there."""
    recorded = model.metadata_props.get(PATH_KEY)
    if not recorded or not os.path.isabs(recorded):
        yield
        return
    try:
        model.metadata_props[PATH_KEY] = Path(os.path.relpath(recorded, folder)).as_posix()
    except ValueError:  # another drive: only the name helps on another machine
        model.metadata_props[PATH_KEY] = Path(recorded).name
    try:
        yield
    finally:
        model.metadata_props[PATH_KEY] = recorded


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
