# SPDX-License-Identifier: Apache-2.0
"""Constants in blocks, and the nodes that join the blocks."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.ops.grids import Channels, Grid, get_channels


def find_blocks(grid: Grid, x: ir.Value) -> Channels | None:
    """Return the layout of parameters that vary along all axes of a constant except the block axis.

    None for other layouts.
    """
    assert x.const_value is not None, "asked for constants only"
    shape = tuple(x.const_value.shape.numpy())
    try:
        varying = np.broadcast_shapes(grid.scale.shape, grid.zeropt.shape, (1,) * len(shape))
    except ValueError:
        return None
    if len(varying) != len(shape):
        return None
    shared = [axis for axis, size in enumerate(shape) if varying[axis] != size]
    if len(shared) != 1 or varying[shared[0]] != 1:
        return None
    scale, zeropt = (
        np.array(np.broadcast_to(parameter, varying), np.float32)
        for parameter in (grid.scale, grid.zeropt)
    )
    return Channels(scale, zeropt, shared[0] - len(shape), block=shape[shared[0]])


@dataclass(frozen=True)
class JoinedBlocks:
    """Codes whose blocks are concatenated along one axis, as DequantizeLinear reads them.

    Attributes:
        layout: Scales and zero-points of the joined codes.
        nodes: The nodes that join the blocks: a Reshape, possibly followed by a Slice.
        shape: The output shape of the Reshape.
        kept: The output shape of the Slice, which starts at 0.
    """

    layout: Channels
    nodes: tuple[ir.Node, ...]
    shape: tuple[int, ...]
    kept: tuple[int, ...]

    def codes(self, cut: Array) -> Array:
        """Return the codes in their new shape."""
        return cut.reshape(self.shape)[tuple(slice(size) for size in self.kept)]


def find_joined_blocks(node: ir.Node, layout: Channels) -> JoinedBlocks | None:
    """Return how the blocks of a constant are joined after its quantizer; None if they are not."""
    x = node.inputs[0]
    reshape = _find_only_reader(node.outputs[0], "Reshape")
    if x is None or x.const_value is None or layout.axis is None or reshape is None:
        return None
    shape, within = tuple(x.const_value.shape.numpy()), layout.axis + len(x.const_value.shape)
    if within == 0:
        return None
    axis, count = within - 1, shape[within - 1]
    whole = (*shape[:axis], count * layout.block, *shape[within + 1 :])
    if _read_integers(reshape, 1) != whole:
        return None
    parts = [np.squeeze(parameter, within) for parameter in (layout.scale, layout.zeropt)]
    single = get_channels(*parts) if count == 1 else None
    layout_of_codes = single or Channels(parts[0], parts[1], axis - len(whole), layout.block)
    cut = _find_only_reader(reshape.outputs[0], "Slice")
    length = 0 if cut is None else _get_sliced_length(cut, axis, len(whole))
    if cut is None or not (count - 1) * layout.block < length <= whole[axis]:
        return JoinedBlocks(layout_of_codes, (reshape,), whole, whole)
    return JoinedBlocks(
        layout_of_codes, (reshape, cut), whole, (*whole[:axis], length, *whole[axis + 1 :])
    )


def _find_only_reader(value: ir.Value, kind: str) -> ir.Node | None:
    """Return the node of a kind that is the only reader of a value, in the same graph."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    (use,) = uses
    producer = value.producer()
    near = producer is not None and use.node.graph is producer.graph
    expected = (use.node.domain, use.node.op_type, use.idx) == ("", kind, 0)
    return use.node if near and expected else None


def _get_sliced_length(node: ir.Node, axis: int, rank: int) -> int:
    """Return the length of an axis after a Slice from its beginning; 0 for other nodes."""
    start, end, axes = (_read_integers(node, index) for index in (1, 2, 3))
    steps = _read_integers(node, 4) if len(node.inputs) > 4 and node.inputs[4] is not None else (1,)
    if start != (0,) or steps != (1,) or axes not in ((axis,), (axis - rank,)) or end is None:
        return 0
    return end[0] if len(end) == 1 else 0


def _read_integers(node: ir.Node, index: int) -> tuple[int, ...] | None:
    """Return the integers of a constant input."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or not is_constant(value):
        return None
    return tuple(int(number) for number in read_array(value).ravel())
