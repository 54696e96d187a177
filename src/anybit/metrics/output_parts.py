# SPDX-License-Identifier: Apache-2.0
"""The parts of which an output is put together, each of which is judged by itself.

A detector gives boxes and scores in one tensor. Boxes are hundreds of times as large, so that an
SQNR of the tensor is one of the boxes. The output is followed back through nodes that move elements
(Transpose, Reshape, Squeeze, ...) to each Concat, Split and Slice, as far as sizes are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.inputs import Array
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
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.op_traits import OpTrait, has_trait

_MOST_PARTS = 64
"""An output of more parts than that is a sequence: it is not split."""
_MOST_STEPS, _MOST_READERS = 64, 64
_KEEPING_CLASSES = ("Cast", "Dropout", "Identity")
_ELEMENTWISE = ("Clip", "Exp", "HardSigmoid", "Log", "Relu", "Sigmoid", "Sqrt", "Tanh")


@dataclass(frozen=True)
class OutputPart:
    """A region of an output, or all of it.

    Attributes:
        name: The output, with the region in the notation of NumPy: "output0[:, 4:84]".
        region: Its bounds, and what is known of its classes.
        sizes: The sizes of the output along the axes that are bounded.
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
        """Return whether an array has the sizes that the graph promised."""
        sizes = self.sizes or {}
        return all(axis < array.ndim and array.shape[axis] == sizes[axis] for axis in sizes)

    def of(self, array: Array) -> Array:
        """Return the region of an array that fits."""
        index = [slice(None)] * array.ndim
        for axis, bounds in self.region.bounds.items():
            index[axis] = slice(*bounds)
        return array[tuple(index)]


def find_output_parts(model: ir.Model) -> dict[str, tuple[OutputPart, ...]]:
    """Return the parts of each output of a model whose shapes have been inferred."""
    analysis = _Analysis(model.opset_imports.get("", 0))
    return {
        str(value.name): _named(value, analysis.regions(value)) for value in model.graph.outputs
    }


def _named(value: ir.Value, regions: Sequence[TensorRegion]) -> tuple[OutputPart, ...]:
    name, rank = str(value.name), get_rank(value)
    if len(regions) == 1 or rank is None:
        return (OutputPart(name, replace(regions[0], bounds={}) if len(regions) == 1 else WHOLE),)
    parts = []
    for region in regions:
        sizes = {axis: get_axis_size(value, axis) for axis in region.bounds}
        known = {axis: size for axis, size in sizes.items() if size is not None}
        parts.append(OutputPart(f"{name}{_index(region, rank)}", region, known))
    return tuple(parts)


