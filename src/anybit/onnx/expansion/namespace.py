# SPDX-License-Identifier: Apache-2.0
"""The array-API namespace of `Traced`: the functions that the references use.

The names are those of the array API. Constants are computed at once, other values in ONNX;
`trace_value` creates the latter.
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from anybit.onnx.expansion.traced import (
    Shape,
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


def get_known_sizes(shape: ir.Shape) -> Shape:
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


TracedValue.functions = sys.modules[__name__]
