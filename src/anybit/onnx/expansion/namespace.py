# SPDX-License-Identifier: Apache-2.0
"""The array-API namespace of `Traced`: the functions that the references use.

The names are those of the array API. Constants are computed at once, other values in ONNX;
`trace_value` creates the latter.
"""

import builtins
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from anybit.onnx.expansion.traced import (
    PartialShape,
    TracedValue,
    get_constants,
    make_expression,
    make_literal,
)

float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)
int8 = np.dtype(np.int8)
uint8 = np.dtype(np.uint8)
int64 = np.dtype(np.int64)

_KINDS = {"real floating": "f", "integral": "iu", "bool": "b"}

# Runtimes flush subnormals in Log; this power of two scales them to normal numbers.
_AWAY_FROM_SUBNORMALS = 64


def trace_value(value: ir.Value, dtype: Any) -> TracedValue:
    """Return a runtime value of a graph."""
    shape = None if value.shape is None else get_known_sizes(value.shape)
    return TracedValue(dtype, shape, value=value)


def get_known_sizes(shape: ir.Shape) -> PartialShape:
    return tuple(size if isinstance(size, int) else None for size in shape)


def isdtype(dtype: Any, kinds: str | tuple[str, ...]) -> bool:
    kind = "f" if dtype == ml_dtypes.bfloat16 else dtype.kind
    names = (kinds,) if isinstance(kinds, str) else kinds
    return kind in "".join(_KINDS[name] for name in names)


def asarray(value: Any, *, dtype: Any = None, device: Any = None) -> TracedValue:
    if isinstance(value, TracedValue):
        return value if dtype is None else value.astype(dtype)
    return make_literal(np.asarray(value, dtype))


def astype(x: TracedValue, dtype: Any) -> TracedValue:
    return x.astype(dtype)


def empty(shape: Any, *, dtype: Any) -> TracedValue:
    return make_literal(np.empty(shape, dtype))


def full_like(x: TracedValue, value: float) -> TracedValue:
    """Return one element, which broadcasts to the shape of x."""
    return make_literal(np.asarray(value, x.dtype))


def ones_like(x: TracedValue) -> TracedValue:
    return full_like(x, 1)


def zeros_like(x: TracedValue) -> TracedValue:
    return full_like(x, 0)


def _make_elementwise(
    operation: str, compute: Callable[[Any], Any], dtype: Any = None
) -> Callable[[TracedValue], TracedValue]:
    def function(x: TracedValue) -> TracedValue:
        if x.constant is not None:
            return make_literal(compute(x.constant))
        return make_expression(operation, x, dtype=dtype)

    return function


abs = _make_elementwise("Abs", np.abs)
ceil = _make_elementwise("Ceil", np.ceil)
floor = _make_elementwise("Floor", np.floor)
round = _make_elementwise("Round", np.rint)
sign = _make_elementwise("Sign", np.sign)
isnan = _make_elementwise("IsNaN", np.isnan, np.bool_)
isinf = _make_elementwise("IsInf", np.isinf, np.bool_)


def any(x: TracedValue) -> TracedValue:
    """Return whether any element is true, for constants only."""
    return x if x.constant is None else make_literal(np.any(x.constant))


def trunc(x: TracedValue) -> TracedValue:
    return where(x < 0, ceil(x), floor(x))


def isfinite(x: TracedValue) -> TracedValue:
    return abs(x) < math.inf  # false for NaN, too


def maximum(x: TracedValue, other: Any) -> TracedValue:
    """Return the maximum of integers, which have no NaN."""
    other = x.lift(other)
    arrays = get_constants(x, other)
    return (
        make_literal(np.maximum(*arrays))
        if arrays is not None
        else make_expression("Max", x, other)
    )


def clip(x: TracedValue, lowest: float, highest: float) -> TracedValue:
    """Clip values; NaN stays NaN, which ONNX's Clip does not guarantee."""
    if x.constant is None and x.dtype.kind in _KINDS["integral"]:
        return make_expression("Clip", x, x.lift(lowest), x.lift(highest))
    x = where(x < lowest, full_like(x, lowest), x)
    return where(x > highest, full_like(x, highest), x)


