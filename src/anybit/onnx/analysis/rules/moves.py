# SPDX-License-Identifier: Apache-2.0
"""Data movement and maxima."""

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import MOST_CHANNELS, AbstractValue
from anybit.onnx.analysis.mismatch import Mismatch
from anybit.onnx.analysis.view import View, input_of
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array


def moved(node: ir.Node, view: View) -> AbstractValue | None:
    """Return elements of the first input at other positions, without channels."""
    x = view.abstract(input_of(node, 0))
    return None if x is None else _variable(x.whole())


def kept(node: ir.Node, view: View) -> AbstractValue | None:
    """Return elements of the first input that stay in their channels."""
    x = view.abstract(input_of(node, 0))
    return None if x is None else _variable(x)


def identity(node: ir.Node, view: View) -> AbstractValue | None:
    return view.abstract(input_of(node, 0))


def pooled(node: ir.Node, view: View) -> list[AbstractValue | None] | None:
    """Return the maximum of a window: over axes after the second, or any for a reduction."""
    x = view.abstract(input_of(node, 0))
    if x is None:
        return None
    rank = view.rank(input_of(node, 0))
    spatial = x.axis is not None and (rank is None or x.axis > 1 - rank)
    result = x.whole() if spatial else x
    return [_variable(result)]  # the second output holds indices


def pooled_channels_last(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the output of a MaxPool with channels last: any value of its input."""
    x = view.abstract(input_of(node, 0))
    return None if x is None else _variable(x.whole())


def transposed(node: ir.Node, view: View) -> AbstractValue | None:
    x = view.abstract(input_of(node, 0))
    if x is None:
        return None
    rank = view.rank(input_of(node, 0)) if x.integers is None else x.integers.ndim
    order = get_attribute(node, "perm", ())
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


def reshaped(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of Reshape, Flatten, Squeeze or Unsqueeze: same elements, same order."""
    value = input_of(node, 0)
    x = view.abstract(value)
    if x is None or value is None:
        return None
    before, after = view.sizes(value), view.sizes(node.outputs[0])
    integers = _reshaped_integers(x.integers, after, view)
    if x.integers is not None and integers is not None:
        before = x.integers.shape
    result = x.whole() if x.axis is None else _spread(x, before, after) or x.whole()
    return replace(result, integers=integers, sources=())


def _reshaped_integers(integers: Array | None, after: object, view: View) -> Array | None:
    if integers is None or not isinstance(after, tuple) or None in after:
        return None
    if math.prod(after) != integers.size:
        raise Mismatch("the result has another number of elements")
    if not integers.flags.c_contiguous and not view.afford(integers.size):
        return None
    return integers.reshape(after)


def _spread(x: AbstractValue, before: object, after: object) -> AbstractValue | None:
    """Return the value with its channels mapped through a reshape, if possible.

    The sizes after the axis must be those after the new one, or the new axis must be the last and
    combine the old one and all following axes.
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
            return _placed(x, axis, 1)
        if inner == 1 and size == rest * following[0] and rest * following[0] <= MOST_CHANNELS:
            return _placed(x, axis, rest)
        if size is None:
            return None
        inner *= size
    return None


def _placed(x: AbstractValue, axis: int, times: int) -> AbstractValue:
    """Return the channels along another axis, each repeated `times` times."""

    def repeated(array: Array) -> Array:
        return np.repeat(array, times)

    codes = None if x.codes is None else x.codes.arranged(repeated)
    return replace(
        x, lowest=repeated(x.lowest), highest=repeated(x.highest), axis=axis, codes=codes
    )


def _variable(x: AbstractValue) -> AbstractValue:
    """Drop the properties of elements at fixed positions."""
    return replace(x, integers=None, sources=())
