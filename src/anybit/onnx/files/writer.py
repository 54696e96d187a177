# SPDX-License-Identifier: Apache-2.0
"""Atomic writing of models."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.files.origin import make_origin_relative
from anybit.onnx.graph.constants import load_tensor
from anybit.onnx.graph.walk import iter_initializers, iter_tensors
from anybit.onnx.process import silence_onnx_logs

# Serializing holds several copies of the message, so the tensors of larger models are streamed to a
# file of their own.
_LARGEST_SINGLE_FILE = 2**28


class ModelResult:
    """A computed model: it can be saved, and passed to any function that takes a model.

    Attributes:
        model: The model. `onnx_ir.to_proto` turns it into an `onnx.ModelProto`.
    """

    model: ir.Model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, as `anybit.save` does."""
        save(self.model, path)


@silence_onnx_logs()
def save(model: ir.Model | onnx.ModelProto | ModelResult, path: str | os.PathLike[str]) -> None:
    """Write a model; tensors of more than 256 MiB in total go to `<name>.data` beside it.

    The file is renamed into place when it is complete: on any error, an existing file stays as it
    was. A device or a pipe is written to directly. Tensors are read from disk one at a time. The
    model is not changed, and may come from the file that is overwritten.

    Raises:
        ModelError: A path that is not a file name in an existing folder, or a model that the format
            cannot hold.
        OSError: The file cannot be written.
    """
    if isinstance(model, ModelResult):
        model = model.model
    elif isinstance(model, onnx.ModelProto):
        model = ir.from_proto(model)
    target = Path(path)
    if not target.name or target.is_dir() or not target.parent.is_dir():
        raise ModelError(f"{target} must be a file name in a folder that exists")
    if is_special(target):
        with name_file_in_errors(target):
            with _convert_errors(target), make_origin_relative(model, target.parent.resolve()):
                message = _serialize_whole(model)
            target.write_bytes(message)
        return
    target = target.resolve()  # through links, so that the file they point to is replaced
    data = f"{target.name}.data"
    external = data if _count_bytes(model) > _LARGEST_SINGLE_FILE else None
    with (
        name_file_in_errors(target),
        tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder,
    ):
        written = Path(folder) / target.name
        with _convert_errors(target), make_origin_relative(model, target.parent):
            if external is None:
                written.write_bytes(_serialize_whole(model))
            else:
                ir.save(model, written, format="protobuf", external_data=external)
        if external is not None:
            os.replace(Path(folder) / data, target.parent / data)
        os.replace(written, target)


def is_special(path: Path) -> bool:
    """Return whether a path is a device or a pipe, which is never replaced."""
    return path.exists() and not path.is_file()


@contextmanager
def _convert_errors(target: Path) -> Iterator[None]:
    """Convert errors of serialization to ModelError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # neither onnx_ir nor protobuf has one class for it
        raise ModelError(f"{target} cannot be written: {error}") from error


@contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Let errors of the system name this file instead of the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _count_bytes(model: ir.Model) -> int:
    return sum(tensor.nbytes for tensor in iter_tensors(model))


def _serialize_whole(model: ir.Model) -> bytes:
    """Return the model as one message, including its external data."""
    values = list(iter_initializers(model))
    before = [value.const_value for value in values]
    try:
        for value, tensor in zip(values, before, strict=True):
            value.const_value = None if tensor is None else load_tensor(tensor)
        message: bytes = ir.to_proto(model).SerializeToString()
        return message
    finally:
        for value, tensor in zip(values, before, strict=True):
            value.const_value = tensor
