# SPDX-License-Identifier: Apache-2.0
"""Regions of tensors, and how nodes that move elements move them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

import onnx_ir as ir

from anybit.onnx.graph.constants import array_of

_MOST_AXES = 64

Bounds = tuple[int, int]


@dataclass(frozen=True)
class TensorRegion:
    """A part of a tensor: a box along some of its axes.

    Attributes:
        bounds: Start and stop along the axes that are divided.
        class_axis: The axis of classes; None where the graph shows none.
        kind: "distribution", "logits", or "" without classes.
    """

    bounds: Mapping[int, Bounds] = field(default_factory=dict)
    class_axis: int | None = None
    kind: str = ""


WHOLE = TensorRegion()


def get_rank(value: ir.Value) -> int | None:
    """Return the number of axes, if it is known."""
    return None if value.shape is None else len(value.shape)


def get_axis_size(value: ir.Value, axis: int) -> int | None:
    """Return the size along an axis, if it is fixed."""
    if value.shape is None or not 0 <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) and size >= 0 else None


def read_integers(value: ir.Value | None) -> list[int] | None:
    """Return the elements of a short constant of integers; None of anything else."""
    if value is None:
        return None
    tensor = value.const_value
    if tensor is None and value.producer() is not None:
        attribute = value.producer().attributes.get("value")  # type: ignore[union-attr]
        is_tensor = attribute is not None and attribute.type is ir.AttributeType.TENSOR
        if value.producer().op_type == "Constant" and is_tensor:  # type: ignore[union-attr]
            tensor = attribute.value  # type: ignore[union-attr]
    if tensor is None or value.is_graph_input() or tensor.size > _MOST_AXES:
        return None
    if tensor.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return None
    array = array_of(ir.Value(name=value.name, const_value=tensor))
    return [int(each) for each in array.reshape(-1)]


def map_kept_axes(data: ir.Value, value: ir.Value) -> dict[int, int] | None:
    """Return where a Reshape leaves the axes that it keeps.

    An axis is kept if its size and the number of elements before it, or behind it, stay the same.
    """
    if data.shape is None or value.shape is None:
        return None
    old, new = _dimensions(data.shape), _dimensions(value.shape)
    if max(len(old), len(new)) > _MOST_AXES:
        return None
    found: dict[int, int] = {}
    for sign in (1, -1):
        for (at, a), (to, b) in zip(_strides(old, sign), _strides(new, sign), strict=False):
            if a != b:
                break
            found[at] = to
    sizes = [each for each in (*old, *new) if isinstance(each, int)]
    if len(sizes) == len(old) + len(new) and all(sizes):
        behind = {
            (size, prod(new[to + 1 :])): to  # type: ignore[arg-type]
            for to, size in enumerate(new)
            if size != 1
        }
        for at, size in enumerate(old):
            key = (size, prod(old[at + 1 :]))  # type: ignore[arg-type]
            if key in behind:
                found[at] = behind[key]
    return found


def _dimensions(shape: ir.Shape) -> list[int | str | None]:
    return [each if isinstance(each, int) else each.value for each in shape]


def _strides(sizes: Sequence[int | str | None], sign: int) -> list[tuple[int, object]]:
    """Return axes with their sizes, from the first or from the last; unknown ones equal nothing."""
    axes = range(len(sizes))[::sign]
    return [(axis, object() if sizes[axis] is None else sizes[axis]) for axis in axes]


def move_regions(
    regions: Sequence[TensorRegion], axes: Mapping[int, int]
) -> tuple[TensorRegion, ...] | None:
    """Return regions behind a node that moves axes; None if it does not keep their bounds."""
    if any(axis not in axes for region in regions for axis in region.bounds):
        return None
    found = []
    for region in regions:
        bounds = {axes[axis]: each for axis, each in region.bounds.items()}
        classes = None if region.class_axis is None else axes.get(region.class_axis)
        found.append(TensorRegion(bounds, classes, "" if classes is None else region.kind))
    return tuple(found)


def crop_regions(
    regions: Sequence[TensorRegion], axis: int, bounds: Bounds, size: int | None
) -> tuple[TensorRegion, ...]:
    """Return regions of a tensor of which that is cut out along an axis."""
    low, high = bounds
    found = []
    for region in regions:
        start, stop = region.bounds.get(axis, (0, size or high))
        left, right = max(start, low), min(stop, high)
        if left >= right:
            continue
        rest = {each: of for each, of in region.bounds.items() if each != axis}
        if (left, right) != (low, high):
            rest[axis] = (left - low, right - low)
        whole = axis != region.class_axis or (left, right) == (start, stop)
        found.append(replace(region, bounds=rest) if whole else TensorRegion(rest))
    return tuple(found)


def split_regions(
    regions: Sequence[TensorRegion], axis: int, bounds: Collection[int], size: int
) -> tuple[TensorRegion, ...]:
    """Return regions divided at places along an axis; classes that are divided are none."""
    found = []
    for region in regions:
        start, stop = region.bounds.get(axis, (0, size))
        inner = sorted({each for each in bounds if start < each < stop})
        if not inner:
            found.append(region)
            continue
        known = TensorRegion(region.bounds) if axis == region.class_axis else region
        for low, high in pairwise([start, *inner, stop]):
            found.append(replace(known, bounds={**region.bounds, axis: (low, high)}))
    return tuple(found)
