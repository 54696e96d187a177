# SPDX-License-Identifier: Apache-2.0
"""Arrays that record what is done to them, so that a reference becomes the text of a kernel.

The references are array-API code. Run on `Traced` arrays, they leave behind the expression of
their result: the kernel is derived and not written again.

A value varies if it depends on an array that is as large as the result; the others are columns,
which a kernel computes once per tile or per row. The references count in int64. Where a count
varies, 32 bits are enough: exponents are small, and a column that meets one is limited to +-2^24,
beyond which every exponent means the same. That holds as long as one such column at most goes into
a sum, which is checked here: every count knows the range that it lies in.
"""

import math
from typing import Any, TypeAlias

from anybit.ops.expression import Recording

Shape: TypeAlias = tuple[int, ...]
Range: TypeAlias = tuple[float, float]

ANYWHERE: Range = (-math.inf, math.inf)
LIMIT = 2**24


class Traced(Recording):
    """An array that a kernel will know.

    Attributes:
        dtype: The name of a dtype; `bits32` and `bits64` are those of a float's representation.
        shape: The sizes.
        operation: What gives it: `input`, `constant` or a key of the tables of `_source`.
        operands: What the operation is applied to.
        literal: The number of a constant, the place of an input.
        varies: Whether it depends on an array of the result's size.
        range: For counts, the lowest and the highest that is possible.
    """

    device = "cuda"

    def __init__(
        self,
        operation: str,
        operands: tuple["Traced", ...],
        dtype: str,
        shape: Shape,
        *,
        literal: Any = None,
        varies: bool = False,
        range: Range = ANYWHERE,
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
        """Whether it certainly lies within +-2^24."""
        return self.range[0] >= -LIMIT and self.range[1] <= LIMIT

    @property
    def machine_type(self) -> str:
        """The type that the kernel holds it in."""
        if self.dtype == "int64" and self.varies:
            return "int32"
        return {"bits32": "int32", "bits64": "int64", "bool": "int1"}.get(self.dtype, self.dtype)

    def __bool__(self) -> bool:
        raise TypeError("the value is not known before the kernel runs")

    def lift(self, value: Any) -> "Traced":
        return value if isinstance(value, Traced) else constant(value, self.dtype)

    def compared(self, relation: str, other: Any) -> "Traced":
        return expression(relation, self, self.lift(other), dtype="bool")

    def astype(self, dtype: str) -> "Traced":
        if dtype == self.dtype:
            return self
        if self.operation == "constant":
            return constant(self.literal, dtype)
        return expression("cast", self, dtype=dtype)

    def __neg__(self) -> "Traced":
        if self.operation == "constant" and self.literal:
            return constant(-self.literal, self.dtype)
        # Triton's minus may be 0 - x, which loses the sign of 0.
        return self * -1 if self.dtype.startswith("float") else 0 - self

    def __add__(self, other: Any) -> "Traced":
        return _sum("add", self, other)

    def __sub__(self, other: Any) -> "Traced":
        return _sum("sub", self, other)

    def __mul__(self, other: Any) -> "Traced":
        return expression("mul", self, self.lift(other))

    def __truediv__(self, other: Any) -> "Traced":
        return expression("div", self, self.lift(other))

    def __lshift__(self, places: int) -> "Traced":
        return expression("shl", self, self.lift(places))

    def __rshift__(self, places: int) -> "Traced":
        return expression("shr", self, self.lift(places))

    def __and__(self, other: Any) -> "Traced":
        return expression("and", self, self.lift(other))

    def __or__(self, other: Any) -> "Traced":
        return expression("or", self, self.lift(other))


def constant(value: Any, dtype: str) -> Traced:
    """Return a number, which broadcasts to the shape of arrays."""
    if dtype == "bool":
        number: Any = bool(value)
    else:
        number = float(value) if dtype.startswith("float") else int(value)
    if number == 0 and math.copysign(1, number) < 0:
        raise NotImplementedError("Triton has no literal for -0.0")
    return Traced("constant", (), dtype, (), literal=number, range=(number, number))


def expression(
    operation: str,
    *operands: Traced,
    dtype: str | None = None,
    shape: Shape | None = None,
    literal: Any = None,
    range: Range = ANYWHERE,
) -> Traced:
    """What an operation gives for these operands; elementwise, unless a shape is named."""
    return Traced(
        operation,
        operands,
        operands[0].dtype if dtype is None else dtype,
        broadcast(*operands) if shape is None else shape,
        literal=literal,
        varies=any(operand.varies for operand in operands),
        range=range,
    )


def broadcast(*operands: Traced) -> Shape:
    """The shape that the operands have together."""
    rank = max(operand.ndim for operand in operands)
    aligned = [(1,) * (rank - operand.ndim) + operand.shape for operand in operands]
    return tuple(
        next((size for size in sizes if size != 1), 1) for sizes in zip(*aligned, strict=True)
    )


def _sum(operation: str, first: Traced, other: Any) -> Traced:
    second = first.lift(other)
    if first.dtype != "int64":
        return expression(operation, first, second)
    low, high = second.range if operation == "add" else (-second.range[1], -second.range[0])
    found = expression(
        operation, first, second, range=(first.range[0] + low, first.range[1] + high)
    )
    if found.varies and not (first.small or second.small):
        raise NotImplementedError("two counts without limits are added to one another")
    return found
