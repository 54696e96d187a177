# SPDX-License-Identifier: Apache-2.0
"""Concatenation, selection, padding, resizing, slicing and gathering."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import AbstractValue, CodeRanges, from_interval
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.points import regrid
from anybit.onnx.analysis.rules.elementwise import apply_function
from anybit.onnx.analysis.unions import concatenate, unite
from anybit.onnx.analysis.view import View, find_constant_channels, get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array


def infer_concat(node: ir.Node, view: View) -> AbstractValue | None:
    abstracts = [view.get_abstract(value) for value in node.inputs]
    parts = [part for part in abstracts if part is not None]
    if not parts or len(parts) < len(abstracts):
        return None
    codes = next((part.codes for part in parts if part.codes is not None), None)
    parts = [_convert_to_grid(part, codes) for part in parts]
    axis = view.resolve_axis(node.inputs[0], get_attribute(node, "axis", 1))
    if axis is None:
        return _drop_positions(unite([part.merge_channels() for part in parts]))
    if len(_collect_scales(parts)) == 1 and all(part.axis != axis for part in parts):
        return _drop_positions(unite(parts))
    sizes = [(view.get_sizes(value) or ())[axis:][:1] for value in node.inputs]
    whole = [size for part in sizes for size in part if size is not None]
    result = concatenate(parts, axis, whole) if len(whole) == len(parts) else None
    if result is None:
        result = unite([part.merge_channels() if part.axis == axis else part for part in parts])
    return _drop_positions(result)


def _convert_to_grid(x: AbstractValue, grid: CodeRanges | None) -> AbstractValue:
    """Return a constant of one value on the grid of the others, if it is on it."""
    if x.codes is not None or grid is None or grid.scale.ndim or x.lowest.ndim:
        return x
    if x.lowest != x.highest:
        return x
    value = np.full((1, 1), x.lowest, np.float32)
    result = regrid(value, np.ones((1, 1), np.bool_), grid.scale, grid.zeropt, None)
    return x if result is None else result


def _collect_scales(abstracts: Sequence[AbstractValue]) -> set[tuple[bytes, bytes] | None]:
    return {
        None
        if abstract.codes is None
        else (abstract.codes.scale.tobytes(), abstract.codes.zeropt.tobytes())
        for abstract in abstracts
    }


def infer_where(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of Where: elements of the second or the third input."""
    abstracts = [view.get_abstract(get_input(node, index)) for index in (1, 2)]
    parts = [part for part in abstracts if part is not None]
    return _drop_positions(unite(parts)) if len(parts) == 2 else None


