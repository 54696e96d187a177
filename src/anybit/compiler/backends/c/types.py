# SPDX-License-Identifier: Apache-2.0
"""Integer types of C, and how they store the codes of tensors."""

from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np

from anybit.compiler.backends.c.literals import cast, format_integer
from anybit.compiler.program import program as p


class CType(Enum):
    """An arithmetic type of C, with its size in bytes."""

    INT8 = "int8_t"
    UINT8 = "uint8_t"
    INT16 = "int16_t"
    UINT16 = "uint16_t"
    INT32 = "int32_t"
    INT64 = "int64_t"
    FLOAT = "float"

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of NumPy."""
        return np.dtype("float32" if self is CType.FLOAT else self.value.removesuffix("_t"))

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    @property
    def short(self) -> str:
        """The name within names of functions: int8, uint8, ..."""
        return self.value.removesuffix("_t")


_BYTES = (CType.INT8, CType.UINT8)
_INTEGERS = (*_BYTES, CType.INT16, CType.UINT16, CType.INT32, CType.INT64)


def find_type(lowest: int, highest: int) -> CType:
    """Return the smallest integer type that holds a range."""
    for kind in _INTEGERS:
        limits = np.iinfo(kind.dtype.name)
        if limits.min <= lowest and highest <= limits.max:
            return kind
    raise OverflowError(f"{lowest}..{highest} needs more than 64 bits")


def find_field_type(lowest: int, highest: int) -> CType:
    """Return the smallest type that a range fits and that becomes a signed integer in sums."""
    if lowest >= 0 and highest <= np.iinfo(np.uint8).max:
        return CType.UINT8
    ctype = find_type(lowest, highest)
    return CType.INT32 if ctype is CType.UINT16 else ctype


@dataclass(frozen=True)
class StoredTensor:
    """The codes of a tensor as C stores them, height x width x channels.

    Attributes:
        height, width, channels: The sizes.
        levels: The number of codes.
        ctype: Type of an element.
        lowest, step: An element is `lowest + step * index`.
        bias: A code less its element. Where a byte holds all codes, it is 0.
    """

    height: int
    width: int
    channels: int
    levels: int
    ctype: CType
    lowest: int
    step: int
    bias: int

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod((self.height, self.width, self.channels))

    @property
    def bytes(self) -> int:
        """The number of bytes."""
        return self.elements * self.ctype.size

    @property
    def shape(self) -> str:
        """The sizes as text."""
        return f"{self.height} x {self.width} x {self.channels}"

    @property
    def zero(self) -> int:
        """The element that stands for a code of 0, outside of the tensor."""
        return -self.bias

    def element(self, index: str) -> str:
        """Return the expression of the element at an index; 16 bits of an int hold a byte's."""
        wide = "" if self.ctype in _BYTES else "(int32_t)"
        scaled = index if self.step == 1 else f"{self.step} * {wide}{index}"
        wide = wide if self.step == 1 else ""
        sign = "+" if self.lowest > 0 else "-"
        return f"{wide}{scaled} {sign} {abs(self.lowest)}" if self.lowest else scaled

    def index(self, element: str) -> str:
        """Return the expression of the index of an element."""
        wide = "" if self.ctype in _BYTES else "(int32_t)"
        sign = "-" if self.lowest > 0 else "+"
        index = f"({wide}{element} {sign} {abs(self.lowest)})" if self.lowest else element
        return index if self.step == 1 else f"{index} / {self.step}"

    @property
    def highest(self) -> int:
        """The largest element."""
        return self.lowest + self.step * (self.levels - 1)


def store_tensor(tensor: p.Tensor) -> StoredTensor:
    """Choose the type of a tensor: bytes wherever they can hold its codes."""
    highest = tensor.lowest + tensor.step * (tensor.levels - 1)
    ctype, bias = find_type(tensor.lowest, highest), 0
    if ctype not in _BYTES and tensor.step == 1 and tensor.lowest <= 0 <= highest:
        ctype, bias = CType.UINT8, tensor.lowest
    sizes = tensor.height, tensor.width, tensor.channels
    return StoredTensor(*sizes, tensor.levels, ctype, tensor.lowest - bias, tensor.step, bias)


def return_element(target: StoredTensor, index: str) -> str:
    """Return the statement that returns the element of an index."""
    if index.isdigit():
        return f"return {format_integer(target.lowest + target.step * int(index))};"
    return f"return {cast(target.ctype.value, target.element(index))};"
