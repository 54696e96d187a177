# SPDX-License-Identifier: Apache-2.0
"""Data movement and maxima."""

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import MOST_CHANNELS, AbstractValue
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.view import View, get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array


def infer_mixing_move(node: ir.Node, view: View) -> AbstractValue | None:
    """Return elements of the first input at other positions, without channels."""
    x = view.get_abstract(get_input(node, 0))
    return None if x is None else _drop_positions(x.merge_channels())


def infer_channelwise_move(node: ir.Node, view: View) -> AbstractValue | None:
    """Return elements of the first input that stay in their channels."""
    x = view.get_abstract(get_input(node, 0))
    return None if x is None else _drop_positions(x)


def infer_identity(node: ir.Node, view: View) -> AbstractValue | None:
    return view.get_abstract(get_input(node, 0))


def infer_max_pool(node: ir.Node, view: View) -> list[AbstractValue | None] | None:
    """Return the maximum of a window: over axes after the second, or any for a reduction."""
    x = view.get_abstract(get_input(node, 0))
    if x is None:
        return None
    rank = view.get_rank(get_input(node, 0))
    spatial = x.axis is not None and (rank is None or x.axis > 1 - rank)
    result = x.merge_channels() if spatial else x
    return [_drop_positions(result)]  # the second output holds indices


def infer_max_pool_channels_last(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the output of a MaxPool with channels last: any value of its input."""
    x = view.get_abstract(get_input(node, 0))
    return None if x is None else _drop_positions(x.merge_channels())


def infer_transpose(node: ir.Node, view: View) -> AbstractValue | None:
    x = view.get_abstract(get_input(node, 0))
    if x is None:
        return None
    rank = view.get_rank(get_input(node, 0)) if x.integers is None else x.integers.ndim
    order = get_attribute(node, "perm", ())
    order = order or (tuple(range(rank))[::-1] if rank is not None else ())
    if sorted(order) != list(range(len(order))) or (rank is not None and len(order) != rank):
        raise Mismatch("no order of axes")
    if x.axis is not None:
        if -x.axis > len(order):
            return _drop_positions(x.merge_channels())
        x = replace(x, axis=order.index(len(order) + x.axis) - len(order))
    if x.integers is None:
        return _drop_positions(x)
    return replace(x, integers=x.integers.transpose(order), sources=())


def infer_reshape(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of Reshape, Flatten, Squeeze or Unsqueeze: same elements, same order."""
    value = get_input(node, 0)
    x = view.get_abstract(value)
    if x is None or value is None:
        return None
    before, after = view.get_sizes(value), view.get_sizes(node.outputs[0])
    integers = _reshape_integers(x.integers, after, view)
    if x.integers is not None and integers is not None:
        before = x.integers.shape
    result = (
        x.merge_channels()
        if x.axis is None
        else _map_channels(x, before, after) or x.merge_channels()
    )
    return replace(result, integers=integers, sources=())


def _reshape_integers(integers: Array | None, after: object, view: View) -> Array | None:
    if integers is None or not isinstance(after, tuple) or None in after:
        return None
    if math.prod(after) != integers.size:
        raise Mismatch("the result has another number of elements")
    if not integers.flags.c_contiguous and not view.can_afford(integers.size):
        return None
    return integers.reshape(after)


def _map_channels(x: AbstractValue, before: object, after: object) -> AbstractValue | None:
    """Return the value with its channels mapped through a reshape, if possible.

    Two reshapes are supported: the sizes after the axis stay, or the new axis is the last one and
    combines the old axis with all following axes.
    """
    if not isinstance(before, tuple) or not isinstance(after, tuple) or x.axis is None:
        return None
    following = before[len(before) + x.axis :]
    if None in following or -x.axis > len(before) or following[0] != x.lowest.size:
        return None
    rest = math.prod(following[1:])
    inner = 1
    for axis in range(-1, -len(after) - 1, -1):
        size = after[axis]
        if inner == rest and size == following[0]:
            return _move_channels(x, axis, 1)
        if inner == 1 and size == rest * following[0] and rest * following[0] <= MOST_CHANNELS:
            return _move_channels(x, axis, rest)
        if size is None:
            return None
        inner *= size
    return None


def _move_channels(x: AbstractValue, axis: int, times: int) -> AbstractValue:
    """Return the channels along another axis, each repeated `times` times."""

    def repeated(array: Array) -> Array:
        return np.repeat(array, times)

    codes = None if x.codes is None else x.codes.rearrange(repeated)
    return replace(
        x, lowest=repeated(x.lowest), highest=repeated(x.highest), axis=axis, codes=codes
    )


def _drop_positions(x: AbstractValue) -> AbstractValue:
    """Drop the properties of elements at fixed positions."""
    return replace(x, integers=None, sources=())
