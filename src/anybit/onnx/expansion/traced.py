# SPDX-License-Identifier: Apache-2.0
"""Arrays that record what is done to them, so that a reference becomes standard ONNX nodes.

The references of the operators are array-API code. Run on a `Traced` array, they leave behind the
expression of their result: that is the operator's body in ONNX, derived and not written again.
What depends on known arrays only is computed at once, by NumPy, and becomes a constant.

Two things differ from the reference. Sums with 0 and products with 1 are left out, as runtimes do
it anyway, so that the sign of a zero may differ; and `log2`, which ONNX lacks, is a guess that may
be off by one at powers of two, which is all that the references ask of it.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from anybit.ops.expression import Recording

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int | None, ...]


_RELATIONS = {
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "eq": "Equal",
}


class Traced(Recording):
    """An array that is known now, or an expression of arrays that a runtime will know.

    Attributes:
        dtype: A NumPy dtype.
        shape: The sizes, None for those that are not known; None if not even the rank is.
        known: The array itself, if it is known.
        value: The value of the graph that it is, if it is one.
        operation: The standard operator that gives it, with `operands` and `attributes`.
    """

    device = "cpu"

    def __init__(
        self,
        dtype: Any,
        shape: Shape | None,
        *,
        known: Array | None = None,
        value: ir.Value | None = None,
        operation: str = "",
        operands: tuple["Traced", ...] = (),
        attributes: Mapping[str, int] | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self.known = known
        self.value = value
        self.operation = operation
        self.operands = operands
        self.attributes = attributes or {}

    @property
    def ndim(self) -> int:
        """The rank. ValueError if it is not known."""
        if self.shape is None:
            raise ValueError("the rank of a tensor is not known; infer shapes first")
        return len(self.shape)

    def __bool__(self) -> bool:
        if self.known is None:
            raise TypeError("the value is not known before the model runs")
        return bool(self.known)

    def beside(self, value: Any) -> "Traced":
        return value if isinstance(value, Traced) else known(np.asarray(value, self.dtype))

    def compared(self, relation: str, other: Any) -> "Traced":
        if relation == "ne":
            return ~self.compared("eq", other)
        return _related(_RELATIONS[relation], getattr(operator, relation), self, other)

    def astype(self, dtype: Any) -> "Traced":
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return self
        if self.known is not None:
            return known(self.known.astype(dtype))
        to = int(ir.DataType.from_numpy(dtype))
        return expression("Cast", self, dtype=dtype, attributes={"to": to})

    def __getitem__(self, index: "Traced") -> "Traced":
        """Elements of a one-dimensional array, in the shape of the index."""
        arrays = all_known(self, index)
        if arrays is not None:
            return known(arrays[0][arrays[1]])
        return Traced(self.dtype, index.shape, operation="Gather", operands=(self, index))

    def __neg__(self) -> "Traced":
        return known(-self.known) if self.known is not None else expression("Neg", self)

    def __invert__(self) -> "Traced":
        return known(~self.known) if self.known is not None else expression("Not", self)

    def __add__(self, other: Any) -> "Traced":
        return _sum_like("Add", operator.add, self, other, 0, commutative=True)

    def __sub__(self, other: Any) -> "Traced":
        return _sum_like("Sub", operator.sub, self, other, 0)

    def __mul__(self, other: Any) -> "Traced":
        return _sum_like("Mul", operator.mul, self, other, 1, commutative=True)

    def __truediv__(self, other: Any) -> "Traced":
        return _sum_like("Div", operator.truediv, self, other, 1)

    def __floordiv__(self, divisor: int) -> "Traced":
        """For integers. ONNX divides toward zero, so the remainder goes first."""
        if self.known is not None:
            return known(self.known // divisor)
        rest = expression("Mod", self, self.beside(divisor))
        return expression("Div", self - rest, self.beside(divisor))

    def __rtruediv__(self, other: Any) -> "Traced":
        if self.known is None and isinstance(other, int) and other == 1:
            # ONNX Runtime turns (1 / a) * b into b / a, which rounds differently.
            return -(self.beside(-1) / self)
        return self.beside(other) / self

    def __and__(self, other: Any) -> "Traced":
        return _related("And", operator.and_, self, other)

    def __or__(self, other: Any) -> "Traced":
        return _related("Or", operator.or_, self, other)


def known(array: Any) -> Traced:
    """A known array; NumPy scalars, which its arithmetic gives, included."""
    array = np.asarray(array)
    return Traced(array.dtype, array.shape, known=array)


def expression(
    operation: str,
    *operands: Traced,
    dtype: Any = None,
    attributes: Mapping[str, int] | None = None,
) -> Traced:
    """What an elementwise operator gives for these operands."""
    return Traced(
        operands[0].dtype if dtype is None else dtype,
        broadcast(*operands),
        operation=operation,
        operands=operands,
        attributes=attributes,
    )


def all_known(*operands: Traced) -> list[Array] | None:
    arrays = [each.known for each in operands if each.known is not None]
    return arrays if len(arrays) == len(operands) else None


def broadcast(*operands: Traced) -> Shape | None:
    """The shape that the operands have together; sizes are None where that is not certain."""
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


def _sum_like(
    operation: str,
    compute: Callable[[Any, Any], Any],
    first: Traced,
    other: Any,
    neutral: int,
    *,
    commutative: bool = False,
) -> Traced:
    second = first.beside(other)
    arrays = all_known(first, second)
    if arrays is not None:
        return known(compute(*arrays))
    if _is_neutral(second, neutral, beside=first):
        return first
    if commutative and _is_neutral(first, neutral, beside=second):
        return second
    return expression(operation, first, second)


def _is_neutral(operand: Traced, neutral: int, *, beside: Traced) -> bool:
    """Whether leaving it out changes neither a number nor the shape."""
    if operand.known is None or not np.all(operand.known == neutral) or not operand.known.size:
        return False
    return not operand.shape or broadcast(operand, beside) == beside.shape


def _related(
    operation: str, compute: Callable[[Any, Any], Any], first: Traced, other: Any
) -> Traced:
    second = first.beside(other)
    arrays = all_known(first, second)
    if arrays is not None:
        return known(compute(*arrays))
    return expression(operation, first, second, dtype=np.bool_)
