# SPDX-License-Identifier: Apache-2.0
"""What moves or selects elements: on tensors of codes, or past functions of single elements."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import onnx_ir as ir

from anybit.compiler.lower.lowerer import Lowerer, reshape_fields
from anybit.compiler.operators import CONCATENATION, GATHERING, POOLING, RESHAPING, TRANSPOSITION
from anybit.compiler.partition.expressions import (
    Expression,
    InputRoot,
    IntegerGrid,
    IntegerTensor,
    PendingMove,
    TensorRoot,
)
from anybit.compiler.partition.layout import Layout, layout_of
from anybit.compiler.partition.windows import pooling_window
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.cut import cut
from anybit.onnx.graph.shapes import sizes_that_follow
from anybit.onnx.passes import InferShapes
from anybit.onnx.runtime import FAILURES, evaluate

_MOST_PARTS = 32


class Graph(Protocol):
    """What a walk knows and does."""

    model: ir.Model
    planner: Lowerer

    def expression(self, value: ir.Value) -> Expression: ...

    def sizes(self, value: ir.Value) -> tuple[int, ...]: ...

    def wanted_codes(self, value: ir.Value) -> IntegerGrid | None: ...

    def codes(self, value: ir.Value, axis: int) -> IntegerTensor: ...

    def coded(self, value: ir.Value, coded: IntegerTensor) -> Expression: ...


def move_elements(graph: Graph, node: ir.Node) -> Expression | None:
    """The expression of what a node gives that moves elements; None for other nodes.

    Raises:
        Unsupported: It moves them as no instruction does.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    x = node.inputs[0] if node.inputs else None
    return None if rule is None or x is None else rule(graph, node, x)


