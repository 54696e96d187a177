# SPDX-License-Identifier: Apache-2.0
"""Replacement of means of 2^k values by convolutions, and of global maxima by MaxPool."""

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.require import require_input, require_shape
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.quantizers.grids import list_arguments, make_attributes, match_grid
from anybit.ops.grids import Coding, IntegerGrid

_RANKS = (3, 4)
_SPATIAL = ("strides", "dilations", "pads")


class MeanToConv(InPlacePass):
    """Replacement of AveragePool and GlobalAveragePool of 2^k values, and of GlobalMaxPool.

    The mean of 2^k values is a depthwise convolution whose weights are 2^-k, quantized to 2 bits.
    The order of sums may change: sums that round may differ in the last bit. Sums of quantized
    values that float32 holds do not round. Padded means and means of other counts stay.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        count = 0
        for node in list(iter_nodes(model.graph)):
            window = _find_window(node)
            if window is None:
                continue
            if node.op_type == "GlobalMaxPool":
                node.op_type = "MaxPool"
                node.attributes.add(ir.AttrInt64s("kernel_shape", window))
            else:
                _to_conv(node, window, model, editor)
            count += 1
        return PassResult(model, bool(count))


def _find_window(node: ir.Node) -> Sequence[int] | None:
    """Return the sizes of a window that can be replaced, or None."""
    x = node.inputs[0] if node.domain == "" and node.inputs else None
    if x is None or x.shape is None or len(x.shape) not in _RANKS or x.dtype != ir.DataType.FLOAT:
        return None
    sizes = [size for size in x.shape[1:] if isinstance(size, int)]
    if len(sizes) + 1 != len(x.shape) or 0 in sizes:
        return None
    if node.op_type == "GlobalMaxPool":
        return sizes[1:]
    window = sizes[1:] if node.op_type == "GlobalAveragePool" else _find_plain_window(node)
    count = math.prod(window or (0,))
    return window if count > 0 and count & (count - 1) == 0 else None


def _find_plain_window(node: ir.Node) -> Sequence[int] | None:
    if node.op_type != "AveragePool" or get_attribute(node, "ceil_mode", 0):
        return None
    padded = get_attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return None if padded or any(get_attribute(node, "pads", ())) else _get_kernel_shape(node)


def _get_kernel_shape(node: ir.Node) -> Sequence[int]:
    return tuple(get_attribute(node, "kernel_shape", ()))


def _to_conv(node: ir.Node, window: Sequence[int], model: ir.Model, editor: Editor) -> None:
    channels = int(require_shape(require_input(node))[1])  # type: ignore[arg-type]
    share = np.asarray(1 / math.prod(window), np.float32)
    quantizer = match_grid(
        IntegerGrid(share, np.zeros((), np.float32), range(-1, 2), Coding.NEAREST)
    )
    assert quantizer is not None, "integers have an operator"
    operator, name = quantizer.operator, node.name or node.op_type
    model.graph.opset_imports.setdefault(operator.onnx_domain, operator.version)
    weight = editor.add_constant(
        f"{name}_weight", ir.Tensor(np.full((channels, 1, *window), share))
    )
    parameters = [
        None
        if array is None
        else editor.share_parameter(name, declared.name, array, ir.DataType.FLOAT)
        for declared, array in zip(operator.inputs[1:], list_arguments(quantizer), strict=True)
    ]
    quantized = editor.insert(
        node,
        operator.onnx_name,
        [weight, *parameters],
        f"{name}_quantized",
        like=weight,
        dtype=ir.DataType.FLOAT,
        attributes=make_attributes(quantizer),
        domain=operator.onnx_domain,
    )
    attributes = [node.attributes[key] for key in _SPATIAL if key in node.attributes]
    node.op_type = "Conv"
    node.resize_inputs(2)
    node.replace_input_with(1, quantized)
    node.attributes.clear()
    for attribute in (*attributes, ir.AttrInt64s("kernel_shape", window)):
        node.attributes.add(attribute)
    node.attributes.add(ir.AttrInt64("group", channels))
