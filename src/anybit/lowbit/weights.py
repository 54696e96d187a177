# SPDX-License-Identifier: Apache-2.0
"""Weights as a program stores them: indices of few bits without gaps."""

import numpy as np

from anybit.onnx.graph.constants import Array


def packed(weights: Array) -> tuple[int, Array, Array]:
    """The bits of an index, the bytes of all indices, and what each stands for."""
    values, indices = np.unique(weights, return_inverse=True)
    bits = max(1, (len(values) - 1).bit_length())
    flags = (indices.reshape(-1, 1) >> np.arange(bits)) & 1
    packed_bytes = np.packbits(flags.astype(np.uint8).ravel(), bitorder="little")
    return bits, packed_bytes, values.astype(np.int32)
