# SPDX-License-Identifier: Apache-2.0
"""Blocks along an axis of an array, for operators that reduce them.

An axis of n elements becomes two: the blocks, and the elements of a block. The last block is filled
with zeros. A namespace of this package may define `split_blocks` and `merge_blocks` for arrays of
unknown sizes.
"""

import math
from typing import Any

from anybit.ops.arrays import get_device, get_namespace, make_broadcastable


def find_axis(axis: int, rank: int) -> int:
    """Return the axis counted from the front; ValueError if the rank does not have it."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis must be in [{-rank}, {rank - 1}] for x of rank {rank}, got {axis}")
    return axis % rank


def split_blocks(x: Any, axis: int, size: int) -> Any:
    """Return x with the axis replaced by two: blocks, and their elements.

    A block has at most as many elements as the axis.
    """
    xp = get_namespace(x)
    if hasattr(xp, "split_blocks"):
        return xp.split_blocks(x, axis, size)
    length = x.shape[axis]
    size = max(1, min(size, length))
    count = -(-length // size)
    if count * size != length:
        x = xp.concat([x, _make_zeros(x, axis, count * size - length)], axis=axis)
    return xp.reshape(x, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))


def merge_blocks(blocks: Any, x: Any, axis: int) -> Any:
    """Return blocks of x in its shape."""
    xp = get_namespace(blocks)
    if hasattr(xp, "merge_blocks"):
        return xp.merge_blocks(blocks, x, axis)
    length = x.shape[axis]
    whole = blocks.shape[axis] * blocks.shape[axis + 1]
    merged = xp.reshape(blocks, (*x.shape[:axis], whole, *x.shape[axis + 1 :]))
    if whole == length:
        return merged
    return merged[(slice(None),) * axis + (slice(0, length), ...)]


def find_magnitudes(blocks: Any, axis: int) -> Any:
    """Return the largest magnitude along an axis, which stays with size 1.

    It is infinite if an element is infinite or NaN: some libraries pass NaN over.
    """
    xp = get_namespace(blocks)
    magnitudes = xp.abs(blocks)
    marked = xp.where(xp.isnan(blocks), xp.full_like(magnitudes, math.inf), magnitudes)
    return xp.max(marked, axis=axis, keepdims=True)


def check_one_per_block(value: Any, x: Any, name: str, axis: int) -> Any:
    """Return a parameter that broadcasts to x and is the same for all elements of a block.

    Unknown sizes and shapes (None, in traced arrays) pass.

    Raises:
        ValueError: The parameter does not broadcast to x, or varies along the axis.
    """
    value = make_broadcastable(value, x, name, {})
    if value.shape is None or x.shape is None:
        return value
    own = find_axis(axis, len(x.shape)) - len(x.shape) + len(value.shape)
    if own >= 0 and value.shape[own] not in (1, None):
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} must have size 1 along axis {axis}, the axis of "
            "the blocks"
        )
    return value


def align_with_blocks(value: Any, axis: int) -> Any:
    """Return a parameter in a shape that broadcasts to blocks; the axis counts from the end."""
    if value.ndim < -axis:
        return value
    return get_namespace(value).expand_dims(value, axis=axis)


def _make_zeros(x: Any, axis: int, length: int) -> Any:
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    return get_namespace(x).zeros(shape, dtype=x.dtype, device=get_device(x))