def where(condition: TracedValue, x: TracedValue, other: TracedValue) -> TracedValue:
    arrays = get_constants(condition, x, other)
    if arrays is not None:
        return make_literal(np.where(*arrays))
    return make_expression("Where", condition, x, other, dtype=x.dtype)


def max(x: TracedValue, *, axis: int, keepdims: bool) -> TracedValue:
    """Return the largest numbers along an axis of arrays without NaN."""
    if x.constant is not None:
        return make_literal(np.max(x.constant, axis=axis, keepdims=keepdims))
    shape = None if x.shape is None else (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    return TracedValue(
        x.dtype,
        shape,
        operation="ReduceMax",
        operands=(x, _make_vector(axis)),
        attributes={"keepdims": int(keepdims)},
    )


def log2(x: TracedValue) -> TracedValue:
    """Return an estimate of log2(x), for x > 0; its floor is off by one at most."""
    if x.constant is not None:
        return make_literal(np.log2(x.constant))
    small = x < 2.0**-_AWAY_FROM_SUBNORMALS
    scaled = where(small, x * 2.0**_AWAY_FROM_SUBNORMALS, x)
    shift = where(small, full_like(x, _AWAY_FROM_SUBNORMALS), full_like(x, 0))
    return make_expression("Log", scaled) * (1 / math.log(2)) - shift


def bitwise_left_shift(x: TracedValue, count: TracedValue) -> TracedValue:
    """Shift 1 by 0 .. 62 places, because ONNX shifts unsigned integers only."""
    return make_literal(2 ** np.arange(63, dtype=np.int64))[count] * x


def reshape(x: TracedValue, shape: tuple[int | None, ...]) -> TracedValue:
    """Reshape an array; one size may be None (inferred)."""
    if x.constant is not None:
        return make_literal(
            np.reshape(x.constant, tuple(-1 if size is None else size for size in shape))
        )
    sizes = make_literal(np.asarray([-1 if size is None else size for size in shape], np.int64))
    return TracedValue(x.dtype, tuple(shape), operation="Reshape", operands=(x, sizes))


def expand_dims(x: TracedValue, *, axis: int) -> TracedValue:
    """Return the array with an axis of size 1, which counts from the end of the result."""
    if x.constant is not None:
        return make_literal(np.expand_dims(x.constant, axis))
    at = x.ndim + 1 + axis
    shape = None if x.shape is None else (*x.shape[:at], 1, *x.shape[at:])
    return TracedValue(x.dtype, shape, operation="Unsqueeze", operands=(x, _make_vector(at)))


def split_blocks(x: TracedValue, axis: int, size: int) -> TracedValue:
    """Return x with the axis replaced by two, see `anybit.ops.blocks`."""
    if x.constant is not None:
        length = x.constant.shape[axis]
        size = builtins.max(1, min(size, length))
        pads = [(0, 0)] * x.ndim
        pads[axis] = (0, -length % size)
        padded = np.pad(x.constant, pads)
        count = padded.shape[axis] // size
        shape = (*padded.shape[:axis], count, size, *padded.shape[axis + 1 :])
        return make_literal(np.reshape(padded, shape))
    return _split_runtime_blocks(x, axis, size)


@dataclass(frozen=True)
class _BlockCounts:
    """The number of blocks of an axis, the elements that the last one lacks, and all of them."""

    count: int | TracedValue
    missing: int | TracedValue
    whole: int | TracedValue

    @property
    def are_full(self) -> bool:
        """Return whether the last block certainly has all elements."""
        return isinstance(self.missing, int) and self.missing == 0


def _count_blocks(x: TracedValue, axis: int, size: int) -> _BlockCounts:
    length = _get_sizes(x)[axis]
    if length is not None:
        count = -(-length // size)
        return _BlockCounts(count, count * size - length, count * size)
    measured = _measure(x, axis, axis + 1)
    missing = make_expression("Mod", -measured, measured.lift(size))
    whole = measured + missing
    return _BlockCounts(whole // size, missing, whole)


def _split_runtime_blocks(x: TracedValue, axis: int, size: int) -> TracedValue:
    sizes = _get_sizes(x)
    length, rank = sizes[axis], len(sizes)
    size = size if length is None else builtins.max(1, min(size, length))
    counts = _count_blocks(x, axis, size)
    padded = x
    if not counts.are_full:
        pads = _join([*[0] * (rank + axis), counts.missing, *[0] * (rank - 1 - axis)])
        shape = (*sizes[:axis], None, *sizes[axis + 1 :])
        padded = TracedValue(x.dtype, shape, operation="Pad", operands=(x, pads))
    return _reshape_axis(padded, sizes, axis, [counts.count, size])


def merge_blocks(blocks: TracedValue, x: TracedValue, axis: int) -> TracedValue:
    """Return blocks of x in its shape, see `anybit.ops.blocks`."""
    sizes = _get_sizes(x)
    length, size = sizes[axis], _get_sizes(blocks)[axis + 1]
    assert size is not None, "blocks have a known size"
    if blocks.constant is not None:
        of = blocks.constant.shape
        merged = blocks.constant.reshape((*of[:axis], of[axis] * size, *of[axis + 2 :]))
        return make_literal(np.take(merged, range(length or 0), axis))
    counts = _count_blocks(x, axis, size)
    whole = _reshape_axis(blocks, sizes, axis, [counts.whole])
    if counts.are_full:
        return whole
    end = _measure(x, axis, axis + 1) if length is None else _make_vector(length)
    operands = (whole, _make_vector(0), end, _make_vector(axis))
    return TracedValue(blocks.dtype, sizes, operation="Slice", operands=operands)


def _get_sizes(x: TracedValue) -> PartialShape:
    assert x.shape is not None, "the rank is known: the axis was found"
    return x.shape


def _reshape_axis(
    x: TracedValue, sizes: PartialShape, axis: int, parts: Sequence[int | TracedValue]
) -> TracedValue:
    """Reshape an array to given sizes, with others in place of one axis."""
    leading, trailing = sizes[:axis], sizes[axis + 1 :]
    shape = _join(
        [*_list_sizes(x, leading, 0), *parts, *_list_sizes(x, trailing, x.ndim - len(trailing))]
    )
    middle = [part if isinstance(part, int) else None for part in parts]
    return TracedValue(
        x.dtype,
        (*leading, *middle, *trailing),
        operation="Reshape",
        operands=(x, shape),
        attributes={"allowzero": 1},
    )


def _list_sizes(x: TracedValue, sizes: PartialShape, start: int) -> list[int | TracedValue]:
    """Return the sizes of consecutive axes of x, measured if one is unknown."""
    constants: list[int | TracedValue] = [size for size in sizes if size is not None]
    return constants if len(constants) == len(sizes) else [_measure(x, start, start + len(sizes))]


def _measure(x: TracedValue, start: int, end: int) -> TracedValue:
    """Return the sizes of some axes as a vector."""
    attributes = {"start": start, "end": end}
    return TracedValue(np.int64, (None,), operation="Shape", operands=(x,), attributes=attributes)


def _make_vector(*numbers: int) -> TracedValue:
    return make_literal(np.asarray(numbers, np.int64))


def _join(parts: Sequence[int | TracedValue]) -> TracedValue:
    """Return a vector of constant and computed sizes."""
    vectors = [part if isinstance(part, TracedValue) else _make_vector(part) for part in parts]
    if all(vector.constant is not None for vector in vectors):
        return make_literal(np.concatenate([vector.constant for vector in vectors]))
    return TracedValue(
        np.int64, (None,), operation="Concat", operands=tuple(vectors), attributes={"axis": 0}
    )


TracedValue.functions = sys.modules[__name__]
