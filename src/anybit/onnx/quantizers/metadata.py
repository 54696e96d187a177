# SPDX-License-Identifier: Apache-2.0
"""Metadata that describe the codes of a DequantizeLinear."""

import re
from collections.abc import Mapping

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Coding, IntegerGrid

RANGE_KEY = "anybit.range"
""" "lowest..highest", if codes use only a part of their type and no Clip shows it."""
CODING_KEY = "anybit.coding"
"""The conversion of x to codes, if not by rounding to nearest."""
FENCE_KEY = "anybit.fence"
"""Marks a Min that only prevents a rewrite by runtimes; it has the name of the tensor."""

_RANGE = re.compile(r"(-?\d{1,10})\.\.(-?\d{1,10})")


def read_grid(whole: IntegerGrid, codes: Array, metadata: Mapping[str, str]) -> IntegerGrid | None:
    """Return the grid in the metadata, unless codes or type contradict it."""
    text = _RANGE.fullmatch(metadata.get(RANGE_KEY, ""))
    if text is None:
        return None
    lowest, highest = int(text[1]), int(text[2])
    if not whole.lowest <= lowest <= highest <= whole.highest:
        return None
    # Types of few bits are not NumPy's.
    plain = codes if codes.dtype.kind in "iu" else codes.astype(np.int8)
    if plain.size and (plain.min() < lowest or plain.max() > highest):
        return None
    if metadata.get(CODING_KEY) == Coding.SIGN:
        if np.any(whole.zeropt) or not np.all((plain == 1) | (plain == -1)):
            return None
        return IntegerGrid(whole.scale, whole.zeropt, range(-1, 2, 2), Coding.SIGN)
    return IntegerGrid(whole.scale, whole.zeropt, range(lowest, highest + 1))
