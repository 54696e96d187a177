# SPDX-License-Identifier: Apache-2.0
"""Memory layouts: channels first (standard operators) and channels last (compilers)."""

from collections.abc import Sequence
from typing import TypeAlias

import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_graph

CHANNELS_LAST = "qonnx.custom_op.channels_last"
"""The domain of `Conv`, `MaxPool` and `BatchNormalization` with channels last."""

CHANNELS_LAST_OPERATORS = frozenset(("Conv", "MaxPool", "BatchNormalization"))

Order: TypeAlias = tuple[int, ...]


def get_channels_last_order(rank: int) -> Order:
    """Return the permutation that moves the channels from axis 1 to the end."""
    return (0, *range(2, rank), 1) if rank > 1 else tuple(range(rank))


def get_channels_first_order(rank: int) -> Order:
    """Return the permutation that moves the channels from the end to axis 1."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 1 else tuple(range(rank))


def compose_orders(first: Order, second: Order) -> Order:
    """Return the permutation of two Transposes in sequence."""
    return tuple(first[axis] for axis in second)


def invert_order(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def is_channels_last(node: ir.Node) -> bool:
    return node.domain == CHANNELS_LAST and node.op_type in CHANNELS_LAST_OPERATORS


def get_layout_inputs(node: ir.Node) -> range:
    """Return the indices of the inputs that have the layout of the output."""
    return range(2 if node.op_type == "Conv" else 1)


def get_transpose_order(node: ir.Node) -> Order | None:
    """Return the permutation of a Transpose; None for other nodes or if it is unknown."""
    if not is_onnx_op(node, "Transpose") or len(node.inputs) != 1:
        return None
    order, x = get_attribute(node, "perm", ()), node.inputs[0]
    if order:
        return order if sorted(order) == list(range(len(order))) else None
    if x is None or x.shape is None:
        return None
    return tuple(reversed(range(len(x.shape))))


def make_transpose(x: ir.Value, order: Order, name: str) -> ir.Node:
    """Create a Transpose. Its output has the same name, and a known shape."""
    node = ir.Node("", "Transpose", [x], [ir.AttrInt64s("perm", order)], name=name)
    node.outputs[0].name = name
    node.outputs[0].type = x.type
    node.outputs[0].shape = reorder_shape(x.shape, order)
    return node


def insert_transpose(node: ir.Node, order: Order, name: str) -> ir.Value:
    """Insert a Transpose after a node, for all its readers; return the new output.

    The node's own output then has the layout before the Transpose.
    """
    result = node.outputs[0]
    after = make_transpose(result, order, name)
    last = after.outputs[0]
    last.shape = result.shape
    require_graph(node).insert_after(node, after)
    result.replace_all_uses_with(last, replace_graph_outputs=True)
    after.replace_input_with(0, result)
    result.shape = reorder_shape(result.shape, invert_order(order))
    return last


def reorder_shape(shape: ir.Shape | None, order: Sequence[int]) -> ir.Shape | None:
    if shape is None or len(shape) != len(order):
        return None
    return ir.Shape([shape[axis] for axis in order])


_PROVISIONAL = "provisional name"


def set_provisional_name(value: ir.Value, name: str) -> None:
    """Give a value a provisional name: a value with a name of its own may replace it."""
    value.name = name
    value.meta[_PROVISIONAL] = True


def has_provisional_name(value: ir.Value) -> bool:
    return bool(value.meta.get(_PROVISIONAL))


def swap_names(one: ir.Value, other: ir.Value) -> None:
    """Exchange the names of two values, provisional or not."""
    provisional = has_provisional_name(one), has_provisional_name(other)
    one.name, other.name = other.name, one.name
    one.meta[_PROVISIONAL], other.meta[_PROVISIONAL] = reversed(provisional)
