# SPDX-License-Identifier: Apache-2.0
"""Arrays that record operations, which convert a reference into standard ONNX nodes.

The references of the operators are array-API code. Run on a `Traced` array, they return the
expression of their result: the operator's body in ONNX, derived instead of written again.
Expressions of constants are computed at once by NumPy.

Two things differ from the reference. Sums with 0 and products with 1 are left out, as in runtimes,
so the sign of a zero may differ. And `log2`, which ONNX lacks, is an approximation that may be off
by one at powers of two, which suffices for the references.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array
from anybit.ops.expression import RecordingArray

PartialShape: TypeAlias = tuple[int | None, ...]


_RELATIONS = {
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "eq": "Equal",
}


class TracedValue(RecordingArray):
    """A constant array, or an expression of runtime arrays.

    Attributes:
        dtype: A NumPy dtype.
        shape: The sizes, None for unknown ones; None if the rank is unknown.
        constant: The array of a constant.
        value: The value of the graph, if it is one.
        operation: The standard operator that computes it, with `operands` and `attributes`.
    """

    device = "cpu"

    def __init__(
        self,
        dtype: Any,
        shape: PartialShape | None,
        *,
        constant: Array | None = None,
        value: ir.Value | None = None,
        operation: str = "",
        operands: tuple["TracedValue", ...] = (),
        attributes: Mapping[str, int] | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.constant = constant
        self.value = value
        self.operation = operation
        self.operands = operands
        self.attributes = attributes or {}

    @property
    def ndim(self) -> int:
        """Return the rank. Raise ValueError if it is unknown."""
        if self.shape is None:
            raise ValueError("the rank of a tensor is not known; infer shapes first")
        return len(self.shape)

    def __bool__(self) -> bool:
        if self.constant is None:
            raise TypeError("the value is not known before the model runs")
        return bool(self.constant)

    def lift(self, value: Any) -> "TracedValue":
        return (
            value if isinstance(value, TracedValue) else make_literal(np.asarray(value, self.dtype))
        )

    def compare(self, relation: str, other: Any) -> "TracedValue":
        if relation == "ne":
            return ~self.compare("eq", other)
        return _compare(_RELATIONS[relation], getattr(operator, relation), self, other)

    def astype(self, dtype: Any) -> "TracedValue":
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self
        if self.constant is not None:
            return make_literal(self.constant.astype(dtype))
        to = int(ir.DataType.from_numpy(dtype))
        return make_expression("Cast", self, dtype=dtype, attributes={"to": to})

    def __getitem__(self, index: "TracedValue") -> "TracedValue":
        """Return elements of a one-dimensional array, in the shape of the index."""
        arrays = get_constants(self, index)
        if arrays is not None:
            return make_literal(arrays[0][arrays[1]])
        return TracedValue(self.dtype, index.shape, operation="Gather", operands=(self, index))

    def __neg__(self) -> "TracedValue":
        return (
            make_literal(-self.constant)
            if self.constant is not None
            else make_expression("Neg", self)
        )

    def __invert__(self) -> "TracedValue":
        return (
            make_literal(~self.constant)
            if self.constant is not None
            else make_expression("Not", self)
        )

    def __add__(self, other: Any) -> "TracedValue":
        return _add_like("Add", operator.add, self, other, 0, commutative=True)

    def __sub__(self, other: Any) -> "TracedValue":
        return _add_like("Sub", operator.sub, self, other, 0)

    def __mul__(self, other: Any) -> "TracedValue":
        return _add_like("Mul", operator.mul, self, other, 1, commutative=True)

    def __truediv__(self, other: Any) -> "TracedValue":
        return _add_like("Div", operator.truediv, self, other, 1)

    def __floordiv__(self, divisor: int) -> "TracedValue":
        """Divide integers. ONNX divides toward zero, so the remainder is subtracted first."""
        if self.constant is not None:
            return make_literal(self.constant // divisor)
        rest = make_expression("Mod", self, self.lift(divisor))
        return make_expression("Div", self - rest, self.lift(divisor))

    def __rtruediv__(self, other: Any) -> "TracedValue":
        if self.constant is None and isinstance(other, int) and other == 1:
            # ONNX Runtime rewrites (1 / a) * b as b / a, which rounds differently.
            return -(self.lift(-1) / self)
        return self.lift(other) / self

    def __and__(self, other: Any) -> "TracedValue":
        return _compare("And", operator.and_, self, other)

    def __or__(self, other: Any) -> "TracedValue":
        return _compare("Or", operator.or_, self, other)


def make_literal(array: Any) -> TracedValue:
    """Return a constant; NumPy scalars, which arithmetic returns, are accepted."""
    array = np.asarray(array)
    return TracedValue(array.dtype, array.shape, constant=array)


def make_expression(
    operation: str,
    *operands: TracedValue,
    dtype: Any = None,
    attributes: Mapping[str, int] | None = None,
) -> TracedValue:
    """Return the output of an elementwise operator for these operands."""
    return TracedValue(
        operands[0].dtype if dtype is None else dtype,
        broadcast(*operands),
        operation=operation,
        operands=operands,
        attributes=attributes,
    )


def get_constants(*operands: TracedValue) -> list[Array] | None:
    arrays = [operand.constant for operand in operands if operand.constant is not None]
    return arrays if len(arrays) == len(operands) else None


def broadcast(*operands: TracedValue) -> PartialShape | None:
    """Return the broadcast shape of the operands; sizes are None if uncertain."""
    sizes: list[int | None] = []
    for operand in operands:
        shape = operand.shape
        if shape is None:
            return None
        sizes[:0] = [1] * (len(shape) - len(sizes))
        for place, size in enumerate(reversed(shape), start=1):
            if sizes[-place] == 1 or (sizes[-place] is None and size not in (None, 1)):
                sizes[-place] = size
    return tuple(sizes)


def _add_like(
    operation: str,
    compute: Callable[[Any, Any], Any],
    first: TracedValue,
    other: Any,
    neutral: int,
    *,
    commutative: bool = False,
) -> TracedValue:
    second = first.lift(other)
    arrays = get_constants(first, second)
    if arrays is not None:
        return make_literal(compute(*arrays))
    if _is_neutral(second, neutral, other=first):
        return first
    if commutative and _is_neutral(first, neutral, other=second):
        return second
    return make_expression(operation, first, second)


def _is_neutral(operand: TracedValue, neutral: int, *, other: TracedValue) -> bool:
    """Return whether dropping an operand changes neither a number nor the shape."""
    if (
        operand.constant is None
        or not np.all(operand.constant == neutral)
        or not operand.constant.size
    ):
        return False
    return not operand.shape or broadcast(operand, other) == other.shape


def _compare(
    operation: str, compute: Callable[[Any, Any], Any], first: TracedValue, other: Any
) -> TracedValue:
    second = first.lift(other)
    arrays = get_constants(first, second)
    if arrays is not None:
        return make_literal(compute(*arrays))
    return make_expression(operation, first, second, dtype=np.bool_)
