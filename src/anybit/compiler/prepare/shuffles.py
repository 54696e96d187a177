# SPDX-License-Identifier: Apache-2.0
"""Moves of channels and blocks that exporters write with more axes than a tensor of codes has."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_graph
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.passes import InferShapes

_MOST_ELEMENTS = 2**22
_IMAGE_AXES = 3  # besides the rows
_CHAIN_OPS = ["Reshape", "Transpose", "Reshape"]


@dataclass(frozen=True, eq=False)
class _Shuffle:
    """Nodes that move the elements of a chain.

    Attributes:
        op_type: DepthToSpace, SpaceToDepth, or "" for neither.
        attributes: Its attributes.
        channels: The channels that a Gather selects then; None without one.
        elements: The elements of a row that a Gather selects, if there is no other form.
    """

    op_type: str = ""
    attributes: tuple[ir.Attr, ...] = ()
    channels: Array | None = None
    elements: Array | None = None


def replace_shuffles(model: ir.Model) -> None:
    """Replace Reshape, Transpose and Reshape that permute channels or move blocks, in place."""
    shuffles = []
    for node in model.graph:
        chain = _match_chain(node)
        shuffle = None if chain is None else _trace(chain, model)
        dtype = None if chain is None else chain[-1].outputs[0].dtype
        if chain is not None and shuffle is not None and dtype is not None:
            shuffles.append((chain, shuffle, dtype))
    if not shuffles:
        return
    editor = Editor(model)
    for chain, shuffle, dtype in shuffles:
        _replace(chain, shuffle, dtype, editor)
    InferShapes()(model)


def _match_chain(node: ir.Node) -> list[ir.Node] | None:
    """Return a Reshape and its only readers, a Transpose and a Reshape; None for other nodes."""
    chain = [node]
    for kind in _CHAIN_OPS:
        last = chain[-1]
        own = is_onnx_op(last, kind) and last.graph is node.graph
        if not own or not last.inputs or len(last.outputs) != 1:
            return None
        (y,) = last.outputs
        if len(chain) == len(_CHAIN_OPS):
            return chain
        if len(y.uses()) != 1 or y.is_graph_output():
            return None
        ((reader, _),) = y.uses()
        chain.append(reader)
    return None


def _trace(chain: list[ir.Node], model: ir.Model) -> _Shuffle | None:
    """Return the nodes that move elements like a chain; None without any."""
    first, transpose, last = chain
    before, split, after = (
        _get_sizes(value, model) for value in (first.inputs[0], first.outputs[0], last.outputs[0])
    )
    if before is None or split is None or after is None or len(before) < 2:
        return None
    count, order = math.prod(before), tuple(get_attribute(transpose, "perm", ()))
    if not math.prod(split) == math.prod(after) == count or count > _MOST_ELEMENTS:
        return None
    if order[:1] != (0,) or sorted(order) != list(range(len(split) + 1)):
        return None
    elements = np.arange(count).reshape(split).transpose([axis - 1 for axis in order[1:]])
    numbers = elements.reshape(after[0], -1)
    shuffle = None
    if before == after:
        channels = _find_permutation(np.arange(count).reshape(before[0], -1), numbers)
        shuffle = None if channels is None else _Shuffle(channels=channels)
    elif len(before) == len(after) == _IMAGE_AXES:
        shuffle = _match_depth_to_space(before, after, numbers)
        shuffle = shuffle or _match_space_to_depth(before, after, numbers)
    if shuffle is None and len(split) > _IMAGE_AXES >= max(len(before), len(after)):
        return _Shuffle(elements=numbers.ravel())
    return shuffle


def _find_permutation(source: Array, numbers: Array) -> Array | None:
    """Return the permutation of rows from source to numbers; None if there is none."""
    order = np.argsort(source[:, 0])
    places = np.searchsorted(source[order, 0], numbers[:, 0]).clip(max=len(order) - 1)
    channels = order[places]
    return channels if np.array_equal(source[channels], numbers) else None


def _match_depth_to_space(
    before: tuple[int, ...], after: tuple[int, ...], numbers: Array
) -> _Shuffle | None:
    """Return a DepthToSpace; None if it moves elements otherwise."""
    channels, height, width = after
    size = height // before[1]
    if (height, width) != (before[1] * size, before[2] * size):
        return None
    for mode, axes, places in (
        ("DCR", (size, size, channels), (2, 3, 0, 4, 1)),
        ("CRD", (channels, size, size), (0, 3, 1, 4, 2)),
    ):
        moved = np.arange(numbers.size).reshape(*axes, *before[1:]).transpose(places)
        if np.array_equal(moved.reshape(numbers.shape), numbers):
            attributes = ir.AttrInt64("blocksize", size), ir.AttrString("mode", mode)
            return _Shuffle("DepthToSpace", attributes)
    return None


def _match_space_to_depth(
    before: tuple[int, ...], after: tuple[int, ...], numbers: Array
) -> _Shuffle | None:
    """Return a SpaceToDepth, perhaps with channels in another order; None for other moves."""
    channels, height, width = before
    size = height // after[1]
    if (height, width) != (after[1] * size, after[2] * size):
        return None
    blocks = np.arange(numbers.size).reshape(channels, after[1], size, after[2], size)
    order = _find_permutation(blocks.transpose(2, 4, 0, 1, 3).reshape(numbers.shape), numbers)
    if order is None:
        return None
    is_identity = np.array_equal(order, np.arange(len(order)))
    attributes = (ir.AttrInt64("blocksize", size),)
    return _Shuffle("SpaceToDepth", attributes, None if is_identity else order)


def _get_sizes(value: ir.Value | None, model: ir.Model) -> tuple[int, ...] | None:
    """Return the sizes after the rows; None if one is unknown or 0."""
    sizes = None if value is None else get_proven_sizes(value, model)
    inner = tuple(size for size in (sizes or ())[1:] if size)
    return None if sizes is None or len(inner) + 1 != len(sizes) else inner


def _replace(chain: list[ir.Node], shuffle: _Shuffle, dtype: ir.DataType, editor: Editor) -> None:
    first, transpose, last = chain
    name = str(last.name or "shuffle")
    y, order = first.inputs[0], shuffle.channels
    if shuffle.op_type:
        y = _insert(last, shuffle.op_type, [y], dtype, editor, shuffle.attributes)
    if shuffle.elements is not None:
        order = shuffle.elements
        row = editor.add_constant(f"{name}_row", ir.tensor(np.array([0, -1])))
        y = _insert(last, "Reshape", [y, row], dtype, editor)
        y.shape = None
    if order is not None:
        indices = editor.add_constant(f"{name}_order", ir.tensor(order.astype(np.int64)))
        axis = ir.AttrInt64("axis", 1)
        y = _insert(last, "Gather", [y, indices], dtype, editor, [axis])
    if shuffle.elements is None and y is not None:
        editor.replace(last, y)
    elif y is not None:
        y.shape = None
        last.replace_input_with(0, y)
    for node in (transpose, first):
        require_graph(node).remove(node, safe=True)


def _insert(
    last: ir.Node,
    op_type: str,
    inputs: list[ir.Value | None],
    dtype: ir.DataType,
    editor: Editor,
    attributes: Iterable[ir.Attr] = (),
) -> ir.Value:
    """Insert a node before the last one of a chain; return its output."""
    name = str(last.name or "shuffle")
    return editor.insert(
        last, op_type, inputs, name, like=last.outputs[0], dtype=dtype, attributes=list(attributes)
    )
