# SPDX-License-Identifier: Apache-2.0
"""Data movement and selection: on tensors of codes, or past elementwise functions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import find_kept_axis, selects_along
from anybit.compiler.partition.element_moves import plan_moves
from anybit.compiler.partition.expressions import (
    Expression,
    InputRoot,
    IntegerTensor,
    PendingMove,
    PlannedInstruction,
    TensorRoot,
)
from anybit.compiler.partition.layout import Layout, make_layout, make_reshape_fields
from anybit.compiler.partition.matrix_products import merge_groups
from anybit.compiler.partition.values import Values
from anybit.compiler.partition.windows import derive_pooling_window
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.cut import extract_subgraph
from anybit.onnx.graph.op_traits import OpTrait, has_trait, list_operators
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.passes import InferShapes
from anybit.onnx.runtime import FAILURES, evaluate

_MOST_PARTS = 32
_MOST_ELEMENTS = 2**22
"""Larger tensors get no arrays of indices."""


def move_elements(values: Values, node: ir.Node) -> Expression | None:
    """Return the expression of a node that moves elements; None for other nodes.

    Raises:
        Unsupported: No instruction moves them like this.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    x = node.inputs[0] if node.inputs else None
    return None if rule is None or x is None else rule(values, node, x)


def _reshape(values: Values, node: ir.Node, x: ir.Value) -> Expression | None:
    """Keep the elements and their order."""
    y = node.outputs[0]
    before, after = values.sizes(x), values.sizes(y)
    if math.prod(before) != math.prod(after):
        raise Unsupported(f"{node.op_type} moves elements from row to row")
    expression = values.expression(x)
    if isinstance(expression.root, InputRoot):
        layout = make_layout(after, 1)
        return _relabel(values, expression, y, layout) if expression.uniform else None
    if expression.layout.single:
        axis = 1 if after[0] == expression.layout.channels else len(after)
        layout = make_layout(after, axis)
        if layout.single:
            return _rename(values, expression, y, layout)
    for axis in (1, len(after)):
        layout = make_layout(after, axis)
        if _have_same_order(expression.layout, layout):
            return _rename(values, expression, y, layout)
    layout = make_layout(after, 1)
    if expression.pending is not None:
        return _postpone_again(values, expression, y, np.arange(math.prod(after)).reshape(after))
    if _get_tensor(expression) is None:
        fields = make_reshape_fields(expression.layout, layout)
        move = PendingMove(expression.layout, p.Reshape, fields)
        return _postpone(values, expression, y, move, layout)
    source = values.codes(x, expression.layout.axis)
    target = IntegerTensor(y, layout, source.grid, source.stage)
    fields = make_reshape_fields(source.layout, layout)
    values.append(PlannedInstruction(p.Reshape, (source,), target, fields))
    return values.set_tensor(y, target)


def _have_same_order(before: Layout, after: Layout) -> bool:
    """Return whether layouts differ by axes of size 1 only, so that elements stay where they are.

    Channels are on the same side of the others in both.
    """
    same = before.channels_first == after.channels_first
    return same and before == replace(after, rank=before.rank, axis=before.axis)


def _transpose(values: Values, node: ir.Node, x: ir.Value) -> Expression | None:
    """Move the channels to the front or the end: only the layout changes. Else move elements."""
    y, rank = node.outputs[0], len(values.sizes(x)) + 1
    order = get_attribute(node, "perm", ()) or tuple(range(rank))[::-1]
    expression = values.expression(x)
    if isinstance(expression.root, InputRoot):
        return None
    if expression.pending is not None and expression.pending.kind is p.Gather:
        return _gather(values, node, x)  # its numbers have the order of the axes
    axes = [axis for axis in range(1, rank) if axis != expression.layout.axis]
    for axis in (1, rank - 1):
        expected = list(axes)
        expected.insert(axis - 1, expression.layout.axis)
        if tuple(order) == (0, *expected):
            return _rename(values, expression, y, replace(expression.layout, axis=axis))
    if rank == 2 and tuple(order) == (0, 1):
        return _rename(values, expression, y, expression.layout)
    return _gather(values, node, x)


def _rename(values: Values, expression: Expression, y: ir.Value, layout: Layout) -> Expression:
    """Give the same elements another name and layout; a tensor of codes stays the tensor."""
    tensor = _get_tensor(expression)
    if tensor is None:
        return _relabel(values, expression, y, layout)
    return values.set_tensor(y, replace(tensor, value=y, layout=layout))


def _postpone(
    values: Values, expression: Expression, y: ir.Value, move: PendingMove, layout: Layout
) -> Expression | None:
    """Let a movement wait for codes; None if another one waits already."""
    if expression.pending is not None or isinstance(expression.root, InputRoot):
        return None
    return replace(_relabel(values, expression, y, layout), pending=move)