def _index(region: TensorRegion, rank: int) -> str:
    """Return the region as an index of NumPy."""
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
    """The regions of the values of a graph, each found once."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._known: dict[ir.Value, tuple[TensorRegion, ...]] = {}

    def regions(self, value: ir.Value, steps: int = 0) -> tuple[TensorRegion, ...]:
        """Return the regions of a value; one without bounds where it has no parts."""
        if value not in self._known:
            self._known[value] = (WHOLE,)  # for graphs that are not acyclic
            try:
                found = self._produced(value, steps) if steps < _MOST_STEPS else None
                found = found or (find_class_region(value, self._opset),)
                self._known[value] = self._read(value, found)
            except ModelError:  # an attribute of a wrong type: the runtime decides about it
                self._known[value] = (WHOLE,)
        return self._known[value]

    def _produced(self, value: ir.Value, steps: int) -> tuple[TensorRegion, ...] | None:
        """Return what follows from the node that gives it; None where it is not followed."""
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return None
        data = node.inputs[0]
        if node.op_type == "Concat":
            return self._concatenated(node, value, steps)
        if node.op_type in _KEEPING_CLASSES:
            return self.regions(data, steps + 1) if value is node.outputs[0] else None
        if node.op_type in _ELEMENTWISE:
            found = self.regions(data, steps + 1)
            return tuple(TensorRegion(each.bounds) for each in found) if len(found) > 1 else None
        if node.op_type == "Transpose" or has_trait(node, OpTrait.RESHAPE):
            axes = _moved_axes(node, data, value)
            return None if axes is None else move_regions(self.regions(data, steps + 1), axes)
        if node.op_type in ("Slice", "Split"):
            place = _place(node, data, value)
            found = self.regions(data, steps + 1)
            for axis, bounds in (place or {}).items():
                found = crop_regions(found, axis, bounds, get_axis_size(data, axis))
            return None if place is None else found or None
        return None

    def _concatenated(
        self, node: ir.Node, value: ir.Value, steps: int
    ) -> tuple[TensorRegion, ...] | None:
        rank, inputs = get_rank(value), [each for each in node.inputs if each is not None]
        axis = attribute_of(node, "axis", 0)
        if rank is None or not -rank <= axis < rank or len(inputs) > _MOST_PARTS:
            return None
        axis %= rank
        inner = [self.regions(each, steps + 1) for each in inputs]
        sizes = _sizes(inputs, axis, get_axis_size(value, axis))
        if sizes is None:
            return _in_common(inner, axis)
        if sum(map(len, inner)) > _MOST_PARTS:
            inner = [(WHOLE,)] * len(inputs)
        found, start = [], 0
        for regions, size in zip(inner, sizes, strict=True):
            for region in regions if size else ():
                low, high = region.bounds.get(axis, (0, size))
                bounds = {**region.bounds, axis: (start + low, start + high)}
                if high - low == sum(sizes):
                    del bounds[axis]
                found.append(replace(region, bounds=bounds))
            start += size
        return tuple(found) or None

    def _read(self, value: ir.Value, regions: tuple[TensorRegion, ...]) -> tuple[TensorRegion, ...]:
        """Add what readers of a value show: its classes, and where it is divided."""
        rank = get_rank(value)
        for node, place in islice(value.uses(), _MOST_READERS):
            if place or node.domain:
                continue
            axis = find_class_axis(node, rank, self._opset)
            if axis is not None:
                regions = tuple(
                    each
                    if axis in each.bounds
                    else replace(each, class_axis=axis, kind="distribution")
                    for each in regions
                )
            elif node.op_type in ("Slice", "Split") and len(node.outputs) <= _MOST_PARTS:
                for output in node.outputs:
                    for along, bounds in (_place(node, value, output) or {}).items():
                        size = get_axis_size(value, along)
                        if size is not None:
                            divided = split_regions(regions, along, bounds, size)
                            regions = divided if len(divided) <= _MOST_PARTS else regions
        return regions


def _sizes(inputs: Sequence[ir.Value], axis: int, whole: int | None) -> list[int] | None:
    """Return the sizes of the inputs of a Concat; a single unknown one follows from the rest."""
    sizes = [get_axis_size(each, axis) for each in inputs]
    known = [each for each in sizes if each is not None]
    if len(known) == len(sizes):
        return known if whole in (None, sum(known)) else None
    if len(known) + 1 < len(sizes) or whole is None or whole < sum(known):
        return None
    return [whole - sum(known) if each is None else each for each in sizes]


def _in_common(
    inner: Sequence[tuple[TensorRegion, ...]], axis: int
) -> tuple[TensorRegion, ...] | None:
    """Return the regions that all inputs of a Concat have, if none is bounded along its axis."""
    first = inner[0]
    if any(each != first for each in inner) or any(axis in each.bounds for each in first):
        return None
    return tuple(
        TensorRegion(each.bounds) if each.class_axis in (axis, None) else each for each in first
    )


def _moved_axes(node: ir.Node, data: ir.Value, value: ir.Value) -> dict[int, int] | None:
    """Return where each axis of the input is in the output, as far as it is kept."""
    rank = get_rank(data)
    if rank is None:
        return None
    if node.op_type != "Transpose":
        return map_kept_axes(data, value)
    order = attribute_of(node, "perm", tuple(range(rank))[::-1])
    if sorted(order) != list(range(rank)):
        return None
    return {axis: at for at, axis in enumerate(order)}


def _place(node: ir.Node, data: ir.Value, output: ir.Value) -> dict[int, tuple[int, int]] | None:
    """Return which region of its input a Split or Slice gives; None where it is not known."""
    rank = get_rank(data)
    if rank is None:
        return None
    if node.op_type == "Split":
        axis = attribute_of(node, "axis", 0)
        if not -rank <= axis < rank or len(node.outputs) > _MOST_PARTS:
            return None
        axis, start = axis % rank, 0
        for each in node.outputs:
            size = get_axis_size(each, axis)
            if size is None:
                return None
            if each is output:
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
    found = {}
    for axis, start, stop in zip(axes, starts, stops, strict=True):
        size = get_axis_size(data, axis % rank) if -rank <= axis < rank else None
        if size is None:
            return None
        low, high, _ = slice(start, stop).indices(size)
        found[axis % rank] = (low, max(low, high))
    return found