def infer_min_max(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of Min or Max: elements of an input, or a Clip by a constant."""
    limited = _clip_at_constant(node, view) if len(node.inputs) == 2 else None
    if limited is not None:
        return limited
    abstracts = [view.get_abstract(value) for value in node.inputs]
    parts = [part for part in abstracts if part is not None]
    if not parts or len(parts) < len(abstracts):
        return None
    return _drop_positions(unite(parts))


def _clip_at_constant(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the only input that is not constant, clipped at the other."""
    least = node.op_type == "Min"
    for at in (0, 1):
        x, array = view.get_abstract(get_input(node, at)), view.get_array(get_input(node, 1 - at))
        layout = None if array is None else find_constant_channels(array)
        if x is None or layout is None or view.get_array(get_input(node, at)) is not None:
            continue
        axis, bound = layout
        if bool(np.all(bound >= x.highest.max() if least else bound <= x.lowest.min())):
            return x  # no value is clipped
        compute = np.minimum if least else np.maximum
        return apply_function(node, view, partial(compute, bound), axis, bound, at=at)
    return None


def infer_pad(node: ir.Node, view: View) -> AbstractValue | None:
    value = get_input(node, 0)
    x = view.get_abstract(value)
    if x is None:
        return None
    pads = view.get_integers(get_input(node, 1))
    if get_input(node, 1) is None:
        pads = list(get_attribute(node, "pads", ()))
    rank = view.get_rank(value)
    if x.axis is not None and _touches(x.axis, pads, rank, view.get_integers(get_input(node, 3))):
        x = x.merge_channels()
    if get_attribute(node, "mode", "constant") != "constant":
        return _drop_positions(x)
    filled = view.get_abstract(get_input(node, 2))
    if get_input(node, 2) is None:
        fill = float(get_attribute(node, "value", 0.0))
        filled = from_interval(fill, fill, exponent=0 if fill == 0 else None)
    return None if filled is None else _drop_positions(unite([x, filled]))


def _touches(axis: int, pads: list[int] | None, rank: int | None, axes: list[int] | None) -> bool:
    """Return whether there may be padding along an axis, counted from the end."""
    if pads is None or rank is None or axes is not None or len(pads) != 2 * rank:
        return True
    if -axis > rank:
        raise Mismatch("a tensor has fewer axes than its scales")
    return bool(pads[rank + axis] or pads[2 * rank + axis])


def infer_resize(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of a nearest-neighbour Resize or Upsample."""
    value = get_input(node, 0)
    x = view.get_abstract(value)
    if x is None or get_attribute(node, "mode", "nearest") != "nearest":
        return None
    if get_attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    return _drop_positions(_drop_resized_channels(x, value, node, view))


def _drop_resized_channels(
    x: AbstractValue, value: ir.Value | None, node: ir.Node, view: View
) -> AbstractValue:
    """Return x, with channels only if their axis keeps its size."""
    before, after = view.get_sizes(value), view.get_sizes(node.outputs[0])
    if x.axis is None or before is None or after is None or len(before) != len(after):
        return x.merge_channels()
    if -x.axis > len(before):
        raise Mismatch("a tensor has fewer axes than its scales")
    same = before[x.axis] is not None and before[x.axis] == after[x.axis]
    return x if same else x.merge_channels()


def infer_slice(node: ir.Node, view: View) -> AbstractValue | None:
    value = get_input(node, 0)
    x = view.get_abstract(value)
    if x is None:
        return None
    parts = _read_slices(node, view, view.get_rank(value))
    if parts is None:
        return _drop_positions(x.merge_channels())
    part = None if x.axis is None else parts.get(x.axis)
    result = x if part is None else _take_channels(x, np.arange(x.lowest.size)[part])
    return _keep_integers(result, _cut(x.integers, parts))


def _read_slices(node: ir.Node, view: View, rank: int | None) -> dict[int, slice] | None:
    """Return the slices of axes, counted from the end; None if unknown."""
    if len(node.inputs) < 3 or rank is None:
        return None
    given_parts = [view.get_integers(get_input(node, index)) for index in range(1, 5)]
    starts, ends, axes, steps = given_parts
    if starts is None or ends is None or len(starts) != len(ends) or rank == 0:
        return None
    if axes is None:
        if get_input(node, 3) is not None:
            return None
        axes = list(range(len(starts)))
    if steps is None:
        if get_input(node, 4) is not None:
            return None
        steps = [1] * len(starts)
    if len(axes) != len(starts) or len(steps) != len(starts) or 0 in steps:
        return None
    slices = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # ONNX clamps negative ends at the first element; Python would count from the end.
        last = None if step < 0 and end < -(2**31) + 1 else end
        slices[axis % rank - rank] = slice(start, last, step)
    return slices


def infer_split(node: ir.Node, view: View) -> list[AbstractValue | None]:
    value = get_input(node, 0)
    x = view.get_abstract(value)
    if x is None:
        return []
    axis = view.resolve_axis(value, get_attribute(node, "axis", 0))
    parts = None if axis is None else _list_parts(node, axis, view)
    if parts is None or axis is None:
        moves = x.axis is not None and axis in (None, x.axis)
        return [_drop_positions(x.merge_channels() if moves else x)] * len(node.outputs)
    results: list[AbstractValue | None] = []
    for part in parts:
        result = x
        if axis == x.axis:
            if part.stop > x.lowest.size:
                return [_drop_positions(x.merge_channels())] * len(node.outputs)
            result = _take_channels(x, np.arange(part.start, part.stop))
        results.append(_keep_integers(result, _cut(x.integers, {axis: part})))
    return results


def _list_parts(node: ir.Node, axis: int, view: View) -> list[slice] | None:
    """Return where the outputs of a Split begin and end; None if some are unknown."""
    parts, begin = [], 0
    for output in node.outputs:
        sizes = view.get_sizes(output)
        size = sizes[axis] if sizes is not None and -axis <= len(sizes) else None
        if size is None:
            return None
        parts.append(slice(begin, begin + size))
        begin += size
    return parts


def _cut(integers: Array | None, parts: Mapping[int, slice]) -> Array | None:
    """Return slices of an array along axes, counted from the end."""
    if integers is None:
        return None
    if any(-axis > integers.ndim for axis in parts):
        raise Mismatch("a tensor has fewer axes than its slices")
    return integers[tuple(parts.get(axis, slice(None)) for axis in range(-integers.ndim, 0))]


def infer_gather(node: ir.Node, view: View) -> AbstractValue | None:
    value, places = get_input(node, 0), get_input(node, 1)
    x, rank = view.get_abstract(value), view.get_rank(places)
    if x is None:
        return None
    axis = view.resolve_axis(value, get_attribute(node, "axis", 0))
    chosen = view.get_array(places)
    indices = chosen if chosen is not None and chosen.dtype.kind in "iu" else None
    integers = _gather_integers(x.integers, axis, indices, view)
    if x.axis is None:
        return _keep_integers(x, integers)
    if axis is None or rank is None:
        return _drop_positions(x.merge_channels())
    if axis != x.axis:
        following = rank - 1 if axis > x.axis else 0
        return _keep_integers(replace(x, axis=x.axis - following), integers)
    if indices is None or indices.ndim != 1:
        return _keep_integers(x.merge_channels(), integers)
    return _keep_integers(_take_channels(x, indices), integers)


def _gather_integers(
    integers: Array | None, axis: int | None, indices: Array | None, view: View
) -> Array | None:
    """Return the chosen codes of a constant; None if they are unknown, or too many."""
    if integers is None or axis is None or indices is None or -axis > integers.ndim:
        return None
    size = integers.shape[axis]
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        return None
    if not size or not view.can_afford(integers.size // size * indices.size):
        return None
    return integers.take(indices, axis)


def _take_channels(x: AbstractValue, channels: Array) -> AbstractValue:
    """Return some of the channels."""
    if channels.size == 0 or channels.max() >= x.lowest.size or channels.min() < -x.lowest.size:
        return x.merge_channels()
    if channels.size == 1:  # a single channel is dropped
        channels = np.repeat(channels, 2)
        return _select_channels(x, channels).merge_channels()
    return _select_channels(x, channels)


def _select_channels(x: AbstractValue, channels: Array) -> AbstractValue:
    codes = x.codes
    if codes is not None:
        codes = codes.rearrange(lambda array: array[channels])
        offsets = codes.lowest - codes.lowest.min()
        codes = replace(codes, step=1 if np.any(offsets % codes.step) else codes.step)
    return replace(x, lowest=x.lowest[channels], highest=x.highest[channels], codes=codes)


def _keep_integers(x: AbstractValue, integers: Array | None) -> AbstractValue:
    """Return a selection, with the codes of a constant at their new positions."""
    return replace(x, integers=integers, sources=())


def _drop_positions(x: AbstractValue) -> AbstractValue:
    """Drop the properties of elements at fixed positions."""
    return replace(x, integers=None, sources=())
