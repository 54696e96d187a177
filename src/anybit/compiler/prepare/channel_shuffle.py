# SPDX-License-Identifier: Apache-2.0
"""Channel shuffles: exporters write them with more axes than a tensor of codes has."""

import math

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.require import require_graph
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.passes import InferShapes

_MOST_ELEMENTS = 2**22
_KINDS = ["Reshape", "Transpose", "Reshape"]


def replace_channel_shuffles(model: ir.Model) -> None:
    """Replace Reshape, Transpose and Reshape that permute channels by one Gather, in place."""
    shuffles = []
    for node in model.graph:
        chain = _match_chain(node)
        channels = None if chain is None else _trace_channels(chain, model)
        dtype = None if chain is None else chain[-1].outputs[0].dtype
        if chain is not None and channels is not None and dtype is not None:
            shuffles.append((chain, channels, dtype))
    if not shuffles:
        return
    editor = Editor(model)
    for chain, channels, dtype in shuffles:
        _replace(chain, channels, dtype, editor)
    InferShapes()(model)


def _match_chain(node: ir.Node) -> list[ir.Node] | None:
    """Return a Reshape and its only readers, a Transpose and a Reshape; None for other nodes."""
    chain = [node]
    for kind in _KINDS:
        last = chain[-1]
        own = not last.domain and last.op_type == kind and last.graph is node.graph
        if not own or not last.inputs or len(last.outputs) != 1:
            return None
        (y,) = last.outputs
        if len(chain) == len(_KINDS):
            return chain
        if len(y.uses()) != 1 or y.is_graph_output():
            return None
        ((reader, _),) = y.uses()
        chain.append(reader)
    return None


def _trace_channels(chain: list[ir.Node], model: ir.Model) -> Array | None:
    """Return the source of every channel; None if more than channels are moved."""
    first, transpose, last = chain
    before, split, after = (
        _get_sizes(value, model) for value in (first.inputs[0], first.outputs[0], last.outputs[0])
    )
    if before is None or split is None or before != after or len(before) < 2:
        return None
    count, order = math.prod(before), tuple(get_attribute(transpose, "perm", ()))
    if math.prod(split) != count or count > _MOST_ELEMENTS:
        return None
    if order[:1] != (0,) or sorted(order) != list(range(len(split) + 1)):
        return None
    elements = np.arange(count).reshape(split).transpose([axis - 1 for axis in order[1:]])
    numbers = elements.reshape(before[0], -1)
    size = numbers.shape[1]
    channels = numbers[:, 0] // size
    whole = channels[:, None] * size + np.arange(size)
    return channels if np.array_equal(numbers, whole) else None


def _get_sizes(value: ir.Value | None, model: ir.Model) -> tuple[int, ...] | None:
    """Return the sizes after the rows; None if one is unknown or 0."""
    sizes = None if value is None else get_proven_sizes(value, model)
    inner = tuple(size for size in (sizes or ())[1:] if size)
    return None if sizes is None or len(inner) + 1 != len(sizes) else inner


def _replace(chain: list[ir.Node], channels: Array, dtype: ir.DataType, editor: Editor) -> None:
    first, transpose, last = chain
    name = str(last.name or "shuffle")
    order = editor.add_constant(f"{name}_channels", ir.tensor(channels.astype(np.int64)))
    y = editor.insert(
        last,
        "Gather",
        [first.inputs[0], order],
        name,
        like=last.outputs[0],
        dtype=dtype,
        attributes=[ir.AttrInt64("axis", 1)],
    )
    editor.replace(last, y)
    for node in (transpose, first):
        require_graph(node).remove(node, safe=True)
