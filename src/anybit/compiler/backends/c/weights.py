# SPDX-License-Identifier: Apache-2.0
"""Weights in as few bits as they need: 8, 4, 2 or 1, or five ternary ones in a byte."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from anybit.onnx.graph.constants import Array

_LARGEST_SUM = 2**31 - 1
_WORD = 4


class Packing(Enum):
    """Order of weights in bytes. The first weight has the lowest bits.

    INT8 has signed numbers; the others have the digits n of weights `low + step * n`.
    """

    INT8 = "int8"
    UINT8 = "uint8"
    UINT4 = "uint4"
    UINT2 = "uint2"
    UINT1 = "uint1"
    TERNARY = "ternary"
    """Five digits to a byte, the first the most significant: ceil(number * 256 / 243)."""

    @property
    def per_byte(self) -> int:
        """Weights in a byte."""
        return {"int8": 1, "uint8": 1, "uint4": 2, "uint2": 4, "uint1": 8, "ternary": 5}[self.value]


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """Rows of weights `low + step * n`; every row begins at a byte.

    Attributes:
        packing: Order of the digits in bytes.
        low, step: From digits to weights.
        rows: Bytes, rows x bytes of a row.
    """

    packing: Packing
    low: int
    step: int
    rows: Array


def pack_rows(weights: Array, largest_element: int, *, ternary: bool = True) -> PackedWeights:
    """Pack rows of weights in the fewest bits that hold their values.

    Args:
        weights: Integers in -128..127, rows x weights of a row.
        largest_element: The largest magnitude of an element that the weights multiply. Digits
            are used where their sums, too, fit 32 bits.
        ternary: Whether five weights with three values share a byte; else they take 2 bits.
    """
    low, step, count = _find_digits(weights)
    factor = max(abs(low), step * (count - 1), abs(low + step * (count - 1)))
    fits = weights.shape[1] * largest_element * factor <= _LARGEST_SUM
    packing = _select_packing(count, ternary=ternary) if fits else Packing.INT8
    if packing is Packing.INT8:
        return PackedWeights(packing, 0, 1, weights.astype(np.int8))
    digits = (weights - low) // step
    missing = -digits.shape[1] % packing.per_byte
    groups = np.pad(digits, ((0, 0), (0, missing))).reshape(len(digits), -1, packing.per_byte)
    return PackedWeights(packing, low, step, _pack(groups, packing).astype(np.uint8))


def pack_taps(weights: Array, largest_element: int) -> PackedWeights:
    """Pack weights of a depthwise product, channels x taps, in the order of elements: taps first.

    Weights of 8 bits are signed. The arguments are those of `pack_rows`.
    """
    in_order = weights.T.reshape(1, -1)
    packed = pack_rows(in_order, largest_element, ternary=False)
    if packed.packing is Packing.UINT8:
        return PackedWeights(Packing.INT8, 0, 1, in_order.astype(np.int8))
    return packed


def interleave_rows(rows: Array, together: int, *, fill: bool = True) -> Array:
    """Return blocks of rows: four bytes of each row take turns.

    The result has a line per block.

    Args:
        rows: Bytes, rows x bytes of a row.
        together: Rows of a block, which divide the rows.
        fill: Whether rows are filled to a multiple of four bytes; else the last bytes of each row,
            fewer than four, take turns.
    """
    missing = -rows.shape[1] % _WORD if fill else 0
    blocks = np.pad(rows, ((0, 0), (0, missing))).reshape(len(rows) // together, together, -1)
    end = blocks.shape[2] // _WORD * _WORD
    words = blocks[:, :, :end].reshape(len(blocks), together, -1, _WORD).transpose(0, 2, 1, 3)
    parts = [part.reshape(len(blocks), -1) for part in (words, blocks[:, :, end:])]
    return np.concatenate(parts, axis=1)


def _find_digits(weights: Array) -> tuple[int, int, int]:
    """Return low, step and the number of digits of weights `low + step * n`."""
    values = np.flatnonzero(np.bincount((weights + 128).ravel())) - 128
    low = int(values[0])
    step = int(np.gcd.reduce(values - low)) or 1
    return low, step, int(values[-1] - low) // step + 1


def _select_packing(count: int, *, ternary: bool) -> Packing:
    if count == 3 and ternary:
        return Packing.TERNARY
    for packing, most in ((Packing.UINT1, 2), (Packing.UINT2, 4), (Packing.UINT4, 16)):
        if count <= most:
            return packing
    return Packing.UINT8


def _pack(groups: Array, packing: Packing) -> Array:
    """Return a byte for every group of digits along the last axis."""
    if packing is Packing.TERNARY:
        number = groups @ (3 ** np.arange(packing.per_byte)[::-1])
        return np.asarray((number * 256 + 242) // 243)
    bits = 8 // packing.per_byte
    return np.asarray(groups @ (1 << bits * np.arange(packing.per_byte)))
