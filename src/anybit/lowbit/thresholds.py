# SPDX-License-Identifier: Apache-2.0
"""Where the steps of a quantizer of floats lie: found among all float32 by bisection.

Floats in their order are the integers of their bits, those below 0 in reverse. On them a function
that rises or falls everywhere is a staircase like any other.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from anybit.lowbit.functions import Function
from anybit.lowbit.staircases import Range, bisected, check
from anybit.lowbit.tails import Index
from anybit.lowbit.uncovered import Uncovered
from anybit.onnx.graph.constants import Array

_LARGEST = int(np.array(np.finfo(np.float32).max).view(np.int32))
_INFINITY = _LARGEST + 1


def float_of(keys: Array) -> Array:
    """The floats at places in the order of all; -0 and 0 are one."""
    bits = np.where(keys >= 0, keys, -keys | -(2**31)).astype(np.int64) & 0xFFFFFFFF
    return bits.astype(np.uint32).view(np.float32)


def quantized(function: Function, index: Index, levels: int, channels: int) -> dict[str, Any]:
    """The fields of a Quantize: directions, thresholds and the index of NaN.

    Raises:
        Uncovered: The function does not rise or fall everywhere.
    """
    if not function.monotone:
        raise Uncovered("what lies before it rises and falls")

    def indices(keys: Array) -> Array:
        return index(function(float_of(keys)))

    finite = Range(np.full(channels, -_LARGEST), np.full(channels, _LARGEST))
    stairs = bisected(indices, levels, finite)
    check(stairs, indices, finite)
    # Infinities do what the largest numbers do, or the graph has no value for them.
    ends = np.broadcast_to(np.array([[-_INFINITY], [_INFINITY]]), (2, channels))
    beyond = indices(ends)
    if not np.array_equal(beyond, stairs(np.clip(ends, -_LARGEST, _LARGEST))):
        raise Uncovered("infinities become other values than large numbers do")
    falling = stairs.directions < 0
    # x counts where it reaches a threshold: for a falling index, those that it has not lost yet.
    keys = np.where(falling, 1 - stairs.thresholds[::-1], stairs.thresholds)
    always, never = stairs.thresholds <= -_LARGEST, stairs.thresholds > _LARGEST
    keys = np.where(np.where(falling, never[::-1], always), -_INFINITY, keys)
    keys = np.where(np.where(falling, always[::-1], never), _INFINITY + 1, keys)
    if np.any(keys > _INFINITY):
        raise Uncovered("it never takes some of the values that it is read with")
    thresholds = float_of(keys)
    fields = {"directions": stairs.directions.astype(np.int32), "thresholds": thresholds.T}
    if np.all(fields["directions"] == fields["directions"][0]) and np.all(
        fields["thresholds"] == fields["thresholds"][0]
    ):
        fields = {key: array[:1] for key, array in fields.items()}
    thresholds = np.ascontiguousarray(fields["thresholds"], np.float32).ravel()
    return {**fields, "thresholds": thresholds, "nan": _of_nan(function, index, channels)}


def highest_index(function: Function, index: Index, channels: int) -> int:
    """The largest index that a function which rises or falls everywhere takes, that of NaN too."""
    ends = np.broadcast_to(np.array([[-_LARGEST], [_LARGEST]]), (2, channels))
    finite = int(index(function(float_of(ends))).max())
    return max(finite, _of_nan(function, index, channels))


def _of_nan(function: Function, index: Callable[[Array], Array], channels: int) -> int:
    """The index of NaN; -1 where the graph gives NaN."""
    result = function(np.full((1, channels), np.nan, np.float32))
    if np.isnan(result).all():
        return -1
    found = index(result)
    if not np.all(found == found.flat[0]):
        raise Uncovered("NaN becomes different values in different channels")
    return int(found.flat[0])
