# SPDX-License-Identifier: Apache-2.0
"""What puts tensors together, takes parts of them, or fills in between."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.carriers import Carrier, Codes, of_interval
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.points import regrid
from anybit.onnx.analysis.rules.elementwise import applied
from anybit.onnx.analysis.unions import joined, union
from anybit.onnx.analysis.view import View, channels_of_constant, given
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array


def concatenated(node: ir.Node, view: View) -> Carrier | None:
    carriers = [view.carrier(value) for value in node.inputs]
    known = [each for each in carriers if each is not None]
    if not known or len(known) < len(carriers):
        return None
    codes = next((each.codes for each in known if each.codes is not None), None)
    known = [_alike(each, codes) for each in known]
    axis = view.axis(node.inputs[0], attribute_of(node, "axis", 1))
    if axis is None:
        return _plain(union([each.whole() for each in known]))
    if len(_scales(known)) == 1 and all(each.axis != axis for each in known):
        return _plain(union(known))
    sizes = [(view.sizes(value) or ())[axis:][:1] for value in node.inputs]
    whole = [size for each in sizes for size in each if size is not None]
    found = joined(known, axis, whole) if len(whole) == len(known) else None
    if found is None:
        found = union([each.whole() if each.axis == axis else each for each in known])
    return _plain(found)


def _alike(x: Carrier, grid: Codes | None) -> Carrier:
    """A constant of one value on the grid of others, if it is on it."""
    if x.codes is not None or grid is None or grid.scale.ndim or x.lowest.ndim:
        return x
    if x.lowest != x.highest:
        return x
    value = np.full((1, 1), x.lowest, np.float32)
    found = regrid(value, np.ones((1, 1), np.bool_), grid.scale, grid.zeropt, None)
    return x if found is None else found


def _scales(carriers: Sequence[Carrier]) -> set[tuple[bytes, bytes] | None]:
    return {
        None if each.codes is None else (each.codes.scale.tobytes(), each.codes.zeropt.tobytes())
        for each in carriers
    }


def selected(node: ir.Node, view: View) -> Carrier | None:
    """Where: elements of the second or of the third input."""
    carriers = [view.carrier(given(node, index)) for index in (1, 2)]
    known = [each for each in carriers if each is not None]
    return _plain(union(known)) if len(known) == 2 else None


def extreme(node: ir.Node, view: View) -> Carrier | None:
    """Min and Max: elements of one of the inputs, or a Clip where the other is a constant."""
    limited = _limited(node, view) if len(node.inputs) == 2 else None
    if limited is not None:
        return limited
    carriers = [view.carrier(value) for value in node.inputs]
    known = [each for each in carriers if each is not None]
    if not known or len(known) < len(carriers):
        return None
    return _plain(union(known))


def _limited(node: ir.Node, view: View) -> Carrier | None:
    """The one input that is not a constant, cut off at the other."""
    least = node.op_type == "Min"
    for at in (0, 1):
        x, array = view.carrier(given(node, at)), view.array(given(node, 1 - at))
        layout = None if array is None else channels_of_constant(array)
        if x is None or layout is None or view.array(given(node, at)) is not None:
            continue
        axis, bound = layout
        if bool(np.all(bound >= x.highest.max() if least else bound <= x.lowest.min())):
            return x  # nothing is cut off
        compute = np.minimum if least else np.maximum
        return applied(node, view, partial(compute, bound), axis, bound, at=at)
    return None


def padded(node: ir.Node, view: View) -> Carrier | None:
    value = given(node, 0)
    x = view.carrier(value)
    if x is None:
        return None
    pads = view.integers(given(node, 1))
    if given(node, 1) is None:
        pads = list(attribute_of(node, "pads", ()))
    rank = view.rank(value)
    if x.axis is not None and _touches(x.axis, pads, rank, view.integers(given(node, 3))):
        x = x.whole()
    if attribute_of(node, "mode", "constant") != "constant":
        return _plain(x)
    filled = view.carrier(given(node, 2))
    if given(node, 2) is None:
        fill = float(attribute_of(node, "value", 0.0))
        filled = of_interval(fill, fill, exponent=0 if fill == 0 else None)
    return None if filled is None else _plain(union([x, filled]))


def _touches(axis: int, pads: list[int] | None, rank: int | None, axes: list[int] | None) -> bool:
    """Whether there may be padding along an axis that is counted from the end."""
    if pads is None or rank is None or axes is not None or len(pads) != 2 * rank:
        return True
    if -axis > rank:
        raise Mismatch("a tensor has fewer axes than its scales")
    return bool(pads[rank + axis] or pads[2 * rank + axis])


def resized(node: ir.Node, view: View) -> Carrier | None:
    """Resize and Upsample, where each element is one of x: to the nearest."""
    value = given(node, 0)
    x = view.carrier(value)
    if x is None or attribute_of(node, "mode", "nearest") != "nearest":
        return None
    if attribute_of(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return None
    return _plain(_unless_resized(x, value, node, view))


def _unless_resized(x: Carrier, value: ir.Value | None, node: ir.Node, view: View) -> Carrier:
    """x with channels if their axis has the size that it had."""
    before, after = view.sizes(value), view.sizes(node.outputs[0])
    if x.axis is None or before is None or after is None or len(before) != len(after):
        return x.whole()
    if -x.axis > len(before):
        raise Mismatch("a tensor has fewer axes than its scales")
    same = before[x.axis] is not None and before[x.axis] == after[x.axis]
    return x if same else x.whole()


def sliced(node: ir.Node, view: View) -> Carrier | None:
    value = given(node, 0)
    x = view.carrier(value)
    if x is None:
        return None
    if x.axis is None:
        return _plain(x)
    parts = _slices(node, view, view.rank(value))
    if parts is None:
        return _plain(x.whole())
    part = parts.get(x.axis)
    return _plain(x if part is None else _taken(x, np.arange(x.lowest.size)[part]))


def _slices(node: ir.Node, view: View, rank: int | None) -> dict[int, slice] | None:
    """The parts of axes, counted from the end; None if they are not known."""
    if len(node.inputs) < 3 or rank is None:
        return None
    given_parts = [view.integers(given(node, index)) for index in range(1, 5)]
    starts, ends, axes, steps = given_parts
    if starts is None or ends is None or len(starts) != len(ends) or rank == 0:
        return None
    if axes is None:
        if given(node, 3) is not None:
            return None
        axes = list(range(len(starts)))
    if steps is None:
        if given(node, 4) is not None:
            return None
        steps = [1] * len(starts)
    if len(axes) != len(starts) or len(steps) != len(starts) or 0 in steps:
        return None
    found = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # Ends below the first element mean it, too, where Python would count from the end.
        last = None if step < 0 and end < -(2**31) + 1 else end
        found[axis % rank - rank] = slice(start, last, step)
    return found


def split(node: ir.Node, view: View) -> list[Carrier | None]:
    value = given(node, 0)
    x = view.carrier(value)
    if x is None:
        return []
    axis = view.axis(value, attribute_of(node, "axis", 0))
    if x.axis is None or (axis is not None and axis != x.axis):
        return [_plain(x)] * len(node.outputs)
    found: list[Carrier | None] = []
    begin = 0
    for output in node.outputs:
        sizes = view.sizes(output)
        known = sizes is not None and axis is not None and -axis <= len(sizes)
        size = sizes[axis] if known else None  # type: ignore[index]
        if size is None or begin + size > x.lowest.size:
            return [_plain(x.whole())] * len(node.outputs)
        found.append(_plain(_taken(x, np.arange(begin, begin + size))))
        begin += size
    return found


def gathered(node: ir.Node, view: View) -> Carrier | None:
    value, places = given(node, 0), given(node, 1)
    x, rank = view.carrier(value), view.rank(places)
    if x is None:
        return None
    axis = view.axis(value, attribute_of(node, "axis", 0))
    if x.axis is None:
        return _plain(x)
    if axis is None or rank is None:
        return _plain(x.whole())
    if axis != x.axis:
        behind = rank - 1 if axis > x.axis else 0
        return _plain(replace(x, axis=x.axis - behind))
    chosen = view.array(places)
    if chosen is None or chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        return _plain(x.whole())
    return _plain(_taken(x, chosen))


def _taken(x: Carrier, channels: Array) -> Carrier:
    """Some of the channels."""
    if channels.size == 0 or channels.max() >= x.lowest.size or channels.min() < -x.lowest.size:
        return x.whole()
    if channels.size == 1:  # one channel is a tensor without
        channels = np.repeat(channels, 2)
        return _of_channels(x, channels).whole()
    return _of_channels(x, channels)


def _of_channels(x: Carrier, channels: Array) -> Carrier:
    codes = x.codes
    if codes is not None:
        codes = codes.arranged(lambda array: array[channels])
        offsets = codes.lowest - codes.lowest.min()
        codes = replace(codes, step=1 if np.any(offsets % codes.step) else codes.step)
    return replace(x, lowest=x.lowest[channels], highest=x.highest[channels], codes=codes)


def _plain(x: Carrier) -> Carrier:
    """Without what holds for elements in their places only."""
    return replace(x, integers=None, sources=())
