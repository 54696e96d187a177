# SPDX-License-Identifier: Apache-2.0
"""Channels first, as standard operators have them, and channels last, as compilers want them."""

from collections.abc import Sequence
from typing import TypeAlias

import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of

CHANNELS_LAST = "qonnx.custom_op.channels_last"
"""The domain of `Conv`, `MaxPool` and `BatchNormalization` with channels last."""

CHANNELS_LAST_OPERATORS = frozenset(("Conv", "MaxPool", "BatchNormalization"))

Order: TypeAlias = tuple[int, ...]


def to_last(rank: int) -> Order:
    """The order of axes that brings the channels from axis 1 to the end."""
    return (0, *range(2, rank), 1) if rank > 1 else tuple(range(rank))


def to_first(rank: int) -> Order:
    """The order of axes that brings the channels from the end to axis 1."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 1 else tuple(range(rank))


def composed(first: Order, second: Order) -> Order:
    """The order that two Transposes have together."""
    return tuple(first[axis] for axis in second)


def inverse(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def is_channels_last(node: ir.Node) -> bool:
    return node.domain == CHANNELS_LAST and node.op_type in CHANNELS_LAST_OPERATORS


def laid_out_inputs(node: ir.Node) -> range:
    """The inputs of such an operator whose layout is that of its result."""
    return range(2 if node.op_type == "Conv" else 1)


def order_of(node: ir.Node) -> Order | None:
    """The order of a Transpose; None for other nodes, and where it is not known."""
    if (node.domain, node.op_type) != ("", "Transpose") or len(node.inputs) != 1:
        return None
    order, x = attribute_of(node, "perm", ()), node.inputs[0]
    if order:
        return order if sorted(order) == list(range(len(order))) else None
    if x is None or x.shape is None:
        return None
    return tuple(reversed(range(len(x.shape))))


def transpose(x: ir.Value, order: Order, name: str) -> ir.Node:
    """A new Transpose, whose result has the name too, and the type and shape that follow."""
    node = ir.Node("", "Transpose", [x], [ir.AttrInt64s("perm", order)], name=name)
    node.outputs[0].name = name
    node.outputs[0].type = x.type
    node.outputs[0].shape = reordered(x.shape, order)
    return node


def transpose_behind(node: ir.Node, order: Order, name: str) -> ir.Value:
    """The result of a new Transpose, which everybody reads now in the place of the node's own.

    The node's own is what the Transpose makes that of: in the order before.
    """
    assert node.graph is not None, "nodes in a graph only"
    result = node.outputs[0]
    after = transpose(result, order, name)
    last = after.outputs[0]
    last.shape = result.shape
    node.graph.insert_after(node, after)
    result.replace_all_uses_with(last, replace_graph_outputs=True)
    after.replace_input_with(0, result)
    result.shape = reordered(result.shape, inverse(order))
    return last


def reordered(shape: ir.Shape | None, order: Sequence[int]) -> ir.Shape | None:
    if shape is None or len(shape) != len(order):
        return None
    return ir.Shape([shape[axis] for axis in order])


_PASSING = "has a name that nobody gave it"


def name_in_passing(value: ir.Value, name: str) -> None:
    """Give a value a name that it keeps only if nothing with a name of its own takes its place."""
    value.name = name
    value.meta[_PASSING] = True


def is_named_in_passing(value: ir.Value) -> bool:
    return bool(value.meta.get(_PASSING))


def swap_names(one: ir.Value, other: ir.Value) -> None:
    """Exchange names, and whether they have them in passing."""
    passing = is_named_in_passing(one), is_named_in_passing(other)
    one.name, other.name = other.name, one.name
    one.meta[_PASSING], other.meta[_PASSING] = reversed(passing)
