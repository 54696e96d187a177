# SPDX-License-Identifier: Apache-2.0
"""Declared inputs and outputs of models, and arrays bound to them.

A dynamic size is one that the file leaves open: a name, no value, or the -1 of some exporters.
Rows lie along the first axis. An input whose first size is fixed to n takes k * n rows, with the
same k for all such inputs: k slices, each a run of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from anybit import text
from anybit.errors import DataError, ModelError
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.shapes import get_sizes
from anybit.onnx.ort_values import is_numpy_dtype

Feeds: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]
DeclaredShape: TypeAlias = tuple[int | str | None, ...]


class Shaped(Protocol):
    """Anything with a shape: an array, or one in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class TensorInfo:
    """A declared input or output.

    `shape` has an int for a fixed size, and a name or None for a dynamic one. It is None if the
    rank is unknown.
    """

    name: str
    dtype: np.dtype[Any]
    shape: DeclaredShape | None

    def __str__(self) -> str:
        return f"{self.name}: {text.format_tensor_type(self.dtype, self.shape)}"

    @property
    def rows(self) -> int | None:
        """The first size, or None if it is dynamic."""
        first = self.shape[0] if self.shape else None
        return first if isinstance(first, int) else None

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether a shape has all fixed sizes."""
        return self.shape is None or (
            len(shape) == len(self.shape)
            and all(
                size == declared or not isinstance(declared, int)
                for size, declared in zip(shape, self.shape, strict=True)
            )
        )


def list_inputs(graph: ir.Graph, where: str) -> tuple[TensorInfo, ...]:
    """Return the inputs of a graph that have no initializer.

    Raises:
        ModelError: An input is not a tensor of numbers of a known type.
    """
    stored = set(graph.initializers.values())
    return tuple(get_tensor_info(value, where) for value in graph.inputs if value not in stored)


def get_tensor_info(value: ir.Value, where: str) -> TensorInfo:
    """Return the declared type and shape of a value.

    Raises:
        ModelError: It is not a tensor of numbers of a known type.
    """
    name = value.name or ""
    dtype = value.dtype
    is_tensor = isinstance(value.type, ir.TensorType)
    if dtype is None or dtype == ir.DataType.UNDEFINED or not is_tensor:
        raise ModelError(f"{where}: {name!r} is not a tensor of a known type")
    if dtype == ir.DataType.STRING:
        raise ModelError(f"{where}: {name!r} holds strings; only numbers are supported")
    shape = None
    if value.shape is not None:
        sizes = get_sizes(value.shape)
        shape = tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)
    return TensorInfo(name, dtype.numpy(), shape)


def infer_tensor_info(argument: Any) -> TensorInfo:
    """Return an output without a type in the file, as the runtime infers it.

    Raises:
        ModelError: It is not a tensor of numbers.
    """
    spelled = argument.type.removeprefix("tensor(").removesuffix(")").upper()
    dtype = next((dtype for dtype in ir.DataType if dtype.name == spelled), ir.DataType.STRING)
    if dtype == ir.DataType.STRING:
        raise ModelError(f"output {argument.name!r} is {argument.type}; only numbers are supported")
    return TensorInfo(argument.name, dtype.numpy(), tuple(argument.shape))


def bind_inputs(inputs: Sequence[TensorInfo], feeds: Feeds) -> dict[str, Array]:
    """Return one array of the declared dtype per input, in their order. Shapes are not checked.

    Raises:
        DataError: A name is missing or unknown, or `convert_array` raises it.
    """
    names = text.join_names(tensor.name for tensor in inputs) or "none"
    if not isinstance(feeds, Mapping):
        if len(inputs) != 1:
            raise DataError(f"the model takes {len(inputs)} inputs: pass a dict of {names}")
        return {inputs[0].name: convert_array(feeds, inputs[0])}
    expected = {tensor.name for tensor in inputs}
    if feeds.keys() != expected:
        missing = text.join_names(sorted(expected - feeds.keys())) or "none"
        unknown = text.join_names(sorted(map(str, feeds.keys() - expected))) or "none"
        raise DataError(
            f"the model takes the inputs {names}; missing: {missing}; not known: {unknown}"
        )
    return {tensor.name: convert_array(feeds[tensor.name], tensor) for tensor in inputs}


def require_elements(inputs: Sequence[TensorInfo], arrays: Mapping[str, Array]) -> None:
    """Check that outputs can be measured: there are rows, and one of the inputs has elements.

    Other sizes may be 0, as the length of a cache at the first token.

    Raises:
        DataError: An input has no rows, or all are empty.
    """
    all_empty = not any(array.size for array in arrays.values())
    for tensor in inputs:
        shape = arrays[tensor.name].shape
        if 0 in shape[:1] or (0 in shape and all_empty):
            raise DataError(f"{_describe_empty(tensor, shape)}, so that nothing can be measured")


def _describe_empty(declared: TensorInfo, shape: tuple[int, ...]) -> str:
    return f"input {declared.name!r} has shape {shape}: it has no elements"


def convert_array(value: npt.ArrayLike, declared: TensorInfo) -> Array:
    """Return a value as an array of the declared dtype; `Model.run` documents the conversions.

    Raises:
        DataError: It is not an array, or the dtype cannot hold its numbers.
    """
    if type(value) is np.ndarray and value.dtype == declared.dtype:
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"input {declared.name!r} is not an array: {error}") from error
    if array.dtype == declared.dtype:
        return array
    dtype, kinds = declared.dtype, "fiub"
    if not is_numpy_dtype(dtype):
        cast = _cast_narrow(array, dtype)
        if cast is not None:
            return cast
    elif array.dtype.kind in kinds and dtype.kind in kinds:
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
            back = cast.astype(array.dtype)  # comparing with the cast itself would round
        if array.dtype.kind == dtype.kind == "f" or np.array_equal(back, array):
            return cast
    raise DataError(
        f"input {declared.name!r} must be {dtype}, got {array.dtype} values that "
        f"{dtype} cannot hold; convert them with astype"
    )


def _cast_narrow(array: Array, dtype: np.dtype[Any]) -> Array | None:
    """Convert to a dtype of ml_dtypes; None for values that it cannot hold.

    Floats are rounded to floats, unless they exceed the largest. np.load returns arrays of these
    dtypes as raw bytes.
    """
    bits = int(ir.DataType.from_numpy(dtype).bitwidth)
    if array.dtype.type is np.void and array.dtype.itemsize == dtype.itemsize:
        clean = bits >= 8 or not np.any(array.view(np.uint8) >> bits)
        return array.view(dtype) if clean else None
    if array.dtype.kind not in "fiub" and is_numpy_dtype(array.dtype):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        values, back = array.astype(np.float64), cast.astype(np.float64)
    rounds = "float" in array.dtype.name and "float" in dtype.name
    if not rounds:
        with np.errstate(all="ignore"):
            same = np.array_equal(back.astype(array.dtype), array)  # float64 rounds long integers
        return cast if same and np.array_equal(values, back) else None
    largest = _find_largest(dtype)
    lost = np.isnan(values) != np.isnan(back)
    lost |= np.isinf(values) != np.isinf(back)
    lost |= np.isfinite(values) & (np.abs(values) > largest)
    return None if lost.any() else cast


@cache
def _find_largest(dtype: np.dtype[Any]) -> float:
    """Return the largest finite number of a floating-point dtype of at most 16 bits."""
    bits = int(ir.DataType.from_numpy(dtype).bitwidth)
    codes = np.arange(2**bits, dtype=f"u{dtype.itemsize}").view(dtype)
    values = codes.astype(np.float64)
    return float(values[np.isfinite(values)].max())


def to_numpy_dtype(array: Array) -> Array:
    """Return the values in a dtype of NumPy: int8, uint8 or float32 for dtypes of ml_dtypes."""
    if is_numpy_dtype(array.dtype):
        return array
    name = array.dtype.name
    return array.astype("float32" if "float" in name else "uint8" if name[0] == "u" else "int8")


_UNNAMED = {"", "arr_0"}


def match_arrays(
    names: Sequence[str], arrays: Mapping[str, Array], alias: str, *, only: bool = True
) -> dict[str, Array]:
    """Return the arrays of these names that exist.

    A single name without an array gets the array called `alias`, or with `only` the only array if
    that is unnamed: "" of an .npy file, arr_0 of `numpy.savez`.
    """
    matches = {name: arrays[name] for name in names if name in arrays}
    if matches or len(names) != 1:
        return matches
    if alias in arrays:
        return {names[0]: arrays[alias]}
    if only and len(arrays) == 1 and arrays.keys() <= _UNNAMED:
        return dict(zip(names, arrays.values(), strict=True))
    return {}


def bind_batches(inputs: Sequence[TensorInfo], feeds: Feeds) -> tuple[dict[str, Array], int]:
    """Return one array per input, as `bind_inputs` does, and the number of runs for their rows.

    Raises:
        DataError: `bind_inputs`, `check_sizes` or `count_runs` raises it.
    """
    arrays = bind_inputs(inputs, feeds)
    check_sizes(inputs, arrays)
    return arrays, count_runs(inputs, arrays)


def check_sizes(inputs: Sequence[TensorInfo], feeds: Mapping[str, Shaped]) -> None:
    """Raise DataError if dynamic sizes of the same name differ."""
    sizes: dict[str, int] = {}
    for tensor in inputs:
        for size, name in zip(feeds[tensor.name].shape, tensor.shape or (), strict=False):
            if isinstance(name, str) and sizes.setdefault(name, size) != size:
                raise DataError(
                    f"input {tensor.name!r} has {name} = {size}, another input {sizes[name]}"
                )


def count_runs(inputs: Sequence[TensorInfo], feeds: Mapping[str, Array]) -> int:
    """Return the number of runs that the rows of the arrays need.

    Raises:
        DataError: No number of runs from 1 on fits a shape, or inputs need different numbers.
    """
    counts: dict[int, str] = {}
    for tensor in inputs:
        array, rows = feeds[tensor.name], tensor.rows
        if array.shape == tensor.shape or tensor.shape is None:
            counts.setdefault(1, tensor.name)
            continue
        shape = array.shape
        if rows and shape and shape[0] % rows == 0:
            shape = (rows, *shape[1:])
        if not tensor.fits(shape):
            raise DataError(_describe_misfit(tensor, array.shape))
        if rows and not len(array):
            needed = text.format_shape(tensor.shape)
            raise DataError(f"{_describe_empty(tensor, array.shape)}; the model takes {needed}")
        counts.setdefault(1 if rows is None else len(array) // rows, tensor.name)
    if len(counts) > 1:
        (one, a), (other, b), *_ = counts.items()
        raise DataError(
            f"the inputs have different numbers of rows: {a!r} has enough for "
            f"{text.format_count(one, 'run')} of the model, {b!r} for {other}"
        )
    return next(iter(counts), 1)


def select_run(feeds: Mapping[str, Array], index: int, slices: int) -> dict[str, Array]:
    """Return the arrays of one run of several."""
    if slices == 1:
        return dict(feeds)
    part = {}
    for name, array in feeds.items():
        rows = len(array) // slices
        part[name] = array[index * rows : (index + 1) * rows]
    return part


def check_shape(declared: TensorInfo, array: Shaped, whole: tuple[int, ...] | None = None) -> None:
    """Raise DataError if the array has another shape than the declared one.

    The message shows the shape of the `whole` array that it is a part of, if that is passed.
    """
    if not declared.fits(array.shape):
        raise DataError(_describe_misfit(declared, array.shape if whole is None else whole))


def _describe_misfit(declared: TensorInfo, shape: tuple[int, ...]) -> str:
    rows = declared.rows
    hint = {None: "", 1: " or any number of rows"}.get(rows, f" or a multiple of {rows} rows")
    return (
        f"input {declared.name!r} must have shape {text.format_shape(declared.shape)}{hint}, "
        f"got {list(shape)}"
    )