def _reshaped(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """The same elements in the same order."""
    y = node.outputs[0]
    before, after = graph.sizes(x), graph.sizes(y)
    if math.prod(before) != math.prod(after):
        raise Unsupported(f"{node.op_type} moves elements from row to row")
    expression = graph.expression(x)
    if isinstance(expression.root, InputRoot):
        return (
            _relabelled(graph, expression, y, layout_of(after, 1)) if expression.uniform else None
        )
    if expression.place.single:
        axis = 1 if after[0] == expression.place.channels else len(after)
        place = layout_of(after, axis)
        if place.single:
            return _renamed(graph, expression, y, place)
    place = layout_of(after, 1)
    if not _is_coded(expression):
        fields = reshape_fields(expression.place, place)
        return _pending(
            graph, expression, y, PendingMove(expression.place, p.Reshape, fields), place
        )
    source = graph.codes(x, expression.place.axis)
    target = IntegerTensor(y, place, source.codes, source.stage)
    fields = reshape_fields(source.place, place)
    graph.planner.add(p.Reshape, (source,), target, **fields)
    return graph.coded(y, target)


def _transposed(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """Channels that go to the front or the end, with the others in their order: a name only."""
    y, rank = node.outputs[0], len(graph.sizes(x)) + 1
    order = attribute_of(node, "perm", ()) or tuple(range(rank))[::-1]
    expression = graph.expression(x)
    if isinstance(expression.root, InputRoot):
        return None
    axes = [axis for axis in range(1, rank) if axis != expression.place.axis]
    for axis in (1, rank - 1):
        wanted = list(axes)
        wanted.insert(axis - 1, expression.place.axis)
        if tuple(order) == (0, *wanted):
            return _renamed(graph, expression, y, replace(expression.place, axis=axis))
    if rank == 2 and tuple(order) == (0, 1):
        return _renamed(graph, expression, y, expression.place)
    raise Unsupported(f"Transpose by {list(order)} is none of channels alone")


def _renamed(graph: Graph, expression: Expression, y: ir.Value, place: Layout) -> Expression:
    """The same elements by another name: a tensor of codes stays the tensor."""
    if _is_coded(expression):
        assert isinstance(expression.root, TensorRoot), "asked before"
        return graph.coded(y, replace(expression.root.coded, value=y, place=place))
    return _relabelled(graph, expression, y, place)


def _pending(
    graph: Graph, expression: Expression, y: ir.Value, pending: PendingMove, place: Layout
) -> Expression | None:
    """A move of what is not yet codes: it waits until it is."""
    if expression.pending is not None or isinstance(expression.root, InputRoot):
        return None
    return replace(_relabelled(graph, expression, y, place), pending=pending)


def _relabelled(graph: Graph, expression: Expression, y: ir.Value, place: Layout) -> Expression:
    function = expression.function(graph.model)
    if len(function.parts) > _MOST_PARTS:
        raise Unsupported("too many moves lie between it and its sum")
    return Expression(
        expression.root, y, place, function, (y,), behind=expression, pending=expression.pending
    )


def _is_coded(expression: Expression) -> bool:
    """Whether it is a tensor of codes itself, and no function of one."""
    return (
        isinstance(expression.root, TensorRoot) and expression.root.coded.value is expression.value
    )


def _pooled(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """The largest of some elements, which has the largest index."""
    expression = graph.expression(x)
    if len(node.outputs) > 1 and node.outputs[1].uses():
        return None
    y = node.outputs[0]
    place = layout_of(graph.sizes(y), 1)
    if not _is_coded(expression):
        if expression.place.rank > 2 and not expression.place.channels_first:
            return None
        window = pooling_window(node, expression.place, place)
        pending = PendingMove(expression.place, p.MaxPool, {"window": window})
        return _pending(graph, expression, y, pending, place)
    source = graph.codes(x, 1)
    if source.codes.scale < 0:
        raise Unsupported("its input has a negative scale")
    window = pooling_window(node, source.place, place)
    target = IntegerTensor(y, place, source.codes, source.stage)
    graph.planner.add(p.MaxPool, (source,), target, window=window)
    return graph.coded(y, target)


def _concatenated(graph: Graph, node: ir.Node, x: ir.Value) -> Expression | None:
    """Tensors of the same codes one behind another, along their channels."""
    y = node.outputs[0]
    sizes = graph.sizes(y)
    axis = attribute_of(node, "axis", 1) % (len(sizes) + 1)
    values = [value for value in node.inputs if value is not None]
    if any(is_constant(value) for value in values) or axis not in (1, len(sizes)):
        raise Unsupported("it puts together something else than channels")
    if not any(_has_codes(graph, value) for value in values):
        return None
    sources = [graph.codes(value, axis) for value in values]
    wanted = graph.wanted_codes(y)
    stages = {source.stage for source in sources}
    if wanted is None or any(source.codes != wanted for source in sources) or len(stages) > 1:
        raise Unsupported("it puts together tensors of different scales")
    target = IntegerTensor(y, layout_of(sizes, axis), wanted, sources[0].stage)
    first = 0
    for source in sources:
        graph.planner.add(p.Gather, (source,), target, **_indices(source.place, first))
        first += source.place.channels
    return graph.coded(y, target)


def _has_codes(graph: Graph, value: ir.Value) -> bool:
    expression = graph.expression(value)
    return not isinstance(expression.root, InputRoot) or bool(expression.nodes)


def _indices(place: Layout, first: int) -> dict[str, object]:
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
    results = trace_elements(graph.model, node, x, graph.sizes(x))
    found = None
    for y in reversed(node.outputs):
        place = layout_of(graph.sizes(y), source.place.axis)
        fields = separate_axes(results[str(y.name)], source.place, place)
        code, rest = divmod(-source.codes.lowest, source.codes.step)
        fill = code if not rest and 0 <= code < source.codes.levels else None
        if fill is None and any((fields[key] < 0).any() for key in ("rows", "columns", "channels")):
            raise Unsupported("it fills in zeros, which are none of the codes")
        target = IntegerTensor(y, place, source.codes, source.stage)
        fixed = {"first_channel": 0, "fill": fill or 0}
        graph.planner.add(p.Gather, (source,), target, **fields, **fixed)
        found = graph.coded(y, target)
    return found


_RULES: dict[str, Callable[[Graph, ir.Node, ir.Value], Expression | None]] = {
    **dict.fromkeys(RESHAPING, _reshaped),
    **dict.fromkeys(GATHERING, _gathered),
    **dict.fromkeys(POOLING, _pooled),
    CONCATENATION: _concatenated,
    TRANSPOSITION: _transposed,
}


# Index arrays of larger tensors are not made.
_MOST_ELEMENTS = 2**22


def trace_elements(
    model: ir.Model, node: ir.Node, x: ir.Value, sizes: tuple[int, ...]
) -> dict[str, Array]:
    """What the node makes of the numbers 1, 2, ... of the elements of a row; 0 is filled in.

    Raises:
        Unsupported: It computes new elements, or too many, or takes some from other rows.
    """
    if any(
        value is not None and value is not x and not is_constant(value) for value in node.inputs
    ):
        raise Unsupported(f"{node.op_type} reads sizes that are not constant")
    if (
        node.op_type in ("Resize", "Upsample")
        and attribute_of(node, "mode", "nearest") != "nearest"
    ):
        raise Unsupported(f"{node.op_type} computes new elements")
    count = math.prod(sizes)
    if count > _MOST_ELEMENTS:
        raise Unsupported("it has too many elements")
    piece = cut(model, [node], list(node.outputs))
    numbers = np.arange(1, 2 * count + 1, dtype=np.float32).reshape(2, *sizes)
    feeds = {
        str(value.name): numbers if value is x else array_of(value)
        for value in node.inputs
        if value is not None
    }
    _check_sizes(cut(model, [node], list(node.outputs)), feeds, x)
    for value in (value for each in piece.graph for value in each.outputs):
        value.shape = None
    try:
        results = evaluate(piece, feeds)
    except FAILURES as error:
        raise Unsupported(f"{node.op_type} cannot be followed: {error}") from error
    for result in results.values():
        shifted = np.where(result[:1] == 0, 0, result[:1] + count)
        if len(result) != 2 or not np.array_equal(result[1:], shifted):
            raise Unsupported(f"{node.op_type} moves elements from row to row")
    return {name: result[0].astype(np.int64) - 1 for name, result in results.items()}


def _check_sizes(piece: ir.Model, feeds: Mapping[str, Array], x: ir.Value) -> None:
    """That what a piece makes of x is not too large. The piece is spent.

    Raises:
        Unsupported: It is, or nothing says how large it is.
    """
    for value in piece.graph.inputs:
        array = feeds[str(value.name)]
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
        if value.name != x.name:
            value.const_value = ir.tensor(array)
            piece.graph.register_initializer(value)
    InferShapes()(piece)
    for y in piece.graph.outputs:
        sizes = sizes_that_follow(y, piece)
        if sizes is None or None in sizes:
            raise Unsupported("its sizes are not known before it runs")
        if math.prod(size for size in sizes if size is not None) > 2 * _MOST_ELEMENTS:
            raise Unsupported("its result has too many elements")


def separate_axes(numbers: Array, source: Layout, target: Layout) -> dict[str, Array]:
    """Numbers of elements as rows, columns and channels that each follow from one of the three.

    Raises:
        Unsupported: They do not.
    """
    if target.channels_first:
        numbers = numbers.reshape(target.channels, target.height, target.width).transpose(1, 2, 0)
    numbers = numbers.reshape(target.height, target.width, target.channels)
    if source.channels_first:
        channel, place = np.divmod(numbers, source.height * source.width)
        row, column = np.divmod(place, source.width)
    else:
        place, channel = np.divmod(numbers, source.channels)
        row, column = np.divmod(place, source.width)
    missing = numbers < 0
    lines = []
    for axis, index in enumerate((row, column, channel)):
        others = tuple(other for other in range(3) if other != axis)
        filled = np.where(missing, -1, index).max(axis=others)
        lines.append(np.asarray(filled, np.int32))
    rows, columns, channels = lines
    whole = np.ix_(rows, columns, channels)
    empty = (whole[0] < 0) | (whole[1] < 0) | (whole[2] < 0)
    fits = all(
        np.array_equal(np.where(missing, 0, index), np.where(empty, 0, line))
        for index, line in zip((row, column, channel), np.broadcast_arrays(*whole), strict=True)
    )
    if not fits or not np.array_equal(missing, empty):
        raise Unsupported("it moves elements otherwise than by rows, columns and channels")
    return {"rows": rows, "columns": columns, "channels": channels}
