# SPDX-License-Identifier: Apache-2.0
"""Tables of channels, with equal ones stored once.

Roundings of float32 let a function differ between channels at few points: in MobileNet V3 the 64 to
96 tables of a `Lookup` are two or three different ones.
"""

import numpy as np

from anybit.onnx.graph.constants import Array


def share_rows(rows: Array) -> tuple[Array, Array]:
    """Return the different rows, in the order of their first channels, and the row of each channel.

    Rows of floats are equal if their bits are.
    """
    bits = np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize}")
    _, first, inverse = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return rows[first[order]], np.argsort(order)[inverse.ravel()]