def _postpone_again(
    values: Values, expression: Expression, y: ir.Value, numbers: Array
) -> Expression | None:
    """Join a movement with the one that waits already; None if that one takes largest elements.

    Args:
        values: The values.
        expression: The expression before the movement.
        y: The value after it.
        numbers: The number of an element before it for each element after it.
    """
    waiting = expression.pending
    if waiting is None or waiting.kind is p.MaxPool or isinstance(expression.root, InputRoot):
        return None
    if waiting.kind is p.Gather:
        numbers = waiting.fields["numbers"].ravel()[numbers]
    elif bool(waiting.fields["target_channels_first"]) != expression.layout.channels_first:
        numbers = _number_before_transpose(expression.layout)[numbers]
    move = PendingMove(waiting.layout, p.Gather, {"numbers": numbers})
    moved = replace(_relabel(values, expression, y, make_layout(numbers.shape, 1)), pending=move)
    last = make_layout(numbers.shape, numbers.ndim)
    return merge_groups(moved, last) or moved


def _number_before_transpose(layout: Layout) -> Array:
    """Return the number of each element before the channels moved to their side."""
    count, channels = math.prod(layout.sizes), layout.channels
    if layout.channels_first:
        return np.arange(count).reshape(-1, channels).T.ravel()
    return np.arange(count).reshape(channels, -1).T.ravel()


def _relabel(values: Values, expression: Expression, y: ir.Value, layout: Layout) -> Expression:
    function = expression.function(values.model)
    if len(function.parts) > _MOST_PARTS:
        raise Unsupported(
            "its epilogue alternates between elementwise operators and data movement: "
            f"{len(function.parts)} parts, {_MOST_PARTS} at most"
        )
    return Expression(
        expression.root,
        y,
        layout,
        function,
        (y,),
        moved_from=expression,
        pending=expression.pending,
    )


def _get_tensor(expression: Expression) -> IntegerTensor | None:
    """Return the value as a tensor of codes; None for a function of one."""
    root = expression.root
    if isinstance(root, TensorRoot) and root.tensor.value is expression.value:
        return root.tensor
    return None


def _pool(values: Values, node: ir.Node, x: ir.Value) -> Expression | None:
    """Select the largest element, which has the largest index."""
    expression = values.expression(x)
    if len(node.outputs) > 1 and node.outputs[1].uses():
        return None
    axis = find_kept_axis(node, expression.layout.rank)
    if axis is None:
        raise Unsupported("it keeps neither its channels nor its last axis")
    y = node.outputs[0]
    sizes = values.sizes(y)
    layout = make_layout(sizes, 1 if axis == 1 else len(sizes))
    if _get_tensor(expression) is None:
        if expression.layout.rank > 2 and expression.layout.axis != axis:
            return None
        window = derive_pooling_window(node, expression.layout, layout)
        move = PendingMove(expression.layout, p.MaxPool, {"window": window})
        return _postpone(values, expression, y, move, layout)
    source = values.codes(x, axis)
    if source.grid.scale < 0:
        raise Unsupported("its input has a negative scale")
    window = derive_pooling_window(node, source.layout, layout)
    target = IntegerTensor(y, layout, source.grid, source.stage)
    values.append(PlannedInstruction(p.MaxPool, (source,), target, {"window": window}))
    return values.set_tensor(y, target)


def _concatenate(values: Values, node: ir.Node, x: ir.Value) -> Expression | None:
    """Join tensors of the same grid along their channels."""
    y = node.outputs[0]
    sizes = values.sizes(y)
    axis = get_attribute(node, "axis", 1) % (len(sizes) + 1)
    inputs = [value for value in node.inputs if value is not None]
    if any(is_constant(value) for value in inputs):
        raise Unsupported("it concatenates a constant")
    if axis not in (1, len(sizes)):
        raise Unsupported(f"it concatenates along axis {axis}, not along channels")
    if not any(_is_computed(values, value) for value in inputs):
        return None
    sources = [values.codes(value, axis) for value in inputs]
    grid = values.grid(y)
    stages = {source.stage for source in sources}
    if grid is None or any(source.grid != grid for source in sources) or len(stages) > 1:
        raise Unsupported("it concatenates tensors of different scales")
    target = IntegerTensor(y, make_layout(sizes, axis), grid, sources[0].stage)
    first = 0
    for source in sources:
        fields = _select_all_elements(source.layout, first)
        values.append(PlannedInstruction(p.Gather, (source,), target, fields))
        first += source.layout.channels
    return values.set_tensor(y, target)


def _is_computed(values: Values, value: ir.Value) -> bool:
    expression = values.expression(value)
    return not isinstance(expression.root, InputRoot) or bool(expression.nodes)


def _select_all_elements(layout: Layout, first: int) -> dict[str, object]:
    """Return the fields of a Gather of a whole tensor to the channels from `first` on."""
    rows, columns, channels = (
        np.arange(size, dtype=np.int32) for size in (layout.height, layout.width, layout.channels)
    )
    return {
        "rows": rows,
        "columns": columns,
        "channels": channels,
        "first_channel": first,
        "fill": 0,
    }


