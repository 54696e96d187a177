# SPDX-License-Identifier: Apache-2.0
"""Codes of constants: from values and back, as DequantizeLinear computes them."""

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.onnx.qdq.grids import Inexpressible
from anybit.onnx.qdq.layout import Layout
from anybit.onnx.qdq.native_types import NativeType
from anybit.ops.grids import FloatGrid, Grid


def decoded(codes: Array, scale: Array, zeropt: Array) -> Array:
    """(codes - zeropt) * scale in float32. The parameters broadcast to the codes.

    The difference is taken in integers that hold it: in the codes' own type it would wrap.
    """
    if codes.dtype.kind in "iu" or codes.dtype.name in ("int2", "uint2", "int4", "uint4"):
        wide = np.int64 if codes.dtype.itemsize > 2 else np.int32
        codes = codes.astype(wide) - zeropt.astype(wide)
    with np.errstate(all="ignore"):  # infinite where float32 ends
        return np.asarray(codes.astype(np.float32) * scale)


def encoded(values: Array, grid: Grid, layout: Layout, native: NativeType) -> Array:
    """The codes of values that are on the grid.

    Raises:
        Inexpressible: The codes do not stand for the same values, be it that these are NaN or
            infinite, or that float32 is too coarse for the width.
    """
    scale, zeropt = layout.broadcast(layout.scale), layout.broadcast(layout.zeropt)
    # From 2^22 on the quotient in float32 may be off by more than half a step.
    compute = np.float64 if native.wide else np.float32
    with np.errstate(all="ignore"):
        codes = np.asarray(np.divide(values, scale, dtype=compute))
        if not isinstance(grid, FloatGrid):
            codes += zeropt
            np.rint(codes, out=codes)
            if not np.all((codes >= grid.lowest) & (codes <= grid.highest)):
                raise Inexpressible("its values are NaN or infinite, or off their grid")
        stored = codes.astype(native.dtype.numpy())
    if not np.array_equal(decoded(stored, scale, zeropt), values, equal_nan=True):
        raise Inexpressible(f"{native.name} codes times scale differ from its values in float32")
    return stored
