# SPDX-License-Identifier: Apache-2.0
"""From the attributes of convolutions and poolings to windows."""

import onnx_ir as ir

from anybit.compiler.partition.layout import Layout
from anybit.compiler.program import program as p
from anybit.compiler.reason import Unsupported
from anybit.onnx.graph.attributes import attribute_of

_LONGEST = 2**20
SINGLE = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
"""What a matrix product takes."""


def derive_window(node: ir.Node, kernel: tuple[int, ...], x: Layout, y: Layout) -> p.Window | None:
    """The window of a Conv or a pooling; None if its sizes do not lead from those of x to y's.

    One spatial dimension is the width. Padding is what the sizes ask for where it is automatic, or
    where sizes are rounded up.

    Raises:
        ModelError: An attribute of a wrong type.
    """
    count = len(kernel)
    ones = (1,) * count
    strides = attribute_of(node, "strides", ()) or ones
    dilations = attribute_of(node, "dilations", ()) or ones
    pads = attribute_of(node, "pads", ()) or (0,) * (2 * count)
    automatic = attribute_of(node, "auto_pad", "NOTSET")
    if not (count in (1, 2) and len(strides) == len(dilations) == count and len(pads) == 2 * count):
        return None
    if min((*kernel, *strides, *dilations)) < 1 or min(pads) < 0:
        return None
    if max((*kernel, *strides, *dilations, *pads)) > _LONGEST:
        return None
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
    (top, left), (bottom, right) = ((0, *each)[-2:] for each in (starts, ends))
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


def is_padded(window: p.Window) -> bool:
    """Whether a window reaches over a border."""
    return any((window.pad_top, window.pad_left, window.pad_bottom, window.pad_right))


def pooling_window(node: ir.Node, x: Layout, y: Layout) -> p.Window:
    """The window of a MaxPool, or of all there is.

    Raises:
        Unsupported: Its sizes are not those of its attributes.
    """
    if node.op_type == "GlobalMaxPool":
        return p.Window(x.height, x.width, 1, 1, 1, 1, 0, 0, 0, 0)
    window = derive_window(node, attribute_of(node, "kernel_shape", ()), x, y)
    if window is None:
        raise Unsupported("its sizes are not those of its attributes")
    return window
