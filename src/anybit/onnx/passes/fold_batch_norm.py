# SPDX-License-Identifier: Apache-2.0
"""Folding of BatchNormalization into the preceding weights."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor, drop_if_unread
from anybit.onnx.graph.require import require_input
from anybit.onnx.passes.batch_norm_to_affine import EPSILON, read_parameters

# The axis of the weight with the output channels.
_CHANNEL_AXES = {"Conv": 0, "ConvTranspose": 1}


class FoldBatchNorm(InPlacePass):
    """Folding of BatchNormalization into the weights of a convolution that nothing else reads.

    The new weights and biases are computed in float64 and rounded once, so results change by
    roundings. Only quantization uses this pass.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        count = 0
        for node in list(model.graph):
            parameters = read_parameters(node)
            before = None if parameters is None else node.inputs[0]
            producer = None if before is None else before.producer()
            if parameters is None or producer is None:
                continue
            channel = _CHANNEL_AXES.get(producer.op_type)
            if channel is not None and _is_foldable(producer):
                epsilon = get_attribute(node, "epsilon", EPSILON)
                _fold(producer, channel, _compute_affine(parameters, epsilon), editor)
                editor.replace(node, producer.outputs[0], shared=False)
                count += 1
        return PassResult(model, bool(count))


def _is_foldable(node: ir.Node) -> bool:
    """Return whether weight and bias are constant and nothing else reads the output."""
    result = node.outputs[0]
    if node.domain != "" or len(result.uses()) != 1 or result.is_graph_output():
        return False
    if node.op_type == "ConvTranspose" and get_attribute(node, "group", 1) != 1:
        return False
    parameters = [value for value in node.inputs[1:] if value is not None]
    return all(is_constant(value) and value.dtype == ir.DataType.FLOAT for value in parameters)


def _compute_affine(parameters: list[Array], epsilon: float) -> tuple[Array, Array]:
    scale, bias, mean, variance = (parameter.astype(np.float64) for parameter in parameters)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + np.float64(np.float32(epsilon)))
        return factor, bias - mean * factor


def _fold(node: ir.Node, channel: int, affine: tuple[Array, Array], editor: Editor) -> None:
    factor, offset = affine
    old_weight = require_input(node, 1)
    old_bias = node.inputs[2] if len(node.inputs) > 2 else None
    weight = read_array(old_weight)
    shape = [1] * weight.ndim
    shape[channel] = -1
    weight = weight * factor.reshape(shape)
    bias = offset if old_bias is None else read_array(old_bias) * factor + offset
    node.resize_inputs(3)
    for index, array, old in ((1, weight, old_weight), (2, bias, old_bias)):
        name = f"{node.name or node.op_type}_{'weight' if index == 1 else 'bias'}"
        new = editor.add_constant(name, ir.tensor(array.astype(np.float32)))
        node.replace_input_with(index, new)
        if old is not None:
            drop_if_unread(old)
