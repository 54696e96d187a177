# SPDX-License-Identifier: Apache-2.0
"""What metadata say where no node says it: above all of the codes that a DequantizeLinear reads."""

import re
from collections.abc import Mapping

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Coding, IntegerGrid

RANGE_KEY = "anybit.range"
""" "lowest..highest", where codes use less than their type, and no Clip says so."""
CODING_KEY = "anybit.coding"
"""How x became codes, where not by rounding to nearest."""
FENCE_KEY = "anybit.fence"
"""In a Min that only keeps a runtime from rewriting what is before it: its name is the tensor's."""

_RANGE = re.compile(r"(-?\d{1,10})\.\.(-?\d{1,10})")


def noted(whole: IntegerGrid, codes: Array, metadata: Mapping[str, str]) -> IntegerGrid | None:
    """The grid that the metadata name, unless the codes or the type contradict them."""
    text = _RANGE.fullmatch(metadata.get(RANGE_KEY, ""))
    if text is None:
        return None
    lowest, highest = int(text[1]), int(text[2])
    if not whole.lowest <= lowest <= highest <= whole.highest:
        return None
    # Types of few bits are not NumPy's own.
    plain = codes if codes.dtype.kind in "iu" else codes.astype(np.int8)
    if plain.size and (plain.min() < lowest or plain.max() > highest):
        return None
    if metadata.get(CODING_KEY) == Coding.SIGN:
        if np.any(whole.zeropt) or not np.all((plain == 1) | (plain == -1)):
            return None
        return IntegerGrid(whole.scale, whole.zeropt, range(-1, 2, 2), Coding.SIGN)
    return IntegerGrid(whole.scale, whole.zeropt, range(lowest, highest + 1))
