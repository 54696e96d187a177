# SPDX-License-Identifier: Apache-2.0
"""MultiThreshold of QONNX, the activations of FINN: number of thresholds that x reaches.

    y = out_scale * (number of thresholds t of the channel with x >= t) + out_bias

The product and the sum are rounded to float32, one after the other. A NaN reaches no threshold.
Source: qonnx/custom_op/general/multithreshold.py of QONNX 1.0.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.require import require_input
from anybit.onnx.operators.registry import CANONICAL_DOMAINS

SPELLINGS = frozenset(
    (domain, "MultiThreshold") for domain in ("qonnx.custom_op.general", *CANONICAL_DOMAINS)
)
"""The domains and the name that exporters use."""

# float32 holds integers up to this magnitude.
_MOST_THRESHOLDS = 2**24
_LARGEST_INTEGER = 2**53

# The default layout in QONNX, by the rank of x.
_LAYOUTS = {2: "NC", 3: "NWC", 4: "NCHW"}


def is_multi_threshold(node: ir.Node) -> bool:
    """Return whether the node is a MultiThreshold, under any domain that exporters use."""
    return (node.domain, node.op_type) in SPELLINGS


@dataclass(frozen=True, eq=False)
class Staircase:
    """The constants of a MultiThreshold.

    Attributes:
        thresholds: float32 of shape (channels or 1, steps), each row ascending, NaN last.
        values: float32 of shape (steps + 1,): the result for each count of thresholds.
        trailing_axes: The number of axes of x after the channels; 0 if all channels share their
            thresholds.
    """

    thresholds: Array
    values: Array
    trailing_axes: int


def read_staircase(node: ir.Node) -> Staircase:
    """Read the constants of a MultiThreshold.

    Raises:
        ModelError: Thresholds are computed, or of another shape or type; the layout does not fit x;
            the numbers of channels differ; or the type or rank of x is unknown.
    """
    axis = find_channel_axis(node)
    following = 0 if axis is None else len(_get_shape(node)) - axis - 1
    thresholds = _round_up(node, read_array(_get_inputs(node)[1]))
    steps = thresholds.shape[1]
    scale, bias = get_attribute(node, "out_scale", 1.0), get_attribute(node, "out_bias", 0.0)
    with np.errstate(all="ignore"):
        values = np.arange(steps + 1).astype(np.float32) * np.float32(scale) + np.float32(bias)
    return Staircase(thresholds, values, following)


def find_channel_axis(node: ir.Node) -> int | None:
    """Return the axis of x along which thresholds differ; None if all channels share them.

    Raises:
        ModelError: See `read_staircase`.
    """
    x, table = _get_inputs(node)
    if x.dtype not in (None, ir.DataType.FLOAT):
        raise ModelError(f"{describe(node)} reads {x.dtype.name.lower()}; x must be float32")
    if not is_constant(table) or table.const_value is None:
        raise ModelError(
            f"{describe(node)}: its thresholds are computed when the model runs; they must be "
            "constants, so fold them first (anybit clean)"
        )
    shape = tuple(table.const_value.shape.numpy())
    if len(shape) != 2 or 0 in shape or shape[1] > _MOST_THRESHOLDS:
        raise ModelError(
            f"{describe(node)}: its thresholds have shape {list(shape)}, must be "
            f"(channels or 1, 1 to {_MOST_THRESHOLDS})"
        )
    return None if shape[0] == 1 else _resolve_channel_axis(node, shape[0])


def is_increasing(node: ir.Node) -> bool:
    """Return whether the result is non-decreasing in x; otherwise it is non-increasing."""
    return get_attribute(node, "out_scale", 1.0) >= 0


def _get_inputs(node: ir.Node) -> tuple[ir.Value, ir.Value]:
    x, table = node.inputs if len(node.inputs) == 2 else (None, None)
    if x is None or table is None or len(node.outputs) != 1:
        raise ModelError(f"{describe(node)} must have 2 inputs, x and thresholds, and 1 output")
    return x, table


def _round_up(node: ir.Node, array: Array) -> Array:
    """Return thresholds in float32 that the same float32 numbers reach, in ascending order."""
    if array.dtype.kind in "iu" and np.any(np.abs(array.astype(np.float64)) > _LARGEST_INTEGER):
        raise ModelError(f"{describe(node)}: its thresholds exceed 2^53, use smaller ones")
    if array.dtype.kind not in "iuf":
        raise ModelError(f"{describe(node)}: its thresholds are {array.dtype}, must be numbers")
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):  # infinite beyond float32
        narrow = wide.astype(np.float32)
    above = np.nextafter(narrow, np.float32(np.inf))
    return np.sort(np.where(narrow < wide, above, narrow), axis=1)


def _get_shape(node: ir.Node) -> ir.Shape:
    """Return the shape of x, which the output has, too."""
    x = require_input(node)
    shape = x.shape if x.shape is not None else node.outputs[0].shape
    if shape is None:
        raise ModelError(
            f"{describe(node)} has thresholds per channel, and the rank of {x.name!r} is not "
            "known; declare the shapes of the model"
        )
    return shape


def _resolve_channel_axis(node: ir.Node, channels: int) -> int:
    shape = _get_shape(node)
    layout = str(get_attribute(node, "data_layout", "")) or _LAYOUTS.get(len(shape), "NC")
    # Without height and width, channels are at axis 1 in any layout.
    axis = layout.find("C") if "C" in layout and len(shape) > 2 else 1
    if axis >= len(shape):
        raise ModelError(
            f"{describe(node)}: its data_layout {layout!r} has its channels at axis {axis}, but x "
            f"has {len(shape)} axes"
        )
    size = shape[axis]
    if isinstance(size, int) and size != channels:
        raise ModelError(
            f"{describe(node)} has thresholds for {channels} channels, but axis {axis} of x has "
            f"{size} elements"
        )
    return axis
