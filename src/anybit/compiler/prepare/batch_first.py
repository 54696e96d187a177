# SPDX-License-Identifier: Apache-2.0
"""The batch as the first axis around attention, where a file has tokens before it.

Programs work on the rows of the first axis, and attention is independent of the other samples of a
batch. Exporters of PyTorch's attention put tokens first, at least between the layers of attention.
Nodes that treat positions alike work on any order of these, and the moves between them vanish.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import has_two_operands
from anybit.compiler.prepare.axis_factors import (
    Axis,
    AxisFactor,
    AxisLayout,
    Move,
    flatten,
    get_axis_size,
    plan_moves,
)
from anybit.compiler.prepare.axis_tracing import AxisTracer
from anybit.compiler.prepare.flatten_rows import get_merged_sizes
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor, is_read, replace_value
from anybit.onnx.graph.names import SOURCE_NAME_KEY, get_source_name
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.onnx.graph.reductions import get_reduced_axes
from anybit.onnx.graph.require import require_input, require_producer
from anybit.onnx.passes import GemmToMatMul, InferShapes
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize

_MOVES_TO_FILE = "anybit.moves_to_file"
"""The metadata key of the moves of values whose axes have another order than in the file."""

_MOVES = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_OPERAND_RANK, _RANK = 4, 3
_MOST_GROUPS = 32
"""More groups than self-attention and cross-attention have."""
_FIRST_OPSET = 13
"""The first opset in which quantizers have axes that count from the back."""


def put_batch_first(model: ir.Model, fixed: Collection[ir.Node] = ()) -> None:
    """Let nodes before and after heads of attention work on batch x tokens x channels, in place.

    Only elements move: every value is the same as before. Values with other readers, and outputs,
    get their axes back. Gemm becomes MatMul and Add.

    Args:
        model: A model whose shapes are inferred.
        fixed: Nodes that must not be replaced.
    """
    opset = model.graph.opset_imports.get("", 1)
    if opset < _FIRST_OPSET or not any(map(has_two_operands, model.graph)):
        return
    changed = 0
    while changed < _MOST_GROUPS and _move_group(model, fixed):
        changed += 1
    if changed:
        _shorten_moves(model)


def _move_group(model: ir.Model, fixed: Collection[ir.Node]) -> bool:
    """Move the axes of one group of nodes; return whether there was one."""
    tracer = AxisTracer(model)
    for group in _find_groups(model, tracer):
        rewriting = _Rewriting(model, tracer, group)
        gemms = {node for node in group.nodes if is_onnx_op(node, "Gemm")}
        if gemms & {*fixed} or not rewriting.is_possible():
            continue
        if gemms:
            _replace_gemms(gemms, model)
        else:
            rewriting.run()
            model.graph.sort()
        InferShapes()(model)
        return True
    return False


def _shorten_moves(model: ir.Model) -> None:
    """Let the moves before products of two tensors follow from one another without detours.

    Their sizes are those of axes that they change, so that they hold for any size of the batch.
    """
    tracer, editor = AxisTracer(model), Editor(model)
    for node in list(model.graph):
        y = node.outputs[0] if tracer.is_move(node) else None
        layout = None if y is None else tracer.get_layout(y)
        if y is None or layout is None or all(tracer.is_move(use) for use, _ in y.uses()):
            continue
        source = tracer.find_source(y)
        moves = plan_moves(tracer.get_layout(source) or (), layout)
        if moves is None or y.is_graph_output() or node.inputs[0] is source:
            continue
        result = insert_moves(source, moves, node, editor)
        result.shape = y.shape
        replace_value(y, result)
        _remove_unread(y)
    InferShapes()(model)


def _replace_gemms(gemms: Collection[ir.Node], model: ir.Model) -> None:
    """Replace Gemm, which multiplies matrices only; products keep the names of their layers."""
    names = {str(node.outputs[0].name) for node in gemms}
    GemmToMatMul(gemms)(model)
    for node in model.graph:
        name = str(node.outputs[0].name)
        if is_onnx_op(node, "Add") and name in names:
            sums = require_input(node)
            sums.metadata_props[SOURCE_NAME_KEY] = name


def get_moves_to_file(value: ir.Value) -> tuple[Move, ...] | None:
    """Return what gives a value the axes that it has in the file; None if nothing does."""
    moves = value.meta.get(_MOVES_TO_FILE, ())
    is_merged = bool(moves) and get_merged_sizes(value) is not None
    return moves if isinstance(moves, tuple) and not is_merged else None


@dataclass(frozen=True, eq=False)
class _Group:
    """Nodes that treat the same positions alike.

    Attributes:
        nodes: The nodes in execution order.
        positions: The axes that they get: the batch, then the tokens.
    """

    nodes: tuple[ir.Node, ...]
    positions: AxisLayout


def _find_groups(model: ir.Model, tracer: AxisTracer) -> list[_Group]:
    """Return the nodes whose positions attention has in another order."""
    operands = [
        layout
        for node in model.graph
        if has_two_operands(node)
        for value in node.inputs
        if value is not None and (layout := tracer.get_layout(value)) is not None
        if len(layout) == _OPERAND_RANK
    ]
    nodes: dict[frozenset[AxisFactor], list[ir.Node]] = {}
    for node in tracer.alike:
        own = tracer.get_positions(node)
        positions = flatten(own)
        if len(own) < _RANK and len({*positions}) == len(positions):
            nodes.setdefault(frozenset(positions), []).append(node)
    groups = []
    for factors, alike in nodes.items():
        chosen = _choose_positions(factors, operands)
        if chosen and not all(tracer.get_positions(node) == chosen for node in alike):
            groups.append(_Group(tuple(alike), chosen))
    return groups


def _choose_positions(
    factors: frozenset[AxisFactor], operands: Iterable[AxisLayout]
) -> AxisLayout | None:
    """Return the batch and the tokens of operands with these positions; None if they differ."""
    layouts: set[AxisLayout] = set()
    for layout in operands:
        if not factors <= {*flatten(layout)} or not factors >= {*layout[0]}:
            continue
        tokens = factors - {*layout[0]}
        axis = next((axis for axis in layout[1:] if {*axis} == tokens), None) if tokens else ()
        if axis is not None:
            layouts.add((layout[0], axis))
    (positions,) = layouts if len(layouts) == 1 else (None,)
    return positions if positions and get_axis_size(positions[1]) else None


@dataclass(frozen=True, eq=False)
class _Read:
    """An input of a node of a group: a value that moves give other axes, if they are not empty."""

    node: ir.Node
    place: int
    source: ir.Value
    target: AxisLayout
    moves: tuple[Move, ...]


@dataclass(frozen=True, eq=False)
class _End:
    """A value that others than the group read.

    Attributes:
        value: The value: a result of the group, or one after moves of it.
        source: The result of the group.
        uses: The other readers, and the places of the value among their inputs.
        moves: What gives the source the axes of the value after the change.
    """

    value: ir.Value
    source: ir.Value
    uses: tuple[tuple[ir.Node, int], ...]
    moves: tuple[Move, ...]


class _Rewriting:
    """The moves before and after the nodes of a group, planned before anything changes."""

    def __init__(self, model: ir.Model, tracer: AxisTracer, group: _Group) -> None:
        self._model, self._tracer, self._group = model, tracer, group
        self._nodes = set(group.nodes)
        self._inner = {node.outputs[0] for node in group.nodes}
        self._shared: dict[tuple[ir.Value, AxisLayout], ir.Value] = {}

    def is_possible(self) -> bool:
        """Return whether moves give all inputs, and all other readers, their axes."""
        return None not in self._plan_reads() and None not in self._plan_ends()

    def _plan_reads(self) -> list[_Read | None]:
        nodes = self._group.nodes
        return [self._plan_read(node, at) for node in nodes for at in self._list_places(node)]

    def _plan_ends(self) -> list[_End | None]:
        return [end for node in self._group.nodes for end in self._list_ends(node.outputs[0])]

    def run(self) -> None:
        """Move the axes of the group, which is possible."""
        editor = Editor(self._model)
        reads = [read for read in self._plan_reads() if read is not None]
        ends = [end for end in self._plan_ends() if end is not None]
        before = [read.node.inputs[read.place] for read in reads]
        shapes = {value: self._get_target(value) for value in self._inner if self._is_moved(value)}
        for read in reads:
            self._apply_read(read, editor)
        for node in self._group.nodes:
            _name_last_axis(node, editor)
        names = {value: str(value.name) for value in shapes}
        for value, layout in shapes.items():
            _mark(value, layout, self._get_layout(value), editor)
        for end in ends:
            _apply_end(end, names.get(end.value, ""), editor)
        for moved in (*before, *(end.value for end in ends)):
            _remove_unread(moved)

    def _get_layout(self, value: ir.Value) -> AxisLayout:
        return self._tracer.get_layout(value) or ()

    def _get_target(self, value: ir.Value) -> AxisLayout:
        """Return the layout of a result of the group after the change."""
        return (*self._group.positions, self._get_layout(value)[-1])

    def _is_moved(self, value: ir.Value) -> bool:
        return value in self._inner and self._get_target(value) != self._get_layout(value)

    def _list_places(self, node: ir.Node) -> list[int]:
        """Return the inputs that have positions, or constants that are broadcast."""
        return [
            place
            for place, value in enumerate(node.inputs)
            if value is not None
            and (not self._tracer.is_constant(value) or self._tracer.broadcasts_constants(node))
        ]

    def _plan_read(self, node: ir.Node, place: int) -> _Read | None:
        """Plan the axes of an input; None if they cannot be had."""
        value = node.inputs[place]
        layout = None if value is None else self._tracer.get_layout(value)
        if value is None or layout is None:
            return None
        if self._tracer.is_constant(value):
            return self._plan_constant(node, place, value, layout)
        if not flatten(layout[:-1]):
            fits = len(layout) <= _RANK
            return _Read(node, place, value, layout, ()) if fits else None
        source = self._tracer.find_source(value, self._inner)
        target = (*self._group.positions, layout[-1])
        moves = plan_moves(self._get_current(source), target)
        return None if moves is None else _Read(node, place, source, target, tuple(moves))

    def _get_current(self, value: ir.Value) -> AxisLayout:
        """Return the layout of a value while the group changes."""
        return self._get_target(value) if value in self._inner else self._get_layout(value)

    def _plan_constant(
        self, node: ir.Node, place: int, value: ir.Value, layout: AxisLayout
    ) -> _Read | None:
        """Plan the axes of a constant that is broadcast to the result of a node."""
        positions = self._tracer.get_positions(node)
        first = len(positions) + 1 - len(layout)
        own: list[Axis] = []
        for axis, other in zip(layout[:-1], positions[max(first, 0) :], strict=False):
            if axis and get_axis_size(axis) != get_axis_size(other):
                return None
            own.append(other if axis else ())
        factors = {*flatten(own)}
        if first < 0 or (not factors and len(layout) > _RANK):
            return None
        if not factors:
            return _Read(node, place, value, layout, ())
        chosen = [axis if {*axis} <= factors else () for axis in self._group.positions]
        source, target = (*own, layout[-1]), (*chosen, layout[-1])
        moves = plan_moves(source, target)
        return None if moves is None else _Read(node, place, value, target, tuple(moves))

    def _list_ends(self, start: ir.Value) -> list[_End | None]:
        """Return what others read of a result of the group, None where moves cannot be planned."""
        factors = {*flatten(self._get_layout(start))}
        ends: list[_End | None] = []
        waiting = [start]
        while waiting:
            value, others = waiting.pop(), list[tuple[ir.Node, int]]()
            for reader, place in value.uses():
                y = reader.outputs[0] if self._tracer.is_move(reader) else None
                if y is not None and {*flatten(self._tracer.get_layout(y) or ())} == factors:
                    waiting.append(y)
                elif reader not in self._nodes and not (
                    value is start and self._finds_extremum(reader, value)
                ):
                    others.append((reader, place))
            if others or value.is_graph_output():
                moves = plan_moves(self._get_target(start), self._get_layout(value))
                ends.append(moves if moves is None else _End(value, start, (*others,), (*moves,)))
        return ends

    def _finds_extremum(self, node: ir.Node, value: ir.Value) -> bool:
        """Return whether a node finds the largest or least element of a whole tensor."""
        rank = len(self._get_layout(value))
        if not is_onnx_op(node, "ReduceMax", "ReduceMin") or rank != _RANK:
            return False
        return get_reduced_axes(node, rank) == tuple(range(rank))

    def _apply_read(self, read: _Read, editor: Editor) -> None:
        key = read.source, read.target
        if read.moves and is_constant(read.source):
            array = _move_array(read_array(read.source), read.moves)
            value = editor.add_constant(str(read.source.name), ir.tensor(array))
        elif key in self._shared:
            value = self._shared[key]
        else:
            value = self._shared[key] = insert_moves(read.source, read.moves, read.node, editor)
        read.node.replace_input_with(read.place, value)


def _apply_end(end: _End, name: str, editor: Editor) -> None:
    """Give other readers of a value, and the user, its elements in their order.

    Args:
        end: The value.
        name: Its name in the file, if it is a result of the group.
        editor: The editor of the model.
    """
    value = end.value
    if value is end.source and not end.moves:
        return
    result = insert_moves(end.source, end.moves, require_producer(end.source), editor)
    for reader, place in end.uses:
        reader.replace_input_with(place, result)
    if value is not end.source:
        if value.is_graph_output():
            editor.replace(require_producer(value), result, shared=result is end.source)
        return
    if value.is_graph_output() and value.graph is not None:
        outputs = value.graph.outputs
        outputs[outputs.index(value)] = result
    result.name = name


def insert_moves(
    source: ir.Value, moves: Iterable[Move], before: ir.Node, editor: Editor
) -> ir.Value:
    """Insert moves of a value; return their result. The order of nodes is restored later."""
    value = source
    for move in moves:
        name, numbers = str(source.name), move.numbers
        inputs, attributes = [value], list[ir.Attr]()
        if move.operator == "Reshape":
            sizes = ir.tensor(np.array(numbers, np.int64))
            inputs.append(editor.add_constant(f"{name}_sizes", sizes))
        else:
            attributes.append(ir.AttrInt64s("perm", numbers))
        value = editor.insert(
            before,
            move.operator,
            inputs,
            f"{name}_moved",
            like=ir.Value(name=None),
            dtype=source.dtype or ir.DataType.FLOAT,
            attributes=attributes,
        )
    return value


def _move_array(array: Array, moves: Iterable[Move]) -> Array:
    for move in moves:
        if move.operator == "Transpose":
            array = array.transpose(move.numbers)
        else:
            array = array.reshape(
                [array.shape[at] if size == 0 else size for at, size in enumerate(move.numbers)]
            )
    return np.ascontiguousarray(array)


def _name_last_axis(node: ir.Node, editor: Editor) -> None:
    """Let attributes name the last axis, whatever the rank is."""
    if is_quantize(node) or is_dequantize(node) or "axis" in node.attributes:
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
    if not has_trait(node, OpTrait.REDUCES_AXES):
        return
    if "axes" in node.attributes:
        node.attributes["axes"] = ir.AttrInt64s("axes", [-1])
    elif len(node.inputs) > 1:
        axes = editor.share_constant("axes", "last_axis", np.array([-1], np.int64))
        node.replace_input_with(1, axes)


def _mark(value: ir.Value, layout: AxisLayout, before: AxisLayout, editor: Editor) -> None:
    """Give a value other axes and another name."""
    name, moves = get_source_name(value), plan_moves(layout, before)
    value.name = editor.unique(f"{value.name}_batch_first")
    value.metadata_props[SOURCE_NAME_KEY] = name
    value.meta[_MOVES_TO_FILE] = moves if moves is None else tuple(moves)
    value.shape = ir.Shape([get_axis_size(axis) for axis in layout])


def _remove_unread(value: ir.Value | None) -> None:
    """Remove a move that nothing reads any more, and those before it."""
    while value is not None and not is_read(value) and not value.is_graph_output():
        node = value.producer()
        if node is None or node.graph is None or node.op_type not in _MOVES:
            return
        value = node.inputs[0]
        node.graph.remove(node, safe=True)
