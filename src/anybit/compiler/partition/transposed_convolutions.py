# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions as convolutions with the same sums.

With strides, either x gets zeros between its elements, or one convolution computes all outputs
that one position of x begins, as channels, and its codes are moved to their places. The second form
multiplies with fewer zeros, but its floats are not those of the graph in their order.
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.compiler.partition.element_moves import find_zero, plan_gather
from anybit.compiler.partition.expressions import IntegerTensor, PlannedInstruction
from anybit.compiler.partition.layout import Layout
from anybit.compiler.partition.windows import parse_sides, refuse_channels, refuse_shape
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array


@dataclass(frozen=True, eq=False)
class Convolution:
    """A ConvTranspose as a convolution.

    Attributes:
        product: Its analysis, with the weights and the layout of a Conv.
        source: Its activations.
        instructions: The instructions that compute `source` from those of the ConvTranspose.
        window: Its window.
        layout: Layout of its output.
        channels: The channel of the ConvTranspose for each of its channels.
        numbers: The number of the element of its output for each element of the ConvTranspose, in
            the order of the graph; None if they are the same.
    """

    product: ProductAnalysis
    source: IntegerTensor
    instructions: tuple[PlannedInstruction, ...]
    window: p.Window
    layout: Layout
    channels: Array
    numbers: Array | None = None


