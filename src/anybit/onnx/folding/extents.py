# SPDX-License-Identifier: Apache-2.0
"""How many elements a node gives at most, known before it runs.

Small files can ask for huge arrays; nothing is computed whose size has no bound here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.facts import Effect, effect_of
from anybit.onnx.operators.registry import operator_of

Shape: TypeAlias = tuple[int, ...]

# More axes than NumPy and the runtime take.
_MOST_AXES = 64


@dataclass(frozen=True)
class Extent:
    """The most elements; the shape where it is certain, the array where it is known."""

    size: int
    shape: Shape | None = None
    array: Array | None = None


Extents: TypeAlias = Sequence[Extent | None]


def extent_of(array: Array) -> Extent:
    return Extent(array.size, array.shape, array)


def _largest(inputs: Extents) -> Extent:
    return Extent(max((each.size for each in inputs if each is not None), default=0))


def _total(inputs: Extents) -> Extent:
    return Extent(sum(each.size for each in inputs if each is not None))


def _broadcast(inputs: Extents) -> Extent:
    known = [each for each in inputs if each is not None]
    shapes = [each.shape for each in known if each.shape is not None]
    if len(shapes) == len(known):
        shape = np.broadcast_shapes(*shapes)
        return Extent(math.prod(shape), shape)
    return Extent(math.prod(max(each.size, 1) for each in known))


def _gathered(inputs: Extents) -> Extent:
    data, indices = inputs[0], inputs[1]
    return Extent(0 if data is None or indices is None else data.size * indices.size)


def _filled(inputs: Extents) -> Extent:
    shape = _sizes(inputs[0])
    return Extent(math.prod(shape), shape)


def _expanded(inputs: Extents) -> Extent:
    return Extent(_largest(inputs[:1]).size * math.prod(_sizes(inputs[1])))


def _sizes(shape: Extent | None) -> Shape:
    if shape is None or shape.array is None or shape.size > _MOST_AXES:
        raise ValueError("no shape")
    return tuple(int(size) for size in shape.array.ravel())


def _first(inputs: Extents) -> Extent:
    return inputs[0] or Extent(0)


_BOUNDS: dict[str, Callable[[Extents], Extent]] = {
    "CastLike": _first,
    "Concat": _total,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Gather": _gathered,
    "Shape": lambda inputs: Extent(_MOST_AXES),
    "Size": lambda inputs: Extent(1, ()),
}
# Those of the table that give at most as many elements as they take.
_NOT_LARGER = {
    *("Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
    *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"),
}
# The inputs whose values say how large the result is.
_DECIDING = {"ConstantOfShape": 0, "Expand": 1}


def deciding_input(node: ir.Node) -> ir.Value | None:
    """The input whose value, and not only its size, says how large the result is."""
    index = _DECIDING.get(node.op_type) if node.domain == "" else None
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def is_bounded(node: ir.Node) -> bool:
    """Whether it is one of the standard operators that scales, bit-widths and weights are computed
    with, so that the size of its result can be told. A Loop never is, nor what holds graphs."""
    return len(node.outputs) == 1 and _bound(node) is not None


def result_extent(node: ir.Node, inputs: Extents) -> Extent | None:
    """What a standard operator gives at most; None if there is no telling."""
    bound = _bound(node)
    try:
        return None if bound is None else bound(inputs)
    except (ValueError, IndexError):  # invalid: the session will say so
        return None


def result_shape(node: ir.Node, shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape of an elementwise result, our operators' included; None if it is not certain."""
    if operator_of(node) is not None:
        return shapes[0]
    if not _is_elementwise(node):
        return None
    known = shapes[:1] if node.op_type == "CastLike" else shapes
    try:
        return None if None in known else np.broadcast_shapes(*(each or () for each in known))
    except ValueError:  # invalid: the session will say so
        return None


def _bound(node: ir.Node) -> Callable[[Extents], Extent] | None:
    if node.domain != "":
        return None
    if node.op_type in _NOT_LARGER:
        return _largest
    if node.op_type not in _BOUNDS and _is_elementwise(node):
        return _broadcast
    return _BOUNDS.get(node.op_type)


def _is_elementwise(node: ir.Node) -> bool:
    return effect_of(node) in (Effect.ELEMENTWISE, Effect.RECTIFY)
