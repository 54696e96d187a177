# SPDX-License-Identifier: Apache-2.0
"""Parts of concatenated outputs, which are evaluated separately.

A detector may return boxes and scores in one tensor. Boxes are hundreds of times as large, so that
the boxes determine the SQNR of the tensor. An output is therefore traced back through data
movement (Transpose, Reshape, Squeeze, ...) to Concat, Split and Slice where sizes are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.metrics.class_axis import find_class_axis, find_class_region
from anybit.metrics.regions import (
    WHOLE,
    TensorRegion,
    crop_regions,
    get_axis_size,
    get_rank,
    map_kept_axes,
    move_regions,
    read_integers,
    split_regions,
)
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.op_traits import OpTrait, has_trait

_MAX_PARTS = 64
"""An output with more parts is taken as a sequence, which is not split."""
_MAX_STEPS, _MAX_READERS = 64, 64
_CLASS_KEEPING = ("Cast", "Dropout", "Identity")
_ELEMENTWISE = ("Clip", "Exp", "HardSigmoid", "Log", "Relu", "Sigmoid", "Sqrt", "Tanh")


@dataclass(frozen=True)
class OutputPart:
    """An output, or a region of it.

    Attributes:
        name: The output, with the region as a NumPy index: "output0[:, 4:84]".
        region: The bounds and the class axis.
        sizes: The sizes of the output along the cropped axes.
    """

    name: str
    region: TensorRegion = WHOLE
    sizes: Mapping[int, int] | None = None

    @property
    def class_axis(self) -> int | None:
        return self.region.class_axis

    @property
    def kind(self) -> str:
        return self.region.kind

    def fits(self, array: Array) -> bool:
        """Return whether an array has the sizes that the graph declares."""
        sizes = self.sizes or {}
        return all(axis < array.ndim and array.shape[axis] == sizes[axis] for axis in sizes)

    def crop(self, array: Array) -> Array:
        """Return the region of an array that `fits`."""
        index = [slice(None)] * array.ndim
        for axis, bounds in self.region.bounds.items():
            index[axis] = slice(*bounds)
        return array[tuple(index)]


def find_output_parts(model: ir.Model) -> dict[str, tuple[OutputPart, ...]]:
    """Return the parts of each output of a model with inferred shapes, by output name."""
    analysis = _Analysis(model.opset_imports.get("", 0))
    return {
        str(value.name): _make_parts(value, analysis.find_regions(value))
        for value in model.graph.outputs
    }


def _make_parts(value: ir.Value, regions: Sequence[TensorRegion]) -> tuple[OutputPart, ...]:
    name, rank = str(value.name), get_rank(value)
    if len(regions) == 1 or rank is None:
        return (OutputPart(name, replace(regions[0], bounds={}) if len(regions) == 1 else WHOLE),)
    parts = []
    for region in regions:
        sizes = {axis: get_axis_size(value, axis) for axis in region.bounds}
        fixed = {axis: size for axis, size in sizes.items() if size is not None}
        parts.append(OutputPart(f"{name}{_format_index(region, rank)}", region, fixed))
    return tuple(parts)


def _format_index(region: TensorRegion, rank: int) -> str:
    """Return the region as a NumPy index."""
    items = [":"] * rank
    for axis, (start, stop) in region.bounds.items():
        items[axis] = f"{start}:{stop}"
    last = max(region.bounds, default=-1)
    leading = items[: min(region.bounds, default=0)]
    if last == rank - 1 and len(leading) > 1:
        items = ["...", *items[len(leading) :]]
    else:
        items = items[: last + 1]
    return f"[{', '.join(items)}]" if items else ""


class _Analysis:
    """Regions of the values of a graph, cached."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._cache: dict[ir.Value, tuple[TensorRegion, ...]] = {}

    def find_regions(self, value: ir.Value, steps: int = 0) -> tuple[TensorRegion, ...]:
        """Return the regions of a value; a single one without bounds if it has no parts."""
        if value not in self._cache:
            self._cache[value] = (WHOLE,)  # ends the recursion in cyclic graphs
            try:
                regions = self._trace_producer(value, steps) if steps < _MAX_STEPS else None
                regions = regions or (find_class_region(value, self._opset),)
                self._cache[value] = self._apply_consumers(value, regions)
            except ModelError:  # an attribute of a wrong type, which the runtime reports
                self._cache[value] = (WHOLE,)
        return self._cache[value]

    def _trace_producer(self, value: ir.Value, steps: int) -> tuple[TensorRegion, ...] | None:
        """Return the regions that follow from the producer; None if it is not traced."""
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return None
        data = node.inputs[0]
        if node.op_type == "Concat":
            return self._trace_concat(node, value, steps)
        if node.op_type in _CLASS_KEEPING:
            return self.find_regions(data, steps + 1) if value is node.outputs[0] else None
        if node.op_type in _ELEMENTWISE:
            regions = self.find_regions(data, steps + 1)
            if len(regions) < 2:
                return None
            return tuple(TensorRegion(region.bounds) for region in regions)
        if node.op_type == "Transpose" or has_trait(node, OpTrait.RESHAPE):
            axes = _map_axes(node, data, value)
            return None if axes is None else move_regions(self.find_regions(data, steps + 1), axes)
        if node.op_type in ("Slice", "Split"):
            crop = _find_crop(node, data, value)
            regions = self.find_regions(data, steps + 1)
            for axis, bounds in (crop or {}).items():
                regions = crop_regions(regions, axis, bounds, get_axis_size(data, axis))
            return None if crop is None else regions or None
        return None

    def _trace_concat(
        self, node: ir.Node, value: ir.Value, steps: int
    ) -> tuple[TensorRegion, ...] | None:
        rank, inputs = get_rank(value), [x for x in node.inputs if x is not None]
        axis = get_attribute(node, "axis", 0)
        if rank is None or not -rank <= axis < rank or len(inputs) > _MAX_PARTS:
            return None
        axis %= rank
        inner = [self.find_regions(x, steps + 1) for x in inputs]
        sizes = _infer_sizes(inputs, axis, get_axis_size(value, axis))
        if sizes is None:
            return _find_common_regions(inner, axis)
        if sum(map(len, inner)) > _MAX_PARTS:
            inner = [(WHOLE,)] * len(inputs)
        result, start = [], 0
        for regions, size in zip(inner, sizes, strict=True):
            for region in regions if size else ():
                low, high = region.bounds.get(axis, (0, size))
                bounds = {**region.bounds, axis: (start + low, start + high)}
                if high - low == sum(sizes):
                    del bounds[axis]
                result.append(replace(region, bounds=bounds))
            start += size
        return tuple(result) or None

    def _apply_consumers(
        self, value: ir.Value, regions: tuple[TensorRegion, ...]
    ) -> tuple[TensorRegion, ...]:
        """Return the regions with the class axes and the splits that consumers imply."""
        rank = get_rank(value)
        for node, index in islice(value.uses(), _MAX_READERS):
            if index or node.domain:
                continue
            axis = find_class_axis(node, rank, self._opset)
            if axis is not None:
                regions = tuple(
                    region
                    if axis in region.bounds
                    else replace(region, class_axis=axis, kind="distribution")
                    for region in regions
                )
            elif node.op_type in ("Slice", "Split") and len(node.outputs) <= _MAX_PARTS:
                for output in node.outputs:
                    for split_axis, bounds in (_find_crop(node, value, output) or {}).items():
                        size = get_axis_size(value, split_axis)
                        if size is not None:
                            split = split_regions(regions, split_axis, bounds, size)
                            regions = split if len(split) <= _MAX_PARTS else regions
        return regions


