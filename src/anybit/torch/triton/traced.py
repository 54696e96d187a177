# SPDX-License-Identifier: Apache-2.0
"""Arrays that record operations, so that the source of a kernel is derived from a reference.

The references are array-API code. On `Traced` arrays they return the expression of their result.

A value varies if it depends on an array as large as the result. Other values are columns, which a
kernel computes once per tile or per row. The references compute exponents in int64. For varying
ones 32 bits are enough: they are small, and a column that is combined with one is clipped to
+-2^24, beyond which all exponents have the same effect. This needs at most one such column per sum,
which is checked by the range of each integer.
"""

import math
from typing import Any, TypeAlias

from anybit.ops.expression import RecordingArray

StaticShape: TypeAlias = tuple[int, ...]
ValueRange: TypeAlias = tuple[float, float]

ANYWHERE: ValueRange = (-math.inf, math.inf)
LIMIT = 2**24


class Traced(RecordingArray):
    """An array in a kernel.

    Attributes:
        dtype: The name of a dtype; `bits32` and `bits64` are those of a float's representation.
        shape: The sizes.
        operation: `input`, `constant` or a key of the tables in `source`.
        operands: The operands of the operation.
        literal: The number of a constant, the index of an input, or the axes of a sum.
        varies: Whether it depends on an array of the result's size.
        range: The lowest and the highest possible value of an integer.
    """

    device = "cuda"

    def __init__(
        self,
        operation: str,
        operands: tuple["Traced", ...],
        dtype: str,
        shape: StaticShape,
        *,
        literal: Any = None,
        varies: bool = False,
        range: ValueRange = ANYWHERE,
    ) -> None:
        self.operation = operation
        self.operands = operands
        self.dtype = dtype
        self.shape = shape
        self.literal = literal
        self.varies = varies
        self.range = range

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def small(self) -> bool:
        """True if the range is within +-2^24."""
        return self.range[0] >= -LIMIT and self.range[1] <= LIMIT

    @property
    def machine_type(self) -> str:
        """The type of the value in the kernel."""
        if self.dtype == "int64" and self.varies:
            return "int32"
        return {"bits32": "int32", "bits64": "int64", "bool": "int1"}.get(self.dtype, self.dtype)

    def __bool__(self) -> bool:
        raise TypeError("the value does not exist before the kernel runs")

    def lift(self, value: Any) -> "Traced":
        return value if isinstance(value, Traced) else make_constant(value, self.dtype)

    def compare(self, relation: str, other: Any) -> "Traced":
        return make_expression(relation, self, self.lift(other), dtype="bool")

    def astype(self, dtype: str) -> "Traced":
        if dtype == self.dtype:
            return self
        if self.operation == "constant":
            return make_constant(self.literal, dtype)
        return make_expression("cast", self, dtype=dtype)

    def __neg__(self) -> "Traced":
        if self.operation == "constant" and self.literal:
            return make_constant(-self.literal, self.dtype)
        # Triton's minus may be 0 - x, which loses the sign of 0.
        return self * -1 if self.dtype.startswith("float") else 0 - self

    def __add__(self, other: Any) -> "Traced":
        return _add("add", self, other)

    def __sub__(self, other: Any) -> "Traced":
        return _add("sub", self, other)

    def __mul__(self, other: Any) -> "Traced":
        return make_expression("mul", self, self.lift(other))

    def __truediv__(self, other: Any) -> "Traced":
        return make_expression("div", self, self.lift(other))

    def __lshift__(self, places: int) -> "Traced":
        return make_expression("shl", self, self.lift(places))

    def __rshift__(self, places: int) -> "Traced":
        return make_expression("shr", self, self.lift(places))

    def __and__(self, other: Any) -> "Traced":
        return make_expression("and", self, self.lift(other))

    def __or__(self, other: Any) -> "Traced":
        return make_expression("or", self, self.lift(other))


def make_constant(value: Any, dtype: str) -> Traced:
    """Return a number as a scalar, which broadcasts to arrays."""
    if dtype == "bool":
        number: Any = bool(value)
    else:
        number = float(value) if dtype.startswith("float") else int(value)
    if number == 0 and math.copysign(1, number) < 0:
        raise NotImplementedError("Triton has no literal for -0.0")
    return Traced("constant", (), dtype, (), literal=number, range=(number, number))


def make_expression(
    operation: str,
    *operands: Traced,
    dtype: str | None = None,
    shape: StaticShape | None = None,
    literal: Any = None,
    range: ValueRange = ANYWHERE,
) -> Traced:
    """Return the result of an operation, which is elementwise unless a shape is passed."""
    return Traced(
        operation,
        operands,
        operands[0].dtype if dtype is None else dtype,
        broadcast_shapes(*operands) if shape is None else shape,
        literal=literal,
        varies=any(operand.varies for operand in operands),
        range=range,
    )


def broadcast_shapes(*operands: Traced) -> StaticShape:
    """Return the shape to which the operands broadcast."""
    rank = max(operand.ndim for operand in operands)
    aligned = [(1,) * (rank - operand.ndim) + operand.shape for operand in operands]
    return tuple(
        next((size for size in sizes if size != 1), 1) for sizes in zip(*aligned, strict=True)
    )


def _add(operation: str, first: Traced, other: Any) -> Traced:
    second = first.lift(other)
    if first.dtype != "int64":
        return make_expression(operation, first, second)
    low, high = second.range if operation == "add" else (-second.range[1], -second.range[0])
    result = make_expression(
        operation, first, second, range=(first.range[0] + low, first.range[1] + high)
    )
    if result.varies and not (first.small or second.small):
        raise NotImplementedError("a sum of two unbounded integers")
    return result