def _gather(values: Values, node: ir.Node, x: ir.Value) -> Expression | None:
    """Move elements as Slice, Pad or DepthToSpace do, by tracing their numbers."""
    expression = values.expression(x)
    if _get_tensor(expression) is None:
        return _postpone_gather(values, node, expression)
    source = values.codes(x, expression.layout.axis)
    numbers = trace_elements(values.model, node, x, values.sizes(x))
    first_output = None
    for y in reversed(node.outputs):
        sizes = values.sizes(y)
        layout = make_layout(sizes, 1 if source.layout.axis == 1 else len(sizes))
        target = IntegerTensor(y, layout, source.grid, source.stage)
        values.append(*plan_moves(source, target, numbers[str(y.name)]))
        first_output = values.set_tensor(y, target)
    return first_output


def _postpone_gather(values: Values, node: ir.Node, expression: Expression) -> Expression | None:
    """Let a permutation of elements wait for codes; None for other nodes."""
    y = node.outputs[0]
    sizes, before = values.sizes(y), expression.layout
    if node.op_type not in _PERMUTATIONS or isinstance(expression.root, InputRoot):
        return None
    layout = make_layout(sizes, 1 if before.axis == 1 else len(sizes))
    numbers = trace_elements(values.model, node, expression.value, before.sizes)
    if expression.pending is not None:
        return _postpone_again(values, expression, y, numbers[str(y.name)])
    move = PendingMove(before, p.Gather, {"numbers": numbers[str(y.name)]})
    return _postpone(values, expression, y, move, layout)


_PERMUTATIONS = ("DepthToSpace", "Slice", "SpaceToDepth", "Transpose")
_TRACED = ("Expand", "Gather", "Pad", "Resize", "Split", "Tile", "Upsample")

_RULES: dict[str, Callable[[Values, ir.Node, ir.Value], Expression | None]] = {
    **dict.fromkeys(list_operators(OpTrait.RESHAPE), _reshape),
    **dict.fromkeys((*_PERMUTATIONS, *_TRACED), _gather),
    **dict.fromkeys(list_operators(OpTrait.SELECTION), _pool),
    "Concat": _concatenate,
    "Transpose": _transpose,
}


def trace_elements(
    model: ir.Model, node: ir.Node, x: ir.Value, sizes: tuple[int, ...]
) -> dict[str, Array]:
    """Run a node on the numbers 0, 1, ... of the elements of a row.

    Returns:
        The number of each element of the outputs; -1 is a zero that the node fills in.

    Raises:
        Unsupported: It computes new elements, or too many, or takes some from other rows.
    """
    if any(
        value is not None and value is not x and not is_constant(value) for value in node.inputs
    ):
        raise Unsupported(f"{node.op_type} reads sizes that are not constant")
    if has_trait(node, OpTrait.RESIZE) and get_attribute(node, "mode", "nearest") != "nearest":
        raise Unsupported(f"{node.op_type} computes new elements")
    if get_attribute(node, "extrapolation_value", 0.0):
        raise Unsupported(f"{node.op_type} has an extrapolation_value other than 0")
    count = math.prod(sizes)
    if count > _MOST_ELEMENTS:
        raise Unsupported("it has too many elements")
    piece = extract_subgraph(model, [node], list(node.outputs))
    whole = get_proven_sizes(x, model)
    rows = 1 if whole is not None and whole[0] == 1 else 2  # sizes may be those of one row
    if rows > 1 and selects_along(node, len(sizes) + 1, 0):
        raise Unsupported(f"{node.op_type} selects along the batch axis")
    numbers = np.arange(1, rows * count + 1, dtype=np.float32).reshape(rows, *sizes)
    feeds = {
        str(value.name): numbers if value is x else read_array(value)
        for value in node.inputs
        if value is not None
    }
    _check_sizes(extract_subgraph(model, [node], list(node.outputs)), feeds, x)
    for value in (value for moved in piece.graph for value in moved.outputs):
        value.shape = None
    try:
        results = evaluate(piece, feeds)
    except FAILURES as error:
        raise Unsupported(f"{node.op_type} cannot be evaluated on indices: {error}") from error
    for result in results.values():
        shifted = np.where(result[:1] == 0, 0, result[:1] + count)
        if len(result) != rows or not np.array_equal(result[1:], shifted[: rows - 1]):
            raise Unsupported(f"{node.op_type} moves elements from row to row")
    return {name: result[0].astype(np.int64) - 1 for name, result in results.items()}


def _check_sizes(piece: ir.Model, feeds: Mapping[str, Array], x: ir.Value) -> None:
    """Check the sizes of the results of a piece of a graph, which is spent.

    Raises:
        Unsupported: They are too large, or unknown.
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
        sizes = get_proven_sizes(y, piece)
        if sizes is None or None in sizes:
            raise Unsupported("its shape is unknown at compile time")
        if math.prod(size for size in sizes if size is not None) > 2 * _MOST_ELEMENTS:
            raise Unsupported("its result has too many elements")
