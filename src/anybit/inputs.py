# SPDX-License-Identifier: Apache-2.0
"""What a model takes and gives, and arrays that are to fit it.

A free size is one that the file leaves open: it has a name, nothing, or the -1 of some exporters.
Rows are what lies along the first axis. An input whose first size is fixed to n takes k * n rows,
with the same k for all inputs that have such a size: k slices, each a run of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from anybit import text
from anybit.errors import ModelError
from anybit.onnx.graph.shapes import sizes_of
from anybit.onnx.ort_values import is_numpy_dtype

Array: TypeAlias = npt.NDArray[Any]
Feeds: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]
Shape: TypeAlias = tuple[int | str | None, ...]


class Shaped(Protocol):
    """An array, read or not."""

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Tensor:
    """An input or output: `shape` has an int for a fixed size, a name or None for a free one.

    It is None itself where not even the rank is known. `may_be_empty` says that no rows are rows.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None
    may_be_empty: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {text.typed(self.dtype, self.shape)}"

    @property
    def rows(self) -> int | None:
        """The first size, where that is fixed."""
        first = self.shape[0] if self.shape else None
        return first if isinstance(first, int) else None

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether an array of that shape has every fixed size."""
        return self.shape is None or (
            len(shape) == len(self.shape)
            and all(
                size == wanted or not isinstance(wanted, int)
                for size, wanted in zip(shape, self.shape, strict=True)
            )
        )


def declared_inputs(graph: ir.Graph, where: str) -> tuple[Tensor, ...]:
    """The inputs that a caller gives: those that are not stored in the file.

    Raises:
        ModelError: One that is not a tensor of numbers of a known type.
    """
    stored = set(graph.initializers.values())
    return tuple(declared(value, where) for value in graph.inputs if value not in stored)


def declared(value: ir.Value, where: str) -> Tensor:
    """What a value of a graph declares.

    Raises:
        ModelError: It is not a tensor of numbers of a known type.
    """
    name = value.name or ""
    dtype = value.dtype
    if not isinstance(value.type, ir.TensorType) or dtype in (None, ir.DataType.UNDEFINED):
        raise ModelError(f"{where}: {name!r} is not a tensor of a known type")
    assert dtype is not None
    if dtype == ir.DataType.STRING:
        raise ModelError(f"{where}: {name!r} holds strings; only numbers are supported")
    shape = None
    if value.shape is not None:
        sizes = sizes_of(value.shape)
        shape = tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)
    return Tensor(name, dtype.numpy(), shape)


def derived(argument: Any) -> Tensor:
    """An output that the file does not type, as the runtime has derived it.

    Raises:
        ModelError: It is not a tensor of numbers.
    """
    spelled = argument.type.removeprefix("tensor(").removesuffix(")").upper()
    dtype = next((each for each in ir.DataType if each.name == spelled), ir.DataType.STRING)
    if dtype == ir.DataType.STRING:
        raise ModelError(f"output {argument.name!r} is {argument.type}; only numbers are supported")
    return Tensor(argument.name, dtype.numpy(), tuple(argument.shape))


def bound(inputs: Sequence[Tensor], given: Feeds) -> dict[str, Array]:
    """One array of the declared dtype per input, in their order. Shapes are not looked at.

    Raises:
        ModelError: A missing or unknown name, or what `converted` refuses.
    """
    names = text.listed(each.name for each in inputs) or "none"
    if not isinstance(given, Mapping):
        if len(inputs) != 1:
            raise ModelError(f"the model takes {len(inputs)} inputs: pass a dict of {names}")
        return {inputs[0].name: converted(given, inputs[0])}
    known = {each.name for each in inputs}
    if given.keys() != known:
        missing = text.listed(sorted(known - given.keys())) or "none"
        unknown = text.listed(sorted(map(str, given.keys() - known))) or "none"
        raise ModelError(
            f"the model takes the inputs {names}; missing: {missing}; not known: {unknown}"
        )
    return {each.name: converted(given[each.name], each) for each in inputs}


def converted(value: npt.ArrayLike, declared: Tensor) -> Array:
    """The value as an array of the declared dtype; `Model.run` says what is converted.

    Raises:
        ModelError: It is not an array, it is empty and may not be, or the dtype cannot hold its
            numbers.
    """
    if type(value) is np.ndarray and value.dtype == declared.dtype and value.size:
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ModelError(f"input {declared.name!r} is not an array: {error}") from error
    if not array.size and not declared.may_be_empty:
        raise ModelError(f"input {declared.name!r} has shape {array.shape}: it has no elements")
    if array.dtype == declared.dtype:
        return array
    wanted, kinds = declared.dtype, "fiub"
    if not is_numpy_dtype(wanted):
        cast = _narrowed(array, wanted)
        if cast is not None:
            return cast
    elif array.dtype.kind in kinds and wanted.kind in kinds:
        with np.errstate(all="ignore"):
            cast = array.astype(wanted)
            back = cast.astype(array.dtype)  # comparing with the cast itself would round
        if array.dtype.kind == wanted.kind == "f" or np.array_equal(back, array):
            return cast
    raise ModelError(
        f"input {declared.name!r} must be {wanted}, got {array.dtype} values that "
        f"{wanted} cannot hold; convert them with astype"
    )


def _narrowed(array: Array, wanted: np.dtype[Any]) -> Array | None:
    """Convert to a dtype of ml_dtypes; None for values that it cannot hold.

    Floats are rounded to floats, unless they lie beyond the largest. np.load gives arrays of these
    dtypes as raw bytes.
    """
    bits = int(ir.DataType.from_numpy(wanted).bitwidth)
    if array.dtype.type is np.void and array.dtype.itemsize == wanted.itemsize:
        clean = bits >= 8 or not np.any(array.view(np.uint8) >> bits)
        return array.view(wanted) if clean else None
    if array.dtype.kind not in "fiub" and is_numpy_dtype(array.dtype):
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(wanted)
        given, back = array.astype(np.float64), cast.astype(np.float64)
    rounds = "float" in array.dtype.name and "float" in wanted.name
    if not rounds:
        with np.errstate(all="ignore"):
            same = np.array_equal(back.astype(array.dtype), array)  # float64 rounds long integers
        return cast if same and np.array_equal(given, back) else None
    largest = _largest(wanted)
    lost = np.isnan(given) != np.isnan(back)
    lost |= np.isinf(given) != np.isinf(back)
    lost |= np.isfinite(given) & (np.abs(given) > largest)
    return None if lost.any() else cast


@cache
def _largest(dtype: np.dtype[Any]) -> float:
    """Return the largest finite number of a floating-point dtype of at most 16 bits."""
    bits = int(ir.DataType.from_numpy(dtype).bitwidth)
    codes = np.arange(2**bits, dtype=f"u{dtype.itemsize}").view(dtype)
    values = codes.astype(np.float64)
    return float(values[np.isfinite(values)].max())


def in_numpy_dtype(array: Array) -> Array:
    """Return the same values in a dtype that NumPy itself has: int8, uint8 or float32 for those of
    ml_dtypes."""
    if is_numpy_dtype(array.dtype):
        return array
    name = array.dtype.name
    return array.astype("float32" if "float" in name else "uint8" if name[0] == "u" else "int8")


_UNNAMED = {"", "arr_0"}


def matched(
    names: Sequence[str], arrays: Mapping[str, Array], alias: str, *, only: bool = True
) -> dict[str, Array]:
    """Return the arrays of these names, as far as there are any.

    If there is none and one name only, it is the array called `alias`, or with `only` the only
    array, if that has no name of its own: "" of an .npy file, arr_0 of `numpy.savez`.
    """
    found = {name: arrays[name] for name in names if name in arrays}
    if found or len(names) != 1:
        return found
    if alias in arrays:
        return {names[0]: arrays[alias]}
    if only and len(arrays) == 1 and arrays.keys() <= _UNNAMED:
        return dict(zip(names, arrays.values(), strict=True))
    return {}


def fitted(inputs: Sequence[Tensor], given: Feeds) -> tuple[dict[str, Array], int]:
    """One array per input, as `bound` gives it, and how many runs the rows of all need.

    Raises:
        ModelError: What `bound`, `check_sizes` and `slices_of` refuse.
    """
    feeds = bound(inputs, given)
    check_sizes(inputs, feeds)
    return feeds, slices_of(inputs, feeds)


def check_sizes(inputs: Sequence[Tensor], feeds: Mapping[str, Shaped]) -> None:
    """ModelError where sizes of one name are not the same wherever they stand."""
    sizes: dict[str, int] = {}
    for each in inputs:
        for size, name in zip(feeds[each.name].shape, each.shape or (), strict=False):
            if isinstance(name, str) and sizes.setdefault(name, size) != size:
                raise ModelError(
                    f"input {each.name!r} has {name} = {size}, another input {sizes[name]}"
                )


def slices_of(inputs: Sequence[Tensor], feeds: Mapping[str, Array]) -> int:
    """How many runs the rows of the arrays need.

    Raises:
        ModelError: A shape that no number of runs fits, or inputs that need different numbers.
    """
    counts: dict[int, str] = {}
    for each in inputs:
        array, rows = feeds[each.name], each.rows
        if array.shape == each.shape or each.shape is None:
            counts.setdefault(1, each.name)
            continue
        shape = array.shape
        if rows and shape and shape[0] % rows == 0:
            shape = (rows, *shape[1:])
        if not each.fits(shape):
            raise ModelError(_misfit(each, array.shape))
        counts.setdefault(1 if rows is None else len(array) // rows, each.name)
    if len(counts) > 1:
        (one, a), (other, b), *_ = counts.items()
        raise ModelError(
            f"the inputs have different numbers of rows: {a!r} has enough for "
            f"{text.counted(one, 'run')} of the model, {b!r} for {other}"
        )
    return next(iter(counts), 1)


def slice_of(feeds: Mapping[str, Array], index: int, slices: int) -> dict[str, Array]:
    """The arrays of one run, where there are that many."""
    if slices == 1:
        return dict(feeds)
    part = {}
    for name, array in feeds.items():
        rows = len(array) // slices
        part[name] = array[index * rows : (index + 1) * rows]
    return part


def check_shape(declared: Tensor, array: Shaped, whole: tuple[int, ...] | None = None) -> None:
    """Raise ModelError if the array has another shape than the declared one.

    The message shows the shape of the `whole` array that it is a part of, if that is given.
    """
    if not declared.fits(array.shape):
        raise ModelError(_misfit(declared, array.shape if whole is None else whole))


def _misfit(declared: Tensor, shape: tuple[int, ...]) -> str:
    rows = declared.rows
    hint = {None: "", 1: " or any number of rows"}.get(rows, f" or a multiple of {rows} rows")
    return (
        f"input {declared.name!r} must have shape {text.sizes(declared.shape)}{hint}, "
        f"got {list(shape)}"
    )
