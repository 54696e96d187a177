# SPDX-License-Identifier: Apache-2.0
"""Rectangular regions of tensors, and their positions after data movement."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

import onnx_ir as ir

from anybit.onnx.graph.constants import read_array

_MAX_RANK = 64

Bounds = tuple[int, int]


@dataclass(frozen=True)
class TensorRegion:
    """A rectangular region of a tensor.

    Attributes:
        bounds: Start and stop along the axes that are cropped.
        class_axis: The axis of the classes; None if the graph shows no classes.
        kind: "distribution", "logits", or "" without classes.
    """

    bounds: Mapping[int, Bounds] = field(default_factory=dict)
    class_axis: int | None = None
    kind: str = ""


WHOLE = TensorRegion()


def get_rank(value: ir.Value) -> int | None:
    """Return the number of axes; None if it is unknown."""
    return None if value.shape is None else len(value.shape)


def get_axis_size(value: ir.Value, axis: int) -> int | None:
    """Return the size along an axis; None if it is not fixed."""
    if value.shape is None or not 0 <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) and size >= 0 else None


def read_integers(value: ir.Value | None) -> list[int] | None:
    """Return the elements of a short integer constant; None for any other value."""
    if value is None:
        return None
    tensor = value.const_value
    if tensor is None and value.producer() is not None:
        attribute = value.producer().attributes.get("value")  # type: ignore[union-attr]
        is_tensor = attribute is not None and attribute.type is ir.AttributeType.TENSOR
        if value.producer().op_type == "Constant" and is_tensor:  # type: ignore[union-attr]
            tensor = attribute.value  # type: ignore[union-attr]
    if tensor is None or value.is_graph_input() or tensor.size > _MAX_RANK:
        return None
    if tensor.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    array = read_array(ir.Value(name=value.name, const_value=tensor))
    return [int(element) for element in array.reshape(-1)]


def map_kept_axes(data: ir.Value, value: ir.Value) -> dict[int, int] | None:
    """Return the axes that a Reshape keeps, as a mapping from input axis to output axis.

    An axis is kept if its size and the number of elements in front of it, or after it, are the same
    in both shapes.
    """
    if data.shape is None or value.shape is None:
        return None
    old, new = _list_sizes(data.shape), _list_sizes(value.shape)
    if max(len(old), len(new)) > _MAX_RANK:
        return None
    kept: dict[int, int] = {}
    for sign in (1, -1):
        for (at, a), (to, b) in zip(_list_axes(old, sign), _list_axes(new, sign), strict=False):
            if a != b:
                break
            kept[at] = to
    sizes = [size for size in (*old, *new) if isinstance(size, int)]
    if len(sizes) == len(old) + len(new) and all(sizes):
        by_size_and_stride = {
            (size, prod(new[to + 1 :])): to  # type: ignore[arg-type]
            for to, size in enumerate(new)
            if size != 1
        }
        for at, size in enumerate(old):
            key = (size, prod(old[at + 1 :]))  # type: ignore[arg-type]
            if key in by_size_and_stride:
                kept[at] = by_size_and_stride[key]
    return kept


def _list_sizes(shape: ir.Shape) -> list[int | str | None]:
    return [size if isinstance(size, int) else size.value for size in shape]


def _list_axes(sizes: Sequence[int | str | None], sign: int) -> list[tuple[int, object]]:
    """Return (axis, size) from the first or the last axis; an unknown size equals no other one."""
    axes = range(len(sizes))[::sign]
    return [(axis, object() if sizes[axis] is None else sizes[axis]) for axis in axes]


def move_regions(
    regions: Sequence[TensorRegion], axes: Mapping[int, int]
) -> tuple[TensorRegion, ...] | None:
    """Return regions after a node that moves axes; None if a cropped axis is not kept."""
    if any(axis not in axes for region in regions for axis in region.bounds):
        return None
    result = []
    for region in regions:
        bounds = {axes[axis]: interval for axis, interval in region.bounds.items()}
        class_axis = None if region.class_axis is None else axes.get(region.class_axis)
        result.append(TensorRegion(bounds, class_axis, "" if class_axis is None else region.kind))
    return tuple(result)


def crop_regions(
    regions: Sequence[TensorRegion], axis: int, bounds: Bounds, size: int | None
) -> tuple[TensorRegion, ...]:
    """Return the regions that a slice along an axis leaves, relative to the slice.

    Args:
        regions: Regions of the tensor.
        axis: The axis of the slice.
        bounds: Start and stop of the slice.
        size: The size of the tensor along the axis; None if unknown.
    """
    low, high = bounds
    result = []
    for region in regions:
        start, stop = region.bounds.get(axis, (0, size or high))
        left, right = max(start, low), min(stop, high)
        if left >= right:
            continue
        rest = {other: interval for other, interval in region.bounds.items() if other != axis}
        if (left, right) != (low, high):
            rest[axis] = (left - low, right - low)
        has_all_classes = axis != region.class_axis or (left, right) == (start, stop)
        result.append(replace(region, bounds=rest) if has_all_classes else TensorRegion(rest))
    return tuple(result)


def split_regions(
    regions: Sequence[TensorRegion], axis: int, bounds: Collection[int], size: int
) -> tuple[TensorRegion, ...]:
    """Return regions split at positions along an axis; a split class axis is dropped."""
    result = []
    for region in regions:
        start, stop = region.bounds.get(axis, (0, size))
        positions = sorted({position for position in bounds if start < position < stop})
        if not positions:
            result.append(region)
            continue
        base = TensorRegion(region.bounds) if axis == region.class_axis else region
        for low, high in pairwise([start, *positions, stop]):
            result.append(replace(base, bounds={**region.bounds, axis: (low, high)}))
    return tuple(result)
