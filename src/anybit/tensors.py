# SPDX-License-Identifier: Apache-2.0
"""What models declare of their inputs and outputs, and arrays that are to fit."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from anybit.errors import ModelError

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Tensor:
    """An input or output: `shape` has an int for a fixed size, a name or None for a free one.

    It is None itself where not even the rank is known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        sizes = "?" if self.shape is None else ", ".join(str(size or "?") for size in self.shape)
        return f"{self.name}: {self.dtype}[{sizes}]"


def tensor_of(value: ir.Value, where: str) -> Tensor:
    """What a value of a graph declares.

    Raises:
        ModelError: It is no tensor of numbers of a known type.
    """
    name = value.name or ""
    dtype = value.dtype
    if not isinstance(value.type, ir.TensorType) or dtype in (None, ir.DataType.UNDEFINED):
        raise ModelError(f"{where}: {name!r} is no tensor of a known type")
    assert dtype is not None
    if dtype == ir.DataType.STRING:
        raise ModelError(f"{where}: {name!r} holds strings; only numbers are supported")
    shape = None
    if value.shape is not None:
        shape = tuple(size if isinstance(size, int) else size.value for size in value.shape)
    return Tensor(name, dtype.numpy(), shape)


def derived(argument: Any) -> Tensor:
    """An output that the file does not type, as the runtime has derived it."""
    names = {"float": "float32", "double": "float64"}
    spelled = argument.type.removeprefix("tensor(").removesuffix(")")
    return Tensor(argument.name, np.dtype(names.get(spelled, spelled)), tuple(argument.shape))


def converted(value: npt.ArrayLike, declared: Tensor) -> Array:
    """The value as an array of the declared dtype; `Model.run` says what is converted.

    Raises:
        ModelError: It is no array, it is empty, or the dtype cannot hold its numbers.
    """
    if type(value) is np.ndarray and value.dtype == declared.dtype and value.size:
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ModelError(f"input {declared.name!r} is no array: {error}") from error
    if not array.size:
        raise ModelError(f"input {declared.name!r} has shape {array.shape}: it has no elements")
    if array.dtype == declared.dtype:
        return array
    wanted, kinds = declared.dtype, "fiub"
    if array.dtype.kind in kinds and wanted.kind in kinds:
        with np.errstate(all="ignore"):
            cast = array.astype(wanted)
            back = cast.astype(array.dtype)  # comparing with the cast itself would round
        if array.dtype.kind == wanted.kind == "f" or np.array_equal(back, array):
            return cast
    raise ModelError(
        f"input {declared.name!r} must be {wanted}, got {array.dtype} values that "
        f"{wanted} cannot hold; convert them with astype"
    )


def misfit(declared: Tensor, array: Array) -> str:
    """What to say about an array of another shape."""
    shape = declared.shape or ()
    rows = shape[0] if shape and isinstance(shape[0], int) else None
    hint = {None: "", 1: " or any number of rows"}.get(rows, f" or a multiple of {rows} rows")
    sizes = ", ".join(str(size or "?") for size in shape)
    return f"input {declared.name!r} must have shape [{sizes}]{hint}, got {list(array.shape)}"
