# SPDX-License-Identifier: Apache-2.0
"""What moves or selects elements: on tensors of codes, or past functions of single elements."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import onnx_ir as ir

from anybit.lowbit import program as p
from anybit.lowbit.parts import Coded, Codes, CodesRoot, Expression, Pending, PortRoot
from anybit.lowbit.places import Place, place_of
from anybit.lowbit.planning import Planner, reshape_fields
from anybit.lowbit.selections import numbers_moved, separated
from anybit.lowbit.uncovered import Uncovered
from anybit.lowbit.windows import pooling_window
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.op_traits import OpTrait, operators_with

_MOST_PARTS = 32


class Graph(Protocol):
    """What a walk knows and does."""

    model: ir.Model
    planner: Planner

    def expression(self, value: ir.Value) -> Expression: ...

    def sizes(self, value: ir.Value) -> tuple[int, ...]: ...

    def wanted_codes(self, value: ir.Value) -> Codes | None: ...

    def codes(self, value: ir.Value, axis: int) -> Coded: ...

    def coded(self, value: ir.Value, coded: Coded) -> Expression: ...


def moved(graph: Graph, node: ir.Node) -> Expression | None:
    """The expression of what a node gives that moves elements; None for other nodes.

    Raises:
        Uncovered: It moves them as no instruction does.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    x = node.inputs[0] if node.inputs else None
    return None if rule is None or x is None else rule(graph, node, x)


