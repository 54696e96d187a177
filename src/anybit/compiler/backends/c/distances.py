# SPDX-License-Identifier: Apache-2.0
"""Overlap of a target with the source that it is computed from."""

import numpy as np

from anybit.compiler.backends.c.types import StoredTensor
from anybit.compiler.program import program as p


def find_window_distance(
    window: p.Window, x: StoredTensor, target: tuple[int, int, int], *, by_rows: bool = False
) -> int:
    """Return the bytes by which a target has to begin before its source.

    Pixels are computed in order; a pixel may overwrite what no later pixel, nor itself, reads.

    Args:
        window: The elements that a pixel reads.
        x: The source.
        target: Height, width, and bytes of a pixel.
        by_rows: Whether a row of pixels is computed at once: its pixels in any order.
    """
    height, width, pixel = target
    top = np.maximum(np.arange(height) * window.stride_height - window.pad_top, 0)
    left = np.maximum(np.arange(width) * window.stride_width - window.pad_left, 0)
    element = x.channels * x.ctype.size
    if by_rows:
        left = np.zeros_like(left)
    reads = (np.minimum(top, x.height)[:, None] * x.width + np.minimum(left, x.width)) * element
    ends = (np.arange(height * width) + 1) * pixel
    if by_rows:
        ends = np.repeat((np.arange(height) + 1) * width * pixel, width)
    # Later rows may begin before the place that a pixel reads.
    later = np.minimum.accumulate(reads.ravel()[::-1])[::-1]
    return int((ends - later).max())
