# SPDX-License-Identifier: Apache-2.0
"""Channels in another order, as exporters write it: by more axes than a tensor of codes has."""

import math

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.shapes import sizes_that_follow
from anybit.onnx.passes import InferShapes

_MOST_ELEMENTS = 2**22
_KINDS = ["Reshape", "Transpose", "Reshape"]


def replace_channel_shuffles(model: ir.Model) -> None:
    """Let a Reshape, Transpose and Reshape that only change the order of channels be a Gather."""
    found = []
    for node in model.graph:
        chain = _chain(node)
        channels = None if chain is None else _channels(chain, model)
        if chain is not None and channels is not None:
            found.append((chain, channels))
    if not found:
        return
    editor = Editor(model)
    for chain, channels in found:
        _replace(chain, channels, editor)
    InferShapes()(model)


def _chain(node: ir.Node) -> list[ir.Node] | None:
    """A Reshape and what alone reads it; None if these are others."""
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


def _channels(chain: list[ir.Node], model: ir.Model) -> Array | None:
    """Which channel each one was; None if more than channels are moved."""
    first, between, last = chain
    before, split, after = (
        _sizes(value, model) for value in (first.inputs[0], first.outputs[0], last.outputs[0])
    )
    if before is None or split is None or before != after or len(before) < 2:
        return None
    count, order = math.prod(before), tuple(attribute_of(between, "perm", ()))
    if math.prod(split) != count or count > _MOST_ELEMENTS or last.outputs[0].dtype is None:
        return None
    if order[:1] != (0,) or sorted(order) != list(range(len(split) + 1)):
        return None
    moved = np.arange(count).reshape(split).transpose([axis - 1 for axis in order[1:]])
    numbers = moved.reshape(before[0], -1)
    each = numbers.shape[1]
    channels = numbers[:, 0] // each
    whole = channels[:, None] * each + np.arange(each)
    return channels if np.array_equal(numbers, whole) else None


def _sizes(value: ir.Value | None, model: ir.Model) -> tuple[int, ...] | None:
    """The sizes behind the rows; None if one is not known, or 0."""
    sizes = None if value is None else sizes_that_follow(value, model)
    found = tuple(size for size in (sizes or ())[1:] if size)
    return None if sizes is None or len(found) + 1 != len(sizes) else found


def _replace(chain: list[ir.Node], channels: Array, editor: Editor) -> None:
    first, between, last = chain
    name = str(last.name or "shuffle")
    order = editor.constant(f"{name}_channels", ir.tensor(channels.astype(np.int64)))
    assert last.outputs[0].dtype is not None, "asked before"
    y = editor.insert(
        last,
        "Gather",
        [first.inputs[0], order],
        name,
        like=last.outputs[0],
        dtype=last.outputs[0].dtype,
        attributes=[ir.AttrInt64("axis", 1)],
    )
    editor.replace(last, y)
    for node in (between, first):
        assert node.graph is not None, "it has one until here"
        node.graph.remove(node, safe=True)
