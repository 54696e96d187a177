# SPDX-License-Identifier: Apache-2.0
"""Weights as a program stores them: indices of few bits without gaps."""

import numpy as np

from anybit.onnx.graph.constants import Array

_MANY_BITS = 4
"""Values of so many bits are those of the signed integer where they can be: one list for all."""


def packed(weights: Array) -> tuple[int, Array, Array]:
    """The bits of an index, the bytes of all indices, and what each stands for.

    The weights lie within -128..127.
    """
    shifted = (weights.ravel() + 128).astype(np.uint8)
    values = np.flatnonzero(np.bincount(shifted, minlength=256))
    bits = max(1, (len(values) - 1).bit_length())
    signed = np.arange(128 - (1 << bits - 1), 128 + (1 << bits - 1))
    if bits >= _MANY_BITS and signed[0] <= values[0] and values[-1] <= signed[-1]:
        values = signed
    places = np.zeros(256, np.uint8)
    places[values] = np.arange(len(values))
    return bits, _joined(places[shifted], bits), (values - 128).astype(np.int32)


def _joined(indices: Array, bits: int) -> Array:
    """Numbers of so many bits one behind another, the first in the lowest bits."""
    each = 8 // bits
    if each * bits != 8:
        flags = (indices[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
        return np.packbits(flags.ravel(), bitorder="little")
    padded = np.pad(indices, (0, -indices.size % each)).reshape(-1, each)
    joined = np.zeros(len(padded), np.uint8)
    for place in range(each):
        joined |= padded[:, place] << np.uint8(place * bits)
    return joined
