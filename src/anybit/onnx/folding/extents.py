# SPDX-License-Identifier: Apache-2.0
"""How many elements a node gives at most, and of how many bytes, known before it runs.

Small files can ask for huge arrays; nothing is computed whose size has no bound here.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.operators.registry import operator_of

Shape: TypeAlias = tuple[int, ...]

# More axes than NumPy and the runtime take.
_MOST_AXES = 64

WIDEST = 8
"""The bytes of the widest types that are folded, such as int64."""


@dataclass(frozen=True)
class Extent:
    """The most elements; the shape where it is certain, the array where it is known.

    Attributes:
        itemsize: The bytes of an element, at most.
    """

    size: int
    shape: Shape | None = None
    array: Array | None = None
    itemsize: int = WIDEST

    @property
    def nbytes(self) -> int:
        """The most bytes."""
        return self.size * self.itemsize


Extents: TypeAlias = Sequence[Extent | None]


def extent_of(array: Array) -> Extent:
    return Extent(array.size, array.shape, array, array.itemsize)


def _largest(inputs: Extents) -> Extent:
    return Extent(max((each.size for each in inputs if each is not None), default=0))


def _total(inputs: Extents) -> Extent:
    return Extent(sum(each.size for each in inputs if each is not None))


def _broadcast(inputs: Extents) -> Extent | None:
    known = [each for each in inputs if each is not None]
    shapes = [each.shape for each in known if each.shape is not None]
    if len(shapes) < len(known):
        return Extent(math.prod(max(each.size, 1) for each in known))
    shape = _broadcast_shape(shapes)
    return None if shape is None else Extent(math.prod(shape), shape)


def _broadcast_shape(shapes: Iterable[Shape]) -> Shape | None:
    """None where they do not broadcast: the session will say so."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _gathered(inputs: Extents) -> Extent | None:
    data, indices = _first(inputs), _second(inputs)
    return None if data is None or indices is None else Extent(data.size * indices.size)


def _filled(inputs: Extents) -> Extent | None:
    shape = _sizes(_first(inputs))
    return None if shape is None else Extent(math.prod(shape), shape)


def _expanded(inputs: Extents) -> Extent | None:
    data, shape = _first(inputs), _sizes(_second(inputs))
    return None if data is None or shape is None else Extent(data.size * math.prod(shape))


def _sizes(shape: Extent | None) -> Shape | None:
    """The elements of an input that says a shape; None if they are not known, or no sizes."""
    if shape is None or shape.array is None or shape.size > _MOST_AXES:
        return None
    sizes = tuple(int(size) for size in shape.array.ravel())
    return None if any(size < 0 for size in sizes) else sizes


def _first(inputs: Extents) -> Extent | None:
    return inputs[0] if inputs else None


def _second(inputs: Extents) -> Extent | None:
    return inputs[1] if len(inputs) > 1 else None


_BOUNDS: dict[str, Callable[[Extents], Extent | None]] = {
    "CastLike": _first,
    "Concat": _total,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Gather": _gathered,
    "Shape": lambda inputs: Extent(_MOST_AXES),
    "Size": lambda inputs: Extent(1, ()),
}
_ITEMSIZES = {
    dtype.value: -(-dtype.bitwidth // 8)
    for dtype in ir.DataType
    if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
}
# The inputs whose values say how large the result is.
_DECIDING = {"ConstantOfShape": 0, "Expand": 1}


def deciding_input(node: ir.Node) -> ir.Value | None:
    """The input whose value, and not only its size, says how large the result is."""
    index = _DECIDING.get(node.op_type) if node.domain == "" else None
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def is_bounded(node: ir.Node) -> bool:
    """Whether it is one of the standard operators that scales, bit-widths and weights are computed
    with, so that the size of its result is known. A Loop never is, nor what holds graphs."""
    return len(node.outputs) == 1 and _bound(node) is not None


def result_extent(node: ir.Node, inputs: Extents) -> Extent | None:
    """What a standard operator gives at most; None if nothing is known."""
    bound = _bound(node)
    extent = None if bound is None else bound(inputs)
    return None if extent is None else replace(extent, itemsize=_itemsize(node, inputs))


def _itemsize(node: ir.Node, inputs: Extents) -> int:
    """Most operators give a type that is no wider than those of their inputs."""
    match node.op_type:
        case "Cast":
            return _ITEMSIZES.get(attribute_of(node, "to", 0), WIDEST)
        case "CastLike":
            like = _second(inputs)
            return WIDEST if like is None else like.itemsize
        case "ConstantOfShape" | "Shape" | "Size":
            return WIDEST
    return max((each.itemsize for each in inputs if each is not None), default=WIDEST)


def result_shape(
    node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None]
) -> Shape | None:
    """The shape of an elementwise result, our operators' included; None if it is not certain."""
    if operator_of(node) is not None:  # which has its inputs
        return shape_of(node.inputs[0])
    if not _is_elementwise(node):
        return None
    given = [shape_of(each) for each in node.inputs[: 1 if node.op_type == "CastLike" else None]]
    known = [shape for shape in given if shape is not None]
    return _broadcast_shape(known) if len(known) == len(given) else None


def _bound(node: ir.Node) -> Callable[[Extents], Extent | None] | None:
    if node.domain != "":
        return None
    if has_trait(node, OpTrait.NOT_LARGER):
        return _largest
    if node.op_type not in _BOUNDS and _is_elementwise(node):
        return _broadcast
    return _BOUNDS.get(node.op_type)


def _is_elementwise(node: ir.Node) -> bool:
    return has_trait(node, OpTrait.ELEMENTWISE | OpTrait.RECTIFIER)
