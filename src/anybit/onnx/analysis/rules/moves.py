# SPDX-License-Identifier: Apache-2.0
"""What moves elements, or takes the largest of some."""

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.carriers import MOST_CHANNELS, Carrier
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.view import View, given
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array


def moved(node: ir.Node, view: View) -> Carrier | None:
    """Elements of the first input in other places, without channels."""
    x = view.carrier(given(node, 0))
    return None if x is None else _variable(x.whole())


def kept(node: ir.Node, view: View) -> Carrier | None:
    """Elements of the first input that stay in their channels."""
    x = view.carrier(given(node, 0))
    return None if x is None else _variable(x)


def identity(node: ir.Node, view: View) -> Carrier | None:
    return view.carrier(given(node, 0))


def pooled(node: ir.Node, view: View) -> list[Carrier | None] | None:
    """The largest element of a window: of axes behind the second, or of any for a reduction."""
    x = view.carrier(given(node, 0))
    if x is None:
        return None
    rank = view.rank(given(node, 0))
    spatial = x.axis is not None and (rank is None or x.axis > 1 - rank)
    found = x.whole() if spatial else x
    return [_variable(found)]  # a second output has positions


def pooled_channels_last(node: ir.Node, view: View) -> Carrier | None:
    """Return what a MaxPool with channels last gives: any value of its input."""
    x = view.carrier(given(node, 0))
    return None if x is None else _variable(x.whole())


def transposed(node: ir.Node, view: View) -> Carrier | None:
    x = view.carrier(given(node, 0))
    if x is None:
        return None
    rank = view.rank(given(node, 0)) if x.integers is None else x.integers.ndim
    order = attribute_of(node, "perm", ())
    order = order or (tuple(range(rank))[::-1] if rank is not None else ())
    if sorted(order) != list(range(len(order))) or (rank is not None and len(order) != rank):
        raise Mismatch("no order of axes")
    if x.axis is not None:
        if -x.axis > len(order):
            return _variable(x.whole())
        x = replace(x, axis=order.index(len(order) + x.axis) - len(order))
    if x.integers is None:
        return _variable(x)
    return replace(x, integers=x.integers.transpose(order), sources=())


def reshaped(node: ir.Node, view: View) -> Carrier | None:
    """Reshape, Flatten, Squeeze, Unsqueeze: the same elements in the same order."""
    value = given(node, 0)
    x = view.carrier(value)
    if x is None or value is None:
        return None
    before, after = view.sizes(value), view.sizes(node.outputs[0])
    integers = _reshaped_integers(x.integers, after, view)
    if x.integers is not None and integers is not None:
        before = x.integers.shape
    found = x.whole() if x.axis is None else _spread(x, before, after) or x.whole()
    return replace(found, integers=integers, sources=())


def _reshaped_integers(integers: Array | None, after: object, view: View) -> Array | None:
    if integers is None or not isinstance(after, tuple) or None in after:
        return None
    if math.prod(after) != integers.size:
        raise Mismatch("the result has another number of elements")
    if not integers.flags.c_contiguous and not view.afford(integers.size):
        return None
    return integers.reshape(after)


def _spread(x: Carrier, before: object, after: object) -> Carrier | None:
    """Channels where they are after a change of shape, as far as that can be said.

    What lies behind the axis must be what lies behind the new one, or the new axis must be the last
    and have the old one and all behind it.
    """
    if not isinstance(before, tuple) or not isinstance(after, tuple) or x.axis is None:
        return None
    behind = before[len(before) + x.axis :]
    if None in behind or -x.axis > len(before) or behind[0] != x.lowest.size:
        return None
    rest = math.prod(behind[1:])
    inner = 1
    for axis in range(-1, -len(after) - 1, -1):
        size = after[axis]
        if inner == rest and size == behind[0]:
            return _placed(x, axis, 1)
        if inner == 1 and size == rest * behind[0] and rest * behind[0] <= MOST_CHANNELS:
            return _placed(x, axis, rest)
        if size is None:
            return None
        inner *= size
    return None


def _placed(x: Carrier, axis: int, times: int) -> Carrier:
    """Channels along another axis, each so many times."""

    def repeated(array: Array) -> Array:
        return np.repeat(array, times)

    codes = None if x.codes is None else x.codes.arranged(repeated)
    return replace(
        x, lowest=repeated(x.lowest), highest=repeated(x.highest), axis=axis, codes=codes
    )


def _variable(x: Carrier) -> Carrier:
    """Without what holds for elements in their places only."""
    return replace(x, integers=None, sources=())
