# SPDX-License-Identifier: Apache-2.0
"""Multiply-accumulate operations (MACs) of layers for a sample."""

import math
from collections.abc import Sequence

import onnx_ir as ir

from anybit.data.readers import Sample
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.macs import count_macs
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.qdq.packed_weights import is_nbits
from anybit.ptq.calibration.taps import make_tap_spec
from anybit.ptq.graph.branches import expose_branch_tensors
from anybit.ptq.graph.stored_weights import describe_stored_weight
from anybit.ptq.graph.targets import TargetNode


def count_layer_macs(
    model: ir.Model, layers: Sequence[TargetNode], sample: Sample, where: str
) -> dict[TargetNode, int]:
    """Return the multiplications of each layer for one sample, padding included."""
    values = [value for layer in layers for value in (*layer.computed_inputs, *layer.node.outputs)]
    names = {str(value.name) for value in values if value.name}
    copy = model.clone()
    expose_branch_tensors(copy, names - {str(value.name) for value in _get_values(copy)})
    editor = Editor(copy)
    made = {str(value.name): value for value in _get_values(copy)}
    shapes = {name: ir.Node("", "Shape", [made[name]]) for name in made if name in names}
    for name, node in shapes.items():
        node.outputs[0].name = editor.unique(f"{name}_shape")
        copy.graph.append(node)
    results = (
        make_tap_spec(copy, [node.outputs[0] for node in shapes.values()], where)
        .open(single_thread=False)
        .run(sample)
    )
    sizes = {
        name: tuple(results[str(node.outputs[0].name)].tolist()) for name, node in shapes.items()
    }
    return {layer: _count_macs_of_layer(layer, sizes) for layer in layers}


def _get_values(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]


def _count_macs_of_layer(layer: TargetNode, shapes: dict[str, tuple[int, ...]]) -> int:
    node = layer.node
    inputs = [shapes.get(str(value.name)) if value is not None else None for value in node.inputs]
    y = next((shapes[str(value.name)] for value in node.outputs if value.name in shapes), None)
    arrays = {weight.index: array for weight, array in layer.constants}
    if inputs[layer.activations[0]] is None or y is None:
        return 0
    for index, array in arrays.items():
        inputs[index] = array.shape
    for index in layer.stored:
        weight = describe_stored_weight(node, index)
        inputs[index] = None if weight is None else weight.shape
    if is_nbits(node) or is_onnx_op(node, "Conv", "ConvTranspose", "Gemm", "MatMul"):
        return count_macs(node, inputs[0], inputs[1], y) or 0
    if is_onnx_op(node, "GRU", "LSTM", "RNN") and inputs[0] is not None:
        return math.prod(inputs[0][:2]) * sum(array.size for array in arrays.values())
    return 0
