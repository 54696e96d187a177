# SPDX-License-Identifier: Apache-2.0
"""Bounds on the number and bytes of the elements of a node's output, before it runs.

Small files can request huge arrays; nothing without a bound here is computed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.operators.registry import find_operator

FixedShape: TypeAlias = tuple[int, ...]

# More axes than NumPy and the runtime support.
_MOST_AXES = 64

WIDEST = 8
"""The bytes of the widest folded types, such as int64."""


@dataclass(frozen=True)
class Extent:
    """The maximal number of elements; the exact shape and the array, if known.

    Attributes:
        itemsize: The maximal bytes of an element.
    """

    size: int
    shape: FixedShape | None = None
    array: Array | None = None
    itemsize: int = WIDEST

    @property
    def nbytes(self) -> int:
        """Return the maximal bytes."""
        return self.size * self.itemsize


Extents: TypeAlias = Sequence[Extent | None]


def measure_extent(array: Array) -> Extent:
    return Extent(array.size, array.shape, array, array.itemsize)


def _bound_by_largest(inputs: Extents) -> Extent:
    return Extent(max((value.size for value in inputs if value is not None), default=0))


def _bound_by_total(inputs: Extents) -> Extent:
    return Extent(sum(value.size for value in inputs if value is not None))


def _broadcast_extents(inputs: Extents) -> Extent | None:
    present = [extent for extent in inputs if extent is not None]
    shapes = [extent.shape for extent in present if extent.shape is not None]
    if len(shapes) < len(present):
        return Extent(math.prod(max(extent.size, 1) for extent in present))
    shape = _broadcast_shapes(shapes)
    return None if shape is None else Extent(math.prod(shape), shape)


def _broadcast_shapes(shapes: Iterable[FixedShape]) -> FixedShape | None:
    """Return the broadcast shape; None if there is none, which the session reports."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _bound_gather(inputs: Extents) -> Extent | None:
    data, indices = _get_first(inputs), _get_second(inputs)
    return None if data is None or indices is None else Extent(data.size * indices.size)


def _bound_fill(inputs: Extents) -> Extent | None:
    shape = _read_sizes(_get_first(inputs))
    return None if shape is None else Extent(math.prod(shape), shape)


def _bound_expand(inputs: Extents) -> Extent | None:
    data, shape = _get_first(inputs), _read_sizes(_get_second(inputs))
    return None if data is None or shape is None else Extent(data.size * math.prod(shape))


def _read_sizes(shape: Extent | None) -> FixedShape | None:
    """Return the elements of an input that holds a shape; None if unknown or invalid."""
    if shape is None or shape.array is None or shape.size > _MOST_AXES:
        return None
    sizes = tuple(int(size) for size in shape.array.ravel())
    return None if any(size < 0 for size in sizes) else sizes


def _get_first(inputs: Extents) -> Extent | None:
    return inputs[0] if inputs else None


def _get_second(inputs: Extents) -> Extent | None:
    return inputs[1] if len(inputs) > 1 else None


_BOUNDS: dict[str, Callable[[Extents], Extent | None]] = {
    "CastLike": _get_first,
    "Concat": _bound_by_total,
    "ConstantOfShape": _bound_fill,
    "Expand": _bound_expand,
    "Gather": _bound_gather,
    "Shape": lambda inputs: Extent(_MOST_AXES),
    "Size": lambda inputs: Extent(1, ()),
}
_ITEMSIZES = {
    dtype.value: -(-dtype.bitwidth // 8)
    for dtype in ir.DataType
    if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
}
# The inputs whose values determine the size of the output.
_DECIDING = {"ConstantOfShape": 0, "Expand": 1}


def find_deciding_input(node: ir.Node) -> ir.Value | None:
    """Return the input whose value, not only its size, determines the size of the output."""
    index = _DECIDING.get(node.op_type) if node.domain == "" else None
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def is_bounded(node: ir.Node) -> bool:
    """Return whether the size of a standard operator's output is bounded.

    These are the operators that compute scales, bit-widths and weights. Nodes with inner graphs,
    such as Loop, are never bounded.
    """
    return len(node.outputs) == 1 and _find_bound(node) is not None


def bound_extent(node: ir.Node, inputs: Extents) -> Extent | None:
    """Return the maximal extent of a standard operator's output; None if unknown."""
    bound = _find_bound(node)
    extent = None if bound is None else bound(inputs)
    return None if extent is None else replace(extent, itemsize=_bound_itemsize(node, inputs))


def _bound_itemsize(node: ir.Node, inputs: Extents) -> int:
    """Return the bytes of an element: most operators return a type no wider than their inputs."""
    match node.op_type:
        case "Cast":
            return _ITEMSIZES.get(get_attribute(node, "to", 0), WIDEST)
        case "CastLike":
            like = _get_second(inputs)
            return WIDEST if like is None else like.itemsize
        case "ConstantOfShape" | "Shape" | "Size":
            return WIDEST
    return max((value.itemsize for value in inputs if value is not None), default=WIDEST)


def infer_elementwise_shape(
    node: ir.Node, shape_of: Callable[[ir.Value | None], FixedShape | None]
) -> FixedShape | None:
    """Return the shape of an elementwise output, also of this package; None if uncertain."""
    if find_operator(node) is not None:  # has its inputs
        return shape_of(node.inputs[0])
    if not _is_elementwise(node):
        return None
    shapes = [shape_of(value) for value in node.inputs[: 1 if node.op_type == "CastLike" else None]]
    certain = [shape for shape in shapes if shape is not None]
    return _broadcast_shapes(certain) if len(certain) == len(shapes) else None


def _find_bound(node: ir.Node) -> Callable[[Extents], Extent | None] | None:
    if node.domain != "":
        return None
    if has_trait(node, OpTrait.NOT_LARGER):
        return _bound_by_largest
    if node.op_type not in _BOUNDS and _is_elementwise(node):
        return _broadcast_extents
    return _BOUNDS.get(node.op_type)


def _is_elementwise(node: ir.Node) -> bool:
    return has_trait(node, OpTrait.ELEMENTWISE | OpTrait.RECTIFIER)
