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

Array: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[int | None, ...]


class Traced:
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

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        from anybit.onnx.expansion import namespace

        return namespace

    def __bool__(self) -> bool:
        if self.known is None:
            raise TypeError("the value is not known before the model runs")
        return bool(self.known)

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
        rest = expression("Mod", self, as_traced(divisor, self))
        return expression("Div", self - rest, as_traced(divisor, self))

    def __radd__(self, other: Any) -> "Traced":
        return as_traced(other, self) + self

    def __rsub__(self, other: Any) -> "Traced":
        return as_traced(other, self) - self

    def __rmul__(self, other: Any) -> "Traced":
        return as_traced(other, self) * self

    def __rtruediv__(self, other: Any) -> "Traced":
        if self.known is None and isinstance(other, int) and other == 1:
            # ONNX Runtime turns (1 / a) * b into b / a, which rounds differently.
            return -(as_traced(-1, self) / self)
        return as_traced(other, self) / self

    def __lt__(self, other: Any) -> "Traced":
        return _compared("Less", operator.lt, self, other)

    def __le__(self, other: Any) -> "Traced":
        return _compared("LessOrEqual", operator.le, self, other)

    def __gt__(self, other: Any) -> "Traced":
        return _compared("Greater", operator.gt, self, other)

    def __ge__(self, other: Any) -> "Traced":
        return _compared("GreaterOrEqual", operator.ge, self, other)

    def __eq__(self, other: Any) -> "Traced":  # type: ignore[override]
        return _compared("Equal", operator.eq, self, other)

    def __ne__(self, other: Any) -> "Traced":  # type: ignore[override]
        equal: Traced = self == other
        return ~equal

    def __and__(self, other: Any) -> "Traced":
        return _compared("And", operator.and_, self, other)

    def __or__(self, other: Any) -> "Traced":
        return _compared("Or", operator.or_, self, other)

    __hash__ = object.__hash__


def known(array: Any) -> Traced:
    """A known array; NumPy scalars, which its arithmetic gives, included."""
    array = np.asarray(array)
    return Traced(array.dtype, array.shape, known=array)


def of_value(value: ir.Value, dtype: Any) -> Traced:
    """The value of a graph that is known only when it runs."""
    shape = None
    if value.shape is not None:
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
    return Traced(dtype, shape, value=value)


def as_traced(value: Any, beside: Traced) -> Traced:
    """A Python number in the dtype of the array beside it; traced arrays as they are."""
    return value if isinstance(value, Traced) else known(np.asarray(value, beside.dtype))


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
    second = as_traced(other, first)
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


def _compared(
    operation: str, compute: Callable[[Any, Any], Any], first: Traced, other: Any
) -> Traced:
    second = as_traced(other, first)
    arrays = all_known(first, second)
    if arrays is not None:
        return known(compute(*arrays))
    return expression(operation, first, second, dtype=np.bool_)
