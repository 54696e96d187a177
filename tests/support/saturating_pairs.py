# SPDX-License-Identifier: Apache-2.0
"""Sums of 8-bit products as CPUs without VNNI or dot product instructions compute them."""

import numpy as np


def exact_sums(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sums of products in int64, of codes x (rows, terms) and weights (terms, sums)."""
    return x.astype(np.int64) @ weights.astype(np.int64)


def avx2_sums(x: np.ndarray, weights: np.ndarray, *, saturating: bool = True) -> np.ndarray:
    """Return the sums of x86 kernels with AVX2 or AVX-512 and without VNNI, for int8 weights.

    Signed x have 128 added. vpmaddubsw adds neighbouring products, saturated to 16 bits;
    `saturating=False` wraps.
    """
    shift = 128 if x.dtype == np.int8 else 0
    codes = _padded(x.astype(np.int64) + shift, 1, 2)
    products = codes[:, :, None] * _padded(weights.astype(np.int64), 0, 2)[None]
    rows, terms, sums = products.shape
    pairs = products.reshape(rows, terms // 2, 2, sums).sum(axis=2)
    pairs = np.clip(pairs, -(2**15), 2**15 - 1) if saturating else pairs.astype(np.int16)
    return pairs.sum(axis=1, dtype=np.int64) - shift * weights.astype(np.int64).sum(axis=0)


def neon_sums(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sums of ARM kernels without dot product instructions, for int8 weights.

    Of signed x, smull and smlal add the products k and k + 8 in 16 bits; of unsigned ones each
    product is added in 32 bits.
    """
    if x.dtype == np.uint8:
        return exact_sums(x, weights)
    codes = _padded(x.astype(np.int64), 1, 16)
    products = codes[:, :, None] * _padded(weights.astype(np.int64), 0, 16)[None]
    rows, terms, sums = products.shape
    pairs = products.reshape(rows, terms // 16, 2, 8, sums).sum(axis=2).astype(np.int16)
    return pairs.sum(axis=(1, 2), dtype=np.int64)


def worst_codes(weights: np.ndarray, lowest: int, highest: int, dtype: np.dtype) -> np.ndarray:
    """Return rows of codes that make pairs of products as large, and as small, as they can be."""
    columns = weights.astype(np.int64).T
    ends = [np.where(columns > 0, a, b) for a, b in ((highest, lowest), (lowest, highest))]
    whole = [np.full_like(columns, end) for end in (lowest, highest)]
    return np.concatenate([*ends, *whole]).astype(dtype)


def _padded(array: np.ndarray, axis: int, multiple: int) -> np.ndarray:
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, -array.shape[axis] % multiple)
    return np.pad(array, widths)
