# SPDX-License-Identifier: Apache-2.0
"""Quantizers after a MaxPool with strides of 1, moved before it: it selects codes then."""

from collections.abc import Sequence

import onnx_ir as ir

from anybit.compiler.operators import (
    are_increasing,
    find_constant_axes,
    get_varying_inputs,
    is_quantizer,
)
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.require import require_graph
from anybit.onnx.passes import InferShapes

_CHANNELS = {1}
_LONGEST = 8
"""Longer chains stay: their nodes would be written once per reader."""


def pool_codes(model: ir.Model) -> frozenset[str]:
    """Move quantizers before each MaxPool of as many elements as it reads, in place.

    All readers of the MaxPool have to be increasing functions up to a quantizer, which commute with
    a maximum. Spatial pyramid pooling reads its own results, so that the last one is moved first.

    Returns:
        The names of the values that are new.
    """
    editor, added = Editor(model), set[str]()
    opset = model.graph.opset_imports.get("", 1)
    for node in reversed(list(model.graph)):
        if not _keeps_size(node):
            continue
        y = node.outputs[0]
        chains = [_find_chain(node, reader, opset) for reader, _ in y.uses()]
        if y.is_graph_output() or not all(chains):
            continue
        for chain in chains:
            added |= _move(node, chain, editor)
        require_graph(node).remove(node, safe=True)
    if added:
        InferShapes()(model)
    return frozenset(added)


def _keeps_size(node: ir.Node) -> bool:
    """Return whether a node is a MaxPool with strides of 1 and one output."""
    if node.domain or node.op_type != "MaxPool" or len(node.outputs) != 1:
        return False
    return set(get_attribute(node, "strides", ())) <= {1} and node.outputs[0].shape is not None


def _find_chain(pool: ir.Node, reader: ir.Node, opset: int) -> list[ir.Node]:
    """Return the increasing nodes from a reader to the next quantizer; none if there are others."""
    y, chain = pool.outputs[0], list[ir.Node]()
    rank = y.shape.rank() if y.shape is not None else 0
    while len(chain) < _LONGEST and reader.graph is pool.graph:
        axes = find_constant_axes(reader, rank, opset)
        if axes is None or not axes <= _CHANNELS or get_varying_inputs(reader) != [y]:
            return []
        chain.append(reader)
        y = reader.outputs[0]
        if y.dtype is None or not (y.dtype == ir.DataType.FLOAT or y.dtype.is_integer()):
            return []
        if is_quantizer(reader):
            is_float = y.dtype == ir.DataType.FLOAT
            return chain if is_float and are_increasing(chain, pool.outputs[0]) else []
        if y.is_graph_output() or len(y.uses()) != 1:
            return []
        ((reader, _),) = y.uses()
    return []


def _move(pool: ir.Node, chain: Sequence[ir.Node], editor: Editor) -> set[str]:
    """Move a chain before a MaxPool, which other chains may read; return the new names."""
    x, last = pool.inputs[0], chain[-1]
    assert x is not None, "a MaxPool has an input"
    y, before, added = x, pool.outputs[0], set[str]()
    for node in chain:
        dtype = node.outputs[0].dtype or ir.DataType.FLOAT
        inputs = [y if value is before else value for value in node.inputs]
        y = editor.insert_copy(last, node, inputs, like=x, dtype=dtype)
        added.add(str(y.name))
        before = node.outputs[0]
    pooled = editor.insert_copy(last, pool, [y], like=last.outputs[0], dtype=ir.DataType.FLOAT)
    editor.replace(last, pooled)
    for node in chain[-2::-1]:
        require_graph(node).remove(node, safe=True)
    return added
