# SPDX-License-Identifier: Apache-2.0
"""Regions in graphs: one node for all nodes that a region computes."""

from collections.abc import Iterable, Mapping

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.compiler.analyze.integer_products import REPEATS
from anybit.compiler.backends.onnx_node import make_node, read_encoded
from anybit.compiler.encode import Region
from anybit.compiler.prepare.batch_first import get_moves_to_file, insert_moves
from anybit.compiler.program.encoding import encode
from anybit.errors import ModelError
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import describe, get_source_name
from anybit.onnx.graph.require import require_graph
from anybit.onnx.operators.integer_network import DOMAIN, PROGRAM, is_integer_network


def replace_regions(model: ir.Model, regions: Iterable[Region]) -> dict[str, Region]:
    """Replace each region by one node, in place; return the regions by the names of the nodes."""
    editor = Editor(model)
    by_node = {}
    replaced: dict[ir.Value, ir.Value] = {}
    for region in regions:
        node = make_node(region.program, [replaced.get(x, x) for x in region.inputs], editor)
        model.graph.append(node)
        for old, new in zip(region.outputs, node.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            new.name, old.name = old.name, editor.unique(f"{old.name}_float")
            replaced[old] = new
        by_node[str(node.name)] = region
    model.graph.opset_imports[DOMAIN] = 1
    _read_originals(model)
    RemoveUnusedNodesPass()(model)
    model.graph.sort()
    return by_node


def _read_originals(model: ir.Model) -> None:
    """Let float nodes read tensors that were repeated for the rows of programs, in place."""
    for node in model.graph:
        if REPEATS in node.metadata_props:
            for reader, place in node.outputs[0].uses():
                if not is_integer_network(reader):
                    reader.replace_input_with(place, node.inputs[0])
            del node.metadata_props[REPEATS]


def expose_tensors(model: ir.Model, regions: Mapping[str, Region]) -> None:
    """Make all tensors of the regions outputs of a compiled model, in place.

    Floats that only their own region reads are left out: their last bits are not promised.

    Args:
        model: The model as it was saved.
        regions: The regions by the names of their nodes.

    Raises:
        ModelError: A node has another program than its region.
    """
    editor = Editor(model)
    for node in [node for node in model.graph if is_integer_network(node)]:
        region = regions.get(str(node.name))
        if region is None or not read_encoded(node).equals(encode(region.program)):
            raise ModelError(f"{describe(node)} is not what was compiled")
        _expose(node, region.exposed, editor)


def _expose(node: ir.Node, exposed: Region, editor: Editor) -> None:
    graph = require_graph(node)
    inputs = [value for value in node.inputs[len(PROGRAM) :] if value is not None]
    more = make_node(exposed.program, inputs, editor)
    graph.insert_before(node, more)
    count = len(node.outputs)
    inner = set()
    for old, new in zip(node.outputs, more.outputs[:count], strict=True):
        if not old.uses() and not old.is_graph_output():
            inner.add(new)
        new.name, new.type, new.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    shown = [new for new in more.outputs[:count] if not new.is_graph_output() and new not in inner]
    for value, new in zip(exposed.outputs[count:], more.outputs[count:], strict=True):
        new.name, new.type = editor.unique(str(value.name)), value.type
        shown.append(_restore_axes(value, new, node, editor))
    graph.outputs.extend(shown)
    graph.remove(node, safe=True)


def _restore_axes(value: ir.Value, new: ir.Value, before: ir.Node, editor: Editor) -> ir.Value:
    """Return a tensor of a region with the axes and the name that it has in the file."""
    moves = get_moves_to_file(value)
    if not moves:
        return new
    result = insert_moves(new, moves, before, editor)
    result.name, result.type = editor.unique(get_source_name(value)), value.type
    return result