@dataclass(frozen=True)
class _Side:
    """Sizes and attributes along one axis."""

    size: int
    result: int
    taps: int
    stride: int = 1
    dilation: int = 1
    pad: int = 0

    @property
    def reach(self) -> int:
        return self.dilation * (self.taps - 1)

    @property
    def blocks(self) -> int:
        """The number of groups of `stride` outputs."""
        return -(-self.result // self.stride)

    @property
    def first(self) -> int:
        """The first element of x that the first group needs."""
        return -((self.reach - self.pad) // self.stride)

    @property
    def last(self) -> int:
        """The last element of x that the first group needs."""
        return (self.stride - 1 + self.pad) // self.stride


def make_convolution(
    product: ProductAnalysis, source: IntegerTensor, y: Layout, *, as_codes: bool
) -> Convolution:
    """Return a ConvTranspose as a convolution.

    Args:
        product: Its analysis.
        source: Its activations.
        y: Layout of its output.
        as_codes: Whether only codes of its output are needed.

    Raises:
        Unsupported: An attribute that is not supported, or 0 is not a code.
    """
    layout, codes = product.layout, product.codes
    if layout is None or codes is None:
        raise Unsupported(product.reason)
    sides = _derive_sides(product.node, codes.shape[2:], source.layout, y)
    groups = layout.groups
    weights = layout.canonical(codes)
    weights = weights.reshape(y.channels, weights.shape[2], *(side.taps for side in sides))
    if weights.shape[1] * groups != source.layout.channels:
        raise refuse_channels(weights.shape[1] * groups, source.layout)
    product = replace(product, layout=replace(layout, kind="Conv"))
    if as_codes and all(map(_can_group, sides)) and any(side.stride > 1 for side in sides):
        return _group_outputs(product, source, y, weights, sides)
    return _spread_inputs(product, source, y, weights, sides)


def _derive_sides(
    node: ir.Node, kernel: tuple[int, ...], x: Layout, y: Layout
) -> tuple[_Side, _Side]:
    """Return the axes of height and width."""
    parsed = parse_sides(node, kernel)
    is_automatic = get_attribute(node, "auto_pad", "NOTSET") != "NOTSET"
    if parsed is None or is_automatic or get_attribute(node, "output_shape", ()):
        raise Unsupported("its padding is automatic: give it as numbers")
    strides, dilations, pads = parsed
    count = len(kernel)
    columns = ((x.height, x.width)[-count:], (y.height, y.width)[-count:], kernel)
    sides = [_Side(*row) for row in zip(*columns, strides, dilations, pads[:count], strict=True)]
    for side, pad in zip(sides, pads[count:], strict=True):
        added = side.result - ((side.size - 1) * side.stride + side.reach + 1 - side.pad - pad)
        if not 0 <= added < max(side.stride, side.dilation):
            raise refuse_shape(y)
    height, width = (_Side(1, 1, 1), *sides)[-2:]
    return height, width


def _spread_inputs(
    product: ProductAnalysis,
    source: IntegerTensor,
    y: Layout,
    weights: Array,
    sides: tuple[_Side, _Side],
) -> Convolution:
    """Return the convolution of x with zeros between its elements."""
    lines, starts, ends = [], [], []
    for side in sides:
        spread = (side.size - 1) * side.stride + 1
        start = side.reach - side.pad
        end = side.result + side.reach - spread - start
        line = np.arange(max(-start, 0), spread - max(-end, 0))
        lines.append(np.where(line % side.stride, -1, line // side.stride).astype(np.int32))
        starts.append(max(start, 0))
        ends.append(max(end, 0))
    if not all(line.size for line in lines):
        raise Unsupported("its padding removes all of its outputs")
    (top, left), (bottom, right) = starts, ends
    high, wide = sides
    window = p.Window(
        high.taps, wide.taps, 1, 1, high.dilation, wide.dilation, top, left, bottom, right
    )
    product = replace(product, codes=np.flip(weights, (2, 3)))
    layout = replace(source.layout, height=len(lines[0]), width=len(lines[1]))
    channels = np.arange(y.channels)
    if layout == source.layout:
        return Convolution(product, source, (), window, y, channels)
    fill = find_zero(source.grid) if any((line < 0).any() for line in lines) else 0
    target = replace(source, layout=layout, identity=object())
    own = np.arange(layout.channels, dtype=np.int32)
    indices = {"rows": lines[0], "columns": lines[1], "channels": own}
    gather = plan_gather(source, target, fill, indices)
    return Convolution(product, target, (gather,), window, y, channels)


def _can_group(side: _Side) -> bool:
    """Return whether groups of outputs need neighbouring elements of x and its padding."""
    return side.dilation == 1 and side.first <= 0 <= side.last and _get_end(side) >= 0


def _get_end(side: _Side) -> int:
    """Return the padding after x."""
    return side.blocks + side.last - side.size


def _group_outputs(
    product: ProductAnalysis,
    source: IntegerTensor,
    y: Layout,
    weights: Array,
    sides: tuple[_Side, _Side],
) -> Convolution:
    """Return the convolution that computes groups of outputs as channels of one position.

    Channels are ordered by group of the layer, row and column of the output, and channel.
    """
    groups = 1 if product.layout is None else product.layout.groups
    high, wide = sides
    taps = [_list_taps(side) for side in sides]
    padded = np.pad(weights, ((0, 0), (0, 0), (0, 1), (0, 1)))
    by_phase = padded[:, :, taps[0][:, None, :, None], taps[1][None, :, None, :]]
    by_phase = by_phase.reshape(groups, -1, *by_phase.shape[1:]).transpose(0, 3, 4, 1, 2, 5, 6)
    codes = by_phase.reshape(-1, *by_phase.shape[4:])
    shape = (groups, high.stride, wide.stride, y.channels // groups)
    channels = np.broadcast_to(np.arange(y.channels).reshape(groups, 1, 1, -1), shape).ravel()
    layout = replace(y, height=high.blocks, width=wide.blocks, channels=len(codes))
    numbers = number_groups(groups, y.channels, (high.stride, wide.stride), y, layout)
    height, width = codes.shape[2:]
    pads = -high.first, -wide.first, _get_end(high), _get_end(wide)
    window = p.Window(height, width, 1, 1, 1, 1, *pads)
    product = replace(product, codes=codes)
    return Convolution(product, source, (), window, layout, channels, numbers)


def number_groups(
    groups: int, channels: int, factors: tuple[int, int], y: Layout, grouped: Layout
) -> Array:
    """Return the numbers of elements of grouped outputs for all elements of y.

    Args:
        groups: The number of groups of channels.
        channels: The number of channels of y.
        factors: Height and width of a group of outputs, whose elements are channels. They are
            ordered by group of channels, row, column and channel in the group.
        y: Layout of the outputs, which may end within a group.
        grouped: Layout of the groups.
    """
    high, wide = factors
    ordered = np.arange(grouped.channels).reshape(groups, high, wide, channels // groups)
    places = ordered.transpose(0, 3, 1, 2).reshape(channels, high, wide)
    rows, columns = np.arange(y.height)[:, None], np.arange(y.width)
    position = rows // high * grouped.width + columns // wide
    channel = places[:, rows % high, columns % wide]
    return np.asarray(channel * (grouped.height * grouped.width) + position)


def _list_taps(side: _Side) -> Array:
    """Return the tap of each output of a group for each element of x; -1 where there is none."""
    offsets = np.arange(side.first, side.last + 1)
    taps = np.arange(side.stride)[:, None] + side.pad - side.stride * offsets
    return np.where((taps >= 0) & (taps < side.taps), taps, -1)