def _infer_sizes(inputs: Sequence[ir.Value], axis: int, whole: int | None) -> list[int] | None:
    """Return the sizes of the inputs of a Concat; at most one may be unknown.

    Args:
        inputs: The inputs.
        axis: The axis of the Concat.
        whole: The size of the output; None if unknown.
    """
    sizes = [get_axis_size(x, axis) for x in inputs]
    fixed = [size for size in sizes if size is not None]
    if len(fixed) == len(sizes):
        return fixed if whole in (None, sum(fixed)) else None
    if len(fixed) + 1 < len(sizes) or whole is None or whole < sum(fixed):
        return None
    return [whole - sum(fixed) if size is None else size for size in sizes]


def _find_common_regions(
    inner: Sequence[tuple[TensorRegion, ...]], axis: int
) -> tuple[TensorRegion, ...] | None:
    """Return the regions that all inputs share; None if one is cropped along the axis."""
    first = inner[0]
    if any(regions != first for regions in inner) or any(axis in part.bounds for part in first):
        return None
    return tuple(
        TensorRegion(part.bounds) if part.class_axis in (axis, None) else part for part in first
    )


def _map_axes(node: ir.Node, data: ir.Value, value: ir.Value) -> dict[int, int] | None:
    """Return the output axis of each input axis that is kept; None if the rank is unknown."""
    rank = get_rank(data)
    if rank is None:
        return None
    if node.op_type != "Transpose":
        return map_kept_axes(data, value)
    order = get_attribute(node, "perm", tuple(range(rank))[::-1])
    if sorted(order) != list(range(rank)):
        return None
    return {axis: position for position, axis in enumerate(order)}


def _find_crop(
    node: ir.Node, data: ir.Value, output: ir.Value
) -> dict[int, tuple[int, int]] | None:
    """Return the bounds of a Split or Slice output in its input by axis; None if unknown."""
    rank = get_rank(data)
    if rank is None:
        return None
    if node.op_type == "Split":
        axis = get_attribute(node, "axis", 0)
        if not -rank <= axis < rank or len(node.outputs) > _MAX_PARTS:
            return None
        axis, start = axis % rank, 0
        for part in node.outputs:
            size = get_axis_size(part, axis)
            if size is None:
                return None
            if part is output:
                return {axis: (start, start + size)}
            start += size
        return None
    inputs = [*node.inputs, *[None] * 5][:5]
    starts, stops, axes, steps = map(read_integers, inputs[1:])
    if starts is None or stops is None or (inputs[4] is not None and set(steps or [0]) != {1}):
        return None
    axes = axes if inputs[3] is not None else list(range(len(starts)))
    if axes is None or not len(starts) == len(stops) == len(axes) or len(set(axes)) < len(axes):
        return None
    crop = {}
    for axis, start, stop in zip(axes, starts, stops, strict=True):
        size = get_axis_size(data, axis % rank) if -rank <= axis < rank else None
        if size is None:
            return None
        low, high, _ = slice(start, stop).indices(size)
        crop[axis % rank] = (low, max(low, high))
    return crop
