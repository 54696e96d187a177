# SPDX-License-Identifier: Apache-2.0
"""Windows of convolutions and poolings."""

import onnx_ir as ir

from anybit.compiler.partition.layout import Layout
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.reductions import get_reduced_axes

_LONGEST = 2**20
SINGLE = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
"""The window of a matrix product."""


def derive_window(node: ir.Node, kernel: tuple[int, ...], x: Layout, y: Layout) -> p.Window | None:
    """Return the window of a Conv or a pooling; None if the sizes of x and y contradict it.

    A single spatial axis is the width. Automatic padding, and that of sizes that are rounded up,
    follows from the sizes.

    Raises:
        ModelError: An attribute of a wrong type.
    """
    sides = parse_sides(node, kernel)
    if sides is None:
        return None
    count, strides, dilations, pads = len(kernel), *sides
    automatic = get_attribute(node, "auto_pad", "NOTSET")
    sizes = list(zip((x.height, x.width)[-count:], (y.height, y.width)[-count:], strict=True))
    starts, ends = [], []
    for axis, (size, result) in enumerate(sizes):
        reach = (result - 1) * strides[axis] + dilations[axis] * (kernel[axis] - 1) + 1
        start, end = pads[axis], pads[count + axis]
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            total = max(reach - size, 0)
            start = total // 2 if automatic == "SAME_UPPER" else total - total // 2
            end = total - start
        elif automatic == "VALID":
            start = end = 0
        if size + start + end < reach:
            end = reach - size - start  # rounded up
        if (size + start + end - reach) // strides[axis]:
            return None
        starts.append(start)
        ends.append(end)
    height, width = (1, *kernel)[-2:]
    stride_height, stride_width = (1, *strides)[-2:]
    dilation_height, dilation_width = (1, *dilations)[-2:]
    (top, left), (bottom, right) = ((0, *pad)[-2:] for pad in (starts, ends))
    return p.Window(
        height,
        width,
        stride_height,
        stride_width,
        dilation_height,
        dilation_width,
        top,
        left,
        bottom,
        right,
    )


def parse_sides(
    node: ir.Node, kernel: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Return strides, dilations and pads of a node; None if they do not fit its kernel."""
    count = len(kernel)
    ones = (1,) * count
    strides = get_attribute(node, "strides", ()) or ones
    dilations = get_attribute(node, "dilations", ()) or ones
    pads = get_attribute(node, "pads", ()) or (0,) * (2 * count)
    if not (count in (1, 2) and len(strides) == len(dilations) == count and len(pads) == 2 * count):
        return None
    if min((*kernel, *strides, *dilations)) < 1 or min(pads) < 0:
        return None
    if max((*kernel, *strides, *dilations, *pads)) > _LONGEST:
        return None
    return tuple(strides), tuple(dilations), tuple(pads)


def is_padded(window: p.Window) -> bool:
    """Return whether a window reaches over a border."""
    return any((window.pad_top, window.pad_left, window.pad_bottom, window.pad_right))


def derive_reduced_window(node: ir.Node, x: Layout, y: Layout) -> tuple[tuple[int, ...], p.Window]:
    """Return the sizes of the window of a reduction or a global pooling, and the window.

    Raises:
        Unsupported: The sizes of y are in another order.
    """
    axes = [axis for axis in range(1, x.rank) if axis != x.axis]
    reduced = get_reduced_axes(node, x.rank) if has_trait(node, OpTrait.REDUCES_AXES) else axes
    kernel = tuple(
        size if axis in (reduced or ()) else 1 for axis, size in zip(axes, x.spatial, strict=True)
    )
    height, width = (1, 1, *kernel)[-2:]
    if (y.height, y.width, y.channels) != (x.height // height, x.width // width, x.channels):
        raise Unsupported("it leaves an axis between others")
    return kernel, p.Window(height, width, 1, 1, 1, 1, 0, 0, 0, 0)


def derive_pooling_window(node: ir.Node, x: Layout, y: Layout) -> p.Window:
    """Return the window of a pooling: of a global one, all elements.

    Raises:
        Unsupported: The sizes of x and y contradict its attributes.
    """
    if node.op_type != "MaxPool":
        return derive_reduced_window(node, x, y)[1]
    window = derive_window(node, get_attribute(node, "kernel_shape", ()), x, y)
    if window is None:
        raise refuse_shape(y)
    return window


def refuse_channels(count: int, x: Layout) -> Unsupported:
    """Return the reason not to multiply an input by weights of another number of channels."""
    return Unsupported(f"its weights are for {count} input channels, its input has {x.channels}")


def refuse_shape(y: Layout) -> Unsupported:
    """Return the reason not to compute an output whose sizes contradict the attributes."""
    return Unsupported(
        f"its output sizes {list(y.sizes)} after the batch contradict its kernel, strides and pads"
    )
