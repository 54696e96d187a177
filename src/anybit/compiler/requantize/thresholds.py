# SPDX-License-Identifier: Apache-2.0
"""Thresholds of quantizers of float32, found by bisection of all float32 numbers.

Sorted floats are the integers of their bits, negative ones in reverse. On these, a monotonic
function is a step function.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import is_uniform
from anybit.compiler.partition.element_functions import ElementFunction, NodeChain
from anybit.compiler.partition.expressions import IntegerRange
from anybit.compiler.reason import UNSUPPORTED, Unsupported
from anybit.compiler.requantize.step_function import Index, bisect_steps, check_steps
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.op_traits import is_onnx_op

_LARGEST = int(np.array(np.finfo(np.float32).max).view(np.int32))
_INFINITY = _LARGEST + 1


def decode_sorted_floats(keys: Array) -> Array:
    """Return the floats at positions in the sorted order; -0 and 0 are one."""
    bits = np.where(keys >= 0, keys, -keys | -(2**31)).astype(np.int64) & 0xFFFFFFFF
    return bits.astype(np.uint32).view(np.float32)


def find_thresholds(
    function: ElementFunction, index: Index, levels: int, channels: int
) -> dict[str, Any]:
    """Return fields of a Quantize: directions, thresholds and the index of NaN.

    Raises:
        Unsupported: The function is not monotonic.
    """
    if not function.monotone:
        raise Unsupported("the function before its quantizer is not monotonic")

    def indices(keys: Array) -> Array:
        return index(function(decode_sorted_floats(keys)))

    finite = IntegerRange(np.full(channels, -_LARGEST), np.full(channels, _LARGEST))
    stairs = bisect_steps(indices, levels, finite)
    check_steps(stairs, indices, finite)
    # Infinities do what the largest numbers do, or the graph has no value for them.
    ends = np.broadcast_to(np.array([[-_INFINITY], [_INFINITY]]), (2, channels))
    beyond = indices(ends)
    if not np.array_equal(beyond, stairs(np.clip(ends, -_LARGEST, _LARGEST))):
        raise Unsupported("infinities and large finite inputs give different codes")
    falling = stairs.directions < 0
    # x counts where it reaches a threshold: for a decreasing index, those not yet passed.
    keys = np.where(falling, 1 - stairs.thresholds[::-1], stairs.thresholds)
    always, never = stairs.thresholds <= -_LARGEST, stairs.thresholds > _LARGEST
    keys = np.where(np.where(falling, never[::-1], always), -_INFINITY, keys)
    keys = np.where(np.where(falling, always[::-1], never), _INFINITY + 1, keys)
    if np.any(keys > _INFINITY):
        raise Unsupported("some codes that its consumers use can never occur")
    thresholds = decode_sorted_floats(keys)
    fields = {"directions": stairs.directions.astype(np.int32), "thresholds": thresholds.T}
    if np.all(fields["directions"] == fields["directions"][0]) and np.all(
        fields["thresholds"] == fields["thresholds"][0]
    ):
        fields = {key: array[:1] for key, array in fields.items()}
    thresholds = np.ascontiguousarray(fields["thresholds"], np.float32).ravel()
    return {**fields, "thresholds": thresholds, "nan": _find_nan_index(function, index, channels)}


def make_quantize_fields(
    function: ElementFunction, index: Index, levels: int, channels: int
) -> dict[str, Any]:
    """Return all fields of a Quantize, if possible with one list of thresholds for all channels.

    If the function begins with a product with constants per channel, a sum with some, or both, the
    instruction computes these first, and the thresholds are those of the nodes after them.

    Raises:
        Unsupported: As `find_thresholds`.
    """
    split = _split_line(function) if channels > 1 else None
    if split is not None and function.monotone:
        with suppress(*UNSUPPORTED):
            return {**find_thresholds(split.rest, index, levels, 1), **split.fields(channels)}
    return find_thresholds(function, index, levels, channels)


@dataclass(frozen=True, eq=False)
class _Line:
    """Factors and offsets per channel with which a function begins, and the rest of it."""

    factors: Array
    offsets: Array
    rest: ElementFunction

    def fields(self, channels: int) -> dict[str, Array]:
        return {
            name: np.array(np.broadcast_to(numbers, channels)) if numbers.size else numbers
            for name, numbers in (("factors", self.factors), ("offsets", self.offsets))
        }


def _split_line(function: ElementFunction) -> _Line | None:
    """Split a function into a line per channel and a uniform rest; None if it is none."""
    part = function.parts[0] if function.parts else None
    if not isinstance(part, NodeChain) or len(part.xs) != 1 or part.window:
        return None
    x, nodes = part.xs[0], list(part.nodes)
    operands = {"Mul": np.zeros(0, np.float32), "Add": np.zeros(0, np.float32)}
    for kind in operands:
        operand = _read_operand(nodes[0], x, kind) if len(nodes) > 1 else None
        if operand is not None:
            operands[kind] = operand
            x = nodes.pop(0).outputs[0]
    usable = np.all(operands["Mul"] != 0) and all(
        np.isfinite(numbers).all() for numbers in operands.values()
    )
    if len(nodes) == len(part.nodes) or not usable or not all(map(is_uniform, nodes)):
        return None
    rest = replace(part, nodes=tuple(nodes), xs=(x,))
    others = ElementFunction((rest, *function.parts[1:]), function.monotone, uniform=True)
    return _Line(operands["Mul"], operands["Add"], others)


def _read_operand(node: ir.Node, x: ir.Value, kind: str) -> Array | None:
    """Return the constant that a node of this kind combines with x, one number or several."""
    others = [value for value in node.inputs if value is not None and value is not x]
    if not is_onnx_op(node, kind) or len(node.inputs) != 2 or len(others) != 1:
        return None
    array = read_array(others[0]).ravel() if is_constant(others[0]) else None
    return array if array is not None and array.dtype == np.float32 else None


def find_highest_index(function: ElementFunction, index: Index, channels: int) -> int:
    """Return the largest index of a monotonic function, NaN included."""
    ends = np.broadcast_to(np.array([[-_LARGEST], [_LARGEST]]), (2, channels))
    finite = int(index(function(decode_sorted_floats(ends))).max())
    return max(finite, _find_nan_index(function, index, channels))


def _find_nan_index(
    function: ElementFunction, index: Callable[[Array], Array], channels: int
) -> int:
    """Return the index of NaN; -1 if the graph gives NaN."""
    result = function(np.full((1, channels), np.nan, np.float32))
    if np.isnan(result).all():
        return -1
    indices = index(result)
    if not np.all(indices == indices.flat[0]):
        raise Unsupported("NaN becomes different values in different channels")
    return int(indices.flat[0])
