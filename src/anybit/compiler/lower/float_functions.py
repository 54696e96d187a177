# SPDX-License-Identifier: Apache-2.0
"""Functions of float32: softmax and layer normalization of channels, and means of pixels."""

from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import is_average
from anybit.compiler.partition.layout import Layout
from anybit.compiler.program import program as p
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array

_EPSILON = 1e-5  # default of ONNX
_FLOAT = 1  # TensorProto.FLOAT


FunctionRecord: TypeAlias = type[p.Softmax | p.LayerNorm | p.SpatialMean]


def find_float_function(
    node: ir.Node, x: Layout, y: Layout
) -> tuple[FunctionRecord, dict[str, Any]] | None:
    """Return the instruction of a node, and its fields; None if there is none.

    Args:
        node: A Softmax or LayerNormalization over the last axis, or a mean.
        x, y: The layouts of its input and its output.
    """
    if is_average(node):
        return (p.SpatialMean, {}) if y.single and y.channels == x.channels else None
    if node.op_type == "Softmax":
        return p.Softmax, {}
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return None
    if get_attribute(node, "stash_type", _FLOAT) != _FLOAT:
        return None
    gains = _read_channels(node, 1, 1, y.channels)
    offsets = _read_channels(node, 2, 0, y.channels)
    if gains is None or offsets is None:
        return None
    epsilon = np.array([get_attribute(node, "epsilon", _EPSILON)], np.float32)
    return p.LayerNorm, {"gains": gains, "offsets": offsets, "epsilon": epsilon}


def _read_channels(node: ir.Node, place: int, default: float, channels: int) -> Array | None:
    """Return one finite float32 number per channel; None for other inputs."""
    value = node.inputs[place] if place < len(node.inputs) else None
    if value is None:
        return np.full(channels, default, np.float32)
    if not is_constant(value):
        return None
    array = read_array(value)
    if array.size != 1 and (array.size != channels or array.shape[-1:] != (channels,)):
        return None  # one number per token, for example
    if array.dtype != np.float32 or not np.isfinite(array).all():
        return None
    return np.array(np.broadcast_to(array.reshape(-1), (channels,)))
