# SPDX-License-Identifier: Apache-2.0
"""Where the steps of a quantizer of floats lie: found among all float32 by bisection.

Floats in their order are the integers of their bits, those below 0 in reverse. On them a function
that rises or falls everywhere is a staircase like any other.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import is_uniform
from anybit.compiler.partition.element_functions import ElementFunction, NodeChain
from anybit.compiler.reason import Unsupported
from anybit.compiler.requantize.epilogue import Index
from anybit.compiler.requantize.step_function import Range, bisect_steps, check
from anybit.onnx.graph.constants import Array, array_of, is_constant

_LARGEST = int(np.array(np.finfo(np.float32).max).view(np.int32))
_INFINITY = _LARGEST + 1


def float_at(keys: Array) -> Array:
    """The floats at places in the order of all; -0 and 0 are one."""
    bits = np.where(keys >= 0, keys, -keys | -(2**31)).astype(np.int64) & 0xFFFFFFFF
    return bits.astype(np.uint32).view(np.float32)


def find_thresholds(
    function: ElementFunction, index: Index, levels: int, channels: int
) -> dict[str, Any]:
    """The fields of a Quantize: directions, thresholds and the index of NaN.

    Raises:
        Unsupported: The function does not rise or fall everywhere.
    """
    if not function.monotone:
        raise Unsupported("what lies before it rises and falls")

    def indices(keys: Array) -> Array:
        return index(function(float_at(keys)))

    finite = Range(np.full(channels, -_LARGEST), np.full(channels, _LARGEST))
    stairs = bisect_steps(indices, levels, finite)
    check(stairs, indices, finite)
    # Infinities do what the largest numbers do, or the graph has no value for them.
    ends = np.broadcast_to(np.array([[-_INFINITY], [_INFINITY]]), (2, channels))
    beyond = indices(ends)
    if not np.array_equal(beyond, stairs(np.clip(ends, -_LARGEST, _LARGEST))):
        raise Unsupported("infinities become other values than large numbers do")
    falling = stairs.directions < 0
    # x counts where it reaches a threshold: for a falling index, those that it has not lost yet.
    keys = np.where(falling, 1 - stairs.thresholds[::-1], stairs.thresholds)
    always, never = stairs.thresholds <= -_LARGEST, stairs.thresholds > _LARGEST
    keys = np.where(np.where(falling, never[::-1], always), -_INFINITY, keys)
    keys = np.where(np.where(falling, always[::-1], never), _INFINITY + 1, keys)
    if np.any(keys > _INFINITY):
        raise Unsupported("it never takes some of the values that it is read with")
    thresholds = float_at(keys)
    fields = {"directions": stairs.directions.astype(np.int32), "thresholds": thresholds.T}
    if np.all(fields["directions"] == fields["directions"][0]) and np.all(
        fields["thresholds"] == fields["thresholds"][0]
    ):
        fields = {key: array[:1] for key, array in fields.items()}
    thresholds = np.ascontiguousarray(fields["thresholds"], np.float32).ravel()
    return {**fields, "thresholds": thresholds, "nan": _of_nan(function, index, channels)}


def make_quantize_fields(
    function: ElementFunction, index: Index, levels: int, channels: int
) -> dict[str, Any]:
    """Return all fields of a Quantize, with one list of thresholds if a line per channel does the
    rest.

    Where the function begins with a product of x and a constant per channel, with a sum, or with
    both, these are computed as they are, and the thresholds are those of what follows.

    Raises:
        Unsupported: As `find_thresholds`.
    """
    split = _line_per_channel(function) if channels > 1 else None
    if split is not None and function.monotone:
        with suppress(Unsupported):
            return {**find_thresholds(split.rest, index, levels, 1), **split.fields(channels)}
    return find_thresholds(function, index, levels, channels)


@dataclass(frozen=True, eq=False)
class _Line:
    """Factors and offsets per channel with which a function begins, and what follows them."""

    factors: Array
    offsets: Array
    rest: ElementFunction

    def fields(self, channels: int) -> dict[str, Array]:
        return {
            name: np.array(np.broadcast_to(each, channels)) if each.size else each
            for name, each in (("factors", self.factors), ("offsets", self.offsets))
        }


def _line_per_channel(function: ElementFunction) -> _Line | None:
    """Split a function, if it begins with a line per channel and nothing behind it differs."""
    part = function.parts[0] if function.parts else None
    if not isinstance(part, NodeChain) or len(part.xs) != 1 or part.window:
        return None
    x, nodes = part.xs[0], list(part.nodes)
    found = {"Mul": np.zeros(0, np.float32), "Add": np.zeros(0, np.float32)}
    for kind in found:
        operand = _operand(nodes[0], x, kind) if len(nodes) > 1 else None
        if operand is not None:
            found[kind] = operand
            x = nodes.pop(0).outputs[0]
    usable = np.all(found["Mul"] != 0) and all(np.isfinite(each).all() for each in found.values())
    if len(nodes) == len(part.nodes) or not usable or not all(map(is_uniform, nodes)):
        return None
    rest = replace(part, nodes=tuple(nodes), xs=(x,))
    others = ElementFunction((rest, *function.parts[1:]), function.monotone, uniform=True)
    return _Line(found["Mul"], found["Add"], others)


def _operand(node: ir.Node, x: ir.Value, kind: str) -> Array | None:
    """Return the constant that a node of this kind combines with x, one number or several."""
    others = [value for value in node.inputs if value is not None and value is not x]
    if (node.domain, node.op_type) != ("", kind) or len(node.inputs) != 2 or len(others) != 1:
        return None
    array = array_of(others[0]).ravel() if is_constant(others[0]) else None
    return array if array is not None and array.dtype == np.float32 else None


def find_highest_index(function: ElementFunction, index: Index, channels: int) -> int:
    """The largest index that a function which rises or falls everywhere takes, that of NaN too."""
    ends = np.broadcast_to(np.array([[-_LARGEST], [_LARGEST]]), (2, channels))
    finite = int(index(function(float_at(ends))).max())
    return max(finite, _of_nan(function, index, channels))


def _of_nan(function: ElementFunction, index: Callable[[Array], Array], channels: int) -> int:
    """The index of NaN; -1 where the graph gives NaN."""
    result = function(np.full((1, channels), np.nan, np.float32))
    if np.isnan(result).all():
        return -1
    found = index(result)
    if not np.all(found == found.flat[0]):
        raise Unsupported("NaN becomes different values in different channels")
    return int(found.flat[0])
