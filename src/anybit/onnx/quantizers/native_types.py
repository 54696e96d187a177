# SPDX-License-Identifier: Apache-2.0
"""The types of QuantizeLinear and DequantizeLinear."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.formats import FloatFormat, float4_e2m1fn, float8_e4m3fn, float8_e5m2
from anybit.ops.grids import Channels


@dataclass(frozen=True)
class NativeType:
    """An element type of codes, with the first opset whose QuantizeLinear supports it.

    Integers have a range, floats a format. A `wide` type is for constants only: QuantizeLinear does
    not support it, and its DequantizeLinear has no zero-point.
    """

    dtype: ir.DataType
    opset: int
    format: FloatFormat | None = None
    wide: bool = False

    @property
    def name(self) -> str:
        return self.dtype.name.lower()

    @property
    def bits(self) -> int:
        return int(self.dtype.bitwidth)

    @property
    def signed(self) -> bool:
        return not self.dtype.name.startswith("U")

    @property
    def lowest(self) -> int:
        """Return the lowest code of an integer type."""
        return -(2 ** (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """Return the highest code of an integer type."""
        return int(2 ** (self.bits - self.signed)) - 1

    @property
    def codes(self) -> range:
        """Return all codes of an integer type."""
        return range(self.lowest, self.highest + 1)

    def bound_values(self, channels: Channels) -> np.float32:
        """Return an upper bound of the values of these codes, in all channels."""
        highest = self.highest if self.format is None else self.format.largest
        with np.errstate(all="ignore"):  # infinite beyond float32
            values = (np.float32(highest) - channels.zeropt) * channels.scale
        return np.float32(values.max())

    def holds(self, lowest: int, highest: int) -> bool:
        """Return whether an integer type has all codes from lowest to highest."""
        return self.lowest <= lowest and highest <= self.highest


INTEGERS = (
    NativeType(ir.DataType.INT2, 25),
    NativeType(ir.DataType.UINT2, 25),
    NativeType(ir.DataType.INT4, 21),
    NativeType(ir.DataType.UINT4, 21),
    NativeType(ir.DataType.INT8, 10),
    NativeType(ir.DataType.UINT8, 10),
    NativeType(ir.DataType.INT16, 21),
    NativeType(ir.DataType.UINT16, 21),
    NativeType(ir.DataType.INT32, 10, wide=True),
)
"""Integer types in order of their width."""

FLOATS = (
    NativeType(ir.DataType.FLOAT8E4M3FN, 19, float8_e4m3fn),
    NativeType(ir.DataType.FLOAT8E5M2, 19, float8_e5m2),
    # "fnuz": no infinities; the code of -0.0 is NaN, so NaN takes no other value.
    NativeType(ir.DataType.FLOAT8E4M3FNUZ, 19, FloatFormat(4, 3, 8, name="float8_e4m3fnuz")),
    NativeType(ir.DataType.FLOAT8E5M2FNUZ, 19, FloatFormat(5, 2, 16, name="float8_e5m2fnuz")),
)

FLOAT4 = NativeType(ir.DataType.FLOAT4E2M1, 23, float4_e2m1fn)
"""Read but never written: ONNX Runtime has no CPU kernel for it."""

PER_AXIS_OPSET = 13
"""The first opset whose QuantizeLinear and DequantizeLinear support one scale per channel."""

PER_BLOCK_OPSET = 21
"""The first opset that supports one scale per block."""


def find_native_type(dtype: ir.DataType | None) -> NativeType | None:
    """Return the entry of an element type, if it is in the table."""
    return next(
        (integer for integer in (*INTEGERS, *FLOATS, FLOAT4) if integer.dtype == dtype), None
    )
