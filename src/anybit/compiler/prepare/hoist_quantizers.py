# SPDX-License-Identifier: Apache-2.0
"""Quantizers after a Concat or a Resize, moved before it."""

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import find_constant_axes, get_varying_inputs, is_quantizer
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.require import require_graph
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.passes import InferShapes
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize

_LONGEST = 8
"""Longer chains stay: their nodes would be written once per tensor."""

_MOST_MOVES = 4
"""Most data movements that a quantizer moves before, one after another."""


def hoist_quantizers(model: ir.Model) -> frozenset[str]:
    """Move quantizers before a Concat of channels or a nearest-neighbour Resize, in place.

    The nodes between are elementwise, and the same for all channels, or have a constant per
    channel: it is split before a Concat, and a Resize of height and width keeps it. Results stay
    the same, but codes are moved, even if tensors of several scales are concatenated.

    Returns:
        The names of the values that are new.
    """
    opset = model.graph.opset_imports.get("", 1)
    added: set[str] = set()
    for _ in range(_MOST_MOVES):
        chains = [(node, chain) for node in model.graph if (chain := _find_chain(node, opset))]
        if not chains:
            break
        editor = Editor(model)
        for node, chain in chains:
            added.update(_hoist(node, chain, editor))
        InferShapes()(model)
    return frozenset(added)


def _get_moved_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the tensors whose elements a node moves; none for other nodes."""
    values = get_varying_inputs(node)
    if node.domain or len(node.outputs) != 1 or not values:
        return []
    if node.op_type == "Concat":
        rank = 0 if node.outputs[0].shape is None else len(node.outputs[0].shape)
        channels = rank and get_attribute(node, "axis", 1) % rank in (1, rank - 1)
        return values if channels and not any(map(_is_fixed, node.inputs)) else []
    nearest = get_attribute(node, "mode", "nearest") == "nearest"
    inside = get_attribute(node, "coordinate_transformation_mode", "") != "tf_crop_and_resize"
    repeats = has_trait(node, OpTrait.RESIZE) and nearest and inside
    return values if repeats and values == [node.inputs[0]] else []


def _is_fixed(value: ir.Value | None) -> bool:
    return value is None or is_constant(value)


def _find_chain(node: ir.Node, opset: int) -> list[tuple[ir.Node, ir.DataType]]:
    """Return the elementwise nodes from a node to the next quantizer, and their dtypes.

    The list is empty if there are other nodes.
    """
    chain: list[tuple[ir.Node, ir.DataType]] = []
    y = node.outputs[0] if _get_moved_inputs(node) else None
    while y is not None and y.shape is not None and not y.is_graph_output():
        if len(y.uses()) != 1 or len(chain) == _LONGEST:
            return []
        ((reader, _),) = y.uses()
        if reader.graph is not node.graph or get_varying_inputs(reader) != [y]:
            return []
        axes = find_constant_axes(reader, y.shape.rank(), opset)
        y = reader.outputs[0]
        if axes is None or y.dtype is None or not (axes <= _find_split_axes(node, reader)):
            return []
        chain.append((reader, y.dtype))
        if is_quantizer(reader):
            return chain
    return []


def _find_split_axes(moving: ir.Node, reader: ir.Node) -> set[int]:
    """Return the axes along which constants of a reader may vary.

    They can be split between the inputs of a Concat, and a Resize does not move elements there.
    """
    if moving.op_type != "Concat":
        return _find_kept_axes(moving)
    by_order = reader.op_type == "BatchNormalization" or is_multi_threshold(reader)
    if by_order or is_quantize(reader) or is_dequantize(reader):
        return set()
    sizes = _get_parts(moving)
    distinct = len(_get_moved_inputs(moving)) == len(sizes)
    return {_get_axis(moving)} if distinct and None not in sizes else set()


def _find_kept_axes(resize: ir.Node) -> set[int]:
    """Return the axes along which a Resize or Upsample with constant scales moves no elements."""
    x, place = resize.inputs[0], 2 if len(resize.inputs) > 2 else 1
    value = resize.inputs[place] if place < len(resize.inputs) else None
    rank = 0 if x is None or x.shape is None else len(x.shape)
    if not rank or value is None or not is_constant(value) or value.dtype != ir.DataType.FLOAT:
        return set()
    scales = read_array(value).ravel()
    axes = [axis % rank for axis in get_attribute(resize, "axes", ())] or list(range(rank))
    if len(scales) != len(axes):
        return set()
    return set(range(rank)).difference(
        axis for axis, scale in zip(axes, scales, strict=True) if scale != 1
    )


def _get_axis(concat: ir.Node) -> int:
    """Return the axis of a Concat of known rank, counted from 0."""
    return get_attribute(concat, "axis", 1) % len(concat.outputs[0].shape or ())


def _get_parts(concat: ir.Node) -> list[int | None]:
    """Return the sizes of the inputs of a Concat along its axis; None for those not known."""
    axis = _get_axis(concat)
    shapes = [None if value is None else value.shape for value in concat.inputs]
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    return [size if isinstance(size, int) else None for size in sizes]


def _split(value: ir.Value | None, moving: ir.Node, part: int, editor: Editor) -> ir.Value | None:
    """Return the part of a constant that belongs to an input of a Concat, or all of it."""
    if value is None or not is_constant(value) or moving.op_type != "Concat":
        return value
    array = read_array(value)
    place = _get_axis(moving) - len(moving.outputs[0].shape or ()) + array.ndim
    if place < 0 or array.shape[place] == 1:
        return value
    sizes = _get_parts(moving)
    first = sum(size or 0 for size in sizes[:part])
    own = np.take(array, range(first, first + (sizes[part] or 0)), place)
    return editor.add_constant(f"{value.name}_part", ir.Tensor(own))


def _hoist(moving: ir.Node, chain: list[tuple[ir.Node, ir.DataType]], editor: Editor) -> list[str]:
    """Move a chain before a data movement, once per tensor; return the new names."""
    added = []
    nodes = [node for node, _ in chain]
    last = nodes[-1]
    quantized = {}
    for part, x in enumerate(_get_moved_inputs(moving)):
        y, before = x, moving.outputs[0]
        for node, dtype in chain:
            inputs = [y if v is before else _split(v, moving, part, editor) for v in node.inputs]
            y = editor.insert_copy(last, node, inputs, like=x, dtype=dtype)
            added.append(str(y.name))
            before = node.outputs[0]
        quantized[x] = y
    inputs = [value if value is None else quantized.get(value, value) for value in moving.inputs]
    whole = editor.insert_copy(last, moving, inputs, like=last.outputs[0], dtype=ir.DataType.FLOAT)
    editor.replace(last, whole)
    for node in (*nodes[-2::-1], moving):
        require_graph(node).remove(node, safe=True)
    return added