def _reshaped(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """The same elements in the same order."""
    y = node.outputs[0]
    before, after = graph.sizes(x), graph.sizes(y)
    if math.prod(before) != math.prod(after):
        raise Uncovered(f"{node.op_type} moves elements from row to row")
    expression = graph.expression(x)
    if isinstance(expression.root, PortRoot):
        return _relabelled(graph, expression, y, place_of(after, 1)) if expression.uniform else None
    if expression.place.single:
        axis = 1 if after[0] == expression.place.channels else len(after)
        place = place_of(after, axis)
        if place.single:
            return _renamed(graph, expression, y, place)
    place = place_of(after, 1)
    if not _is_coded(expression):
        fields = reshape_fields(expression.place, place)
        return _pending(graph, expression, y, Pending(expression.place, p.Reshape, fields), place)
    source = graph.codes(x, expression.place.axis)
    target = Coded(y, place, source.codes, source.stage)
    fields = reshape_fields(source.place, place)
    graph.planner.add(p.Reshape, (source,), target, **fields)
    return graph.coded(y, target)


def _transposed(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """Channels that go to the front or the end, with the others in their order: a name only."""
    y, rank = node.outputs[0], len(graph.sizes(x)) + 1
    order = attribute_of(node, "perm", ()) or tuple(range(rank))[::-1]
    expression = graph.expression(x)
    if isinstance(expression.root, PortRoot):
        return None
    axes = [axis for axis in range(1, rank) if axis != expression.place.axis]
    for axis in (1, rank - 1):
        wanted = list(axes)
        wanted.insert(axis - 1, expression.place.axis)
        if tuple(order) == (0, *wanted):
            return _renamed(graph, expression, y, replace(expression.place, axis=axis))
    if rank == 2 and tuple(order) == (0, 1):
        return _renamed(graph, expression, y, expression.place)
    raise Uncovered(f"Transpose by {list(order)} is none of channels alone")


def _renamed(graph: Graph, expression: Expression, y: ir.Value, place: Place) -> Expression:
    """The same elements by another name: a tensor of codes stays the tensor."""
    if _is_coded(expression):
        assert isinstance(expression.root, CodesRoot), "asked before"
        return graph.coded(y, replace(expression.root.coded, value=y, place=place))
    return _relabelled(graph, expression, y, place)


def _pending(
    graph: Graph, expression: Expression, y: ir.Value, pending: Pending, place: Place
) -> Expression | None:
    """A move of what is not yet codes: it waits until it is."""
    if expression.pending is not None or isinstance(expression.root, PortRoot):
        return None
    return replace(_relabelled(graph, expression, y, place), pending=pending)


def _relabelled(graph: Graph, expression: Expression, y: ir.Value, place: Place) -> Expression:
    function = expression.function(graph.model)
    if len(function.parts) > _MOST_PARTS:
        raise Uncovered("too many moves lie between it and its sum")
    return Expression(
        expression.root, y, place, function, (y,), behind=expression, pending=expression.pending
    )


def _is_coded(expression: Expression) -> bool:
    """Whether it is a tensor of codes itself, and no function of one."""
    return (
        isinstance(expression.root, CodesRoot) and expression.root.coded.value is expression.value
    )


def _pooled(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """The largest of some elements, which has the largest index."""
    expression = graph.expression(x)
    if len(node.outputs) > 1 and node.outputs[1].uses():
        return None
    y = node.outputs[0]
    place = place_of(graph.sizes(y), 1)
    if not _is_coded(expression):
        if expression.place.rank > 2 and not expression.place.channels_first:
            return None
        window = pooling_window(node, expression.place, place)
        pending = Pending(expression.place, p.MaxPool, {"window": window})
        return _pending(graph, expression, y, pending, place)
    source = graph.codes(x, 1)
    if source.codes.scale < 0:
        raise Uncovered("its input has a negative scale")
    window = pooling_window(node, source.place, place)
    target = Coded(y, place, source.codes, source.stage)
    graph.planner.add(p.MaxPool, (source,), target, window=window)
    return graph.coded(y, target)


def _concatenated(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """Tensors of the same codes one behind another, along their channels."""
    y = node.outputs[0]
    sizes = graph.sizes(y)
    axis = attribute_of(node, "axis", 1) % (len(sizes) + 1)
    values = [value for value in node.inputs if value is not None]
    if any(is_constant(value) for value in values) or axis not in (1, len(sizes)):
        raise Uncovered("it puts together something else than channels")
    if not any(_has_codes(graph, value) for value in values):
        return None
    sources = [graph.codes(value, axis) for value in values]
    wanted = graph.wanted_codes(y)
    stages = {source.stage for source in sources}
    if wanted is None or any(source.codes != wanted for source in sources) or len(stages) > 1:
        raise Uncovered("it puts together tensors of different scales")
    target = Coded(y, place_of(sizes, axis), wanted, sources[0].stage)
    first = 0
    for source in sources:
        graph.planner.add(p.Gather, (source,), target, **_indices(source.place, first))
        first += source.place.channels
    return graph.coded(y, target)


def _has_codes(graph: Graph, value: ir.Value) -> bool:
    expression = graph.expression(value)
    return not isinstance(expression.root, PortRoot) or bool(expression.nodes)


def _indices(place: Place, first: int) -> dict[str, object]:
    """The fields of a Gather of everything."""
    rows, columns, channels = (
        np.arange(size, dtype=np.int32) for size in (place.height, place.width, place.channels)
    )
    return {
        "rows": rows,
        "columns": columns,
        "channels": channels,
        "first_channel": first,
        "fill": 0,
    }


def _gathered(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """Slice, Pad, Split, Resize and the like: found by moving the numbers of the elements."""
    expression = graph.expression(x)
    if not _is_coded(expression):
        return None
    source = graph.codes(x, expression.place.axis)
    results = numbers_moved(graph.model, node, x, graph.sizes(x))
    found = None
    for y in reversed(node.outputs):
        place = place_of(graph.sizes(y), source.place.axis)
        fields = separated(results[str(y.name)], source.place, place)
        code, rest = divmod(-source.codes.lowest, source.codes.step)
        fill = code if not rest and 0 <= code < source.codes.levels else None
        if fill is None and any((fields[key] < 0).any() for key in ("rows", "columns", "channels")):
            raise Uncovered("it fills in zeros, which are none of the codes")
        target = Coded(y, place, source.codes, source.stage)
        fixed = {"first_channel": 0, "fill": fill or 0}
        graph.planner.add(p.Gather, (source,), target, **fields, **fixed)
        found = graph.coded(y, target)
    return found


_INDEXED = ("Gather", "Pad", "Resize", "Slice", "Split", "Tile", "Upsample")
_RULES: dict[str, Callable[[Graph, ir.Node, ir.Value], Expression | None]] = {
    **dict.fromkeys(operators_with(OpTrait.RESHAPE), _reshaped),
    **dict.fromkeys(_INDEXED, _gathered),
    **dict.fromkeys(("GlobalMaxPool", "MaxPool"), _pooled),
    "Concat": _concatenated,
    "Transpose": _transposed,
}
