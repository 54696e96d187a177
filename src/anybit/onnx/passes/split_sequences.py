# SPDX-License-Identifier: Apache-2.0
"""Replacement of sequences of slices by Split or Gather."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor, drop_if_unread
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_graph, require_input
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.graph.walk import iter_nodes

# Since this version the sizes are an input of Split, not an attribute.
_SIZES_ARE_AN_INPUT = 13
# A file could ask for 2**60 slices of one element.
_MOST_SLICES = 1024


class SplitSequences(InPlacePass):
    """Replacement of SplitToSequence and SequenceAt at constant positions, which torch writes.

    With sizes, the slices become the outputs of one Split. Without, each becomes a Gather. Nodes
    stay if a position is computed or out of range, if the number of slices is unknown, or if
    `keepdims` is 0 beside one size for all slices: the standard ignores it there, and ONNX Runtime
    does not. Shapes are inferred.
    """

    def call(self, model: ir.Model) -> PassResult:
        nodes = [n for n in iter_nodes(model.graph) if is_onnx_op(n, "SplitToSequence")]
        if not nodes:
            return PassResult(model, False)
        editor = Editor(model)
        return PassResult(model, bool(sum(_replace(node, model, editor) for node in nodes)))


def _replace(node: ir.Node, model: ir.Model, editor: Editor) -> bool:
    """Replace the SequenceAt nodes of a SplitToSequence; return whether there are any."""
    readers = [
        (reader, position)
        for reader, _ in node.outputs[0].uses()
        if is_onnx_op(reader, "SequenceAt") and (position := _get_position(reader)) is not None
    ]
    if len(node.inputs) < 2 or node.inputs[1] is None:
        for reader, position in readers:
            _gather(node, reader, position, editor)
    else:
        sizes = _get_sizes(node, model)
        if sizes is None or not all(-len(sizes) <= at < len(sizes) for _, at in readers):
            return False
        if readers:
            _split(node, readers, sizes, model, editor)
    if readers and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        _remove(node)
    return bool(readers)


def _remove(node: ir.Node) -> None:
    inputs = [value for value in node.inputs if value is not None]
    require_graph(node).remove(node, safe=True)
    for value in inputs:
        drop_if_unread(value)


def _get_position(node: ir.Node) -> int | None:
    """Return the constant position of a SequenceAt."""
    position = require_input(node, 1)
    if not is_constant(position):
        return None
    array = read_array(position)
    return int(array) if array.ndim == 0 else None


def _get_sizes(node: ir.Node, model: ir.Model) -> list[int] | None:
    """Return the sizes of the slices; None if they are unknown or contradict the input."""
    split = require_input(node, 1)
    if not is_constant(split):
        return None
    extents = get_proven_sizes(require_input(node), model)
    axis = get_attribute(node, "axis", 0)
    is_known = extents is not None and -len(extents) <= axis < len(extents)
    extent = extents[axis] if extents is not None and is_known else None
    sizes = read_array(split)
    if sizes.ndim == 1:
        listed = [int(size) for size in sizes]
        fits = min(listed, default=-1) >= 0 and extent in (None, sum(listed))
        return listed if fits else None
    size = int(sizes) if sizes.ndim == 0 else 0
    if extent is None or size < 1 or not get_attribute(node, "keepdims", 1):
        return None
    starts = range(0, extent, size)
    if not 0 < len(starts) <= _MOST_SLICES:
        return None
    return [min(size, extent - start) for start in starts]


def _gather(node: ir.Node, reader: ir.Node, position: int, editor: Editor) -> None:
    """Replace a SequenceAt of slices of one element."""
    x, name = require_input(node), reader.name or "SequenceAt"
    index = [position] if get_attribute(node, "keepdims", 1) else position
    constant = editor.share_constant("index", f"{name}_index", np.array(index, np.int64))
    axis = ir.AttrInt64("axis", get_attribute(node, "axis", 0))
    gather = ir.Node("", "Gather", [x, constant], [axis], name=editor.unique(name))
    gather.outputs[0].type = x.type
    require_graph(reader).insert_before(reader, gather)
    editor.replace(reader, gather.outputs[0])


def _split(
    node: ir.Node,
    readers: list[tuple[ir.Node, int]],
    sizes: list[int],
    model: ir.Model,
    editor: Editor,
) -> None:
    """Insert a Split before a SplitToSequence, and replace its SequenceAt nodes by the outputs."""
    x, graph, name = require_input(node), require_graph(node), node.name or "SplitToSequence"
    attributes, inputs = [ir.AttrInt64("axis", get_attribute(node, "axis", 0))], [x]
    if model.graph.opset_imports.get("", 1) < _SIZES_ARE_AN_INPUT:
        attributes.append(ir.AttrInt64s("split", sizes))
    else:
        constant = editor.share_constant("sizes", f"{name}_sizes", np.array(sizes, np.int64))
        inputs.append(constant)
    split = ir.Node(
        "", "Split", inputs, attributes, num_outputs=len(sizes), name=editor.unique(name)
    )
    for index, output in enumerate(split.outputs):
        output.name = editor.unique(f"{node.outputs[0].name}_{index}")
        output.type = x.type
    graph.insert_before(node, split)
    used = set[ir.Value]()
    for reader, position in readers:
        output = split.outputs[position]
        shared = output in used or require_graph(reader) is not graph
        editor.replace(reader, output, shared=shared)
        used.add(output)
