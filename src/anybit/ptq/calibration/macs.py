# SPDX-License-Identifier: Apache-2.0
"""Multiplications of layers, counted on a sample."""

import math
from collections.abc import Sequence

import onnx_ir as ir

from anybit.data.readers import Sample
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.editor import Editor
from anybit.ptq.calibration.taps import make_tap_spec
from anybit.ptq.graph.branches import expose_branch_tensors
from anybit.ptq.graph.targets import TargetNode


def count_multiplications(
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
        .open(alone=False)
        .run(sample)
    )
    sizes = {
        name: tuple(results[str(node.outputs[0].name)].tolist()) for name, node in shapes.items()
    }
    return {layer: _count_of_layer(layer, sizes) for layer in layers}


def _get_values(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]


def _count_of_layer(layer: TargetNode, shapes: dict[str, tuple[int, ...]]) -> int:
    node, weights = layer.node, [array for _, array in layer.constants]
    x = _get_shape(node.inputs[layer.activations[0]], shapes)
    y = next((shapes[str(value.name)] for value in node.outputs if value.name in shapes), None)
    if x is None or y is None:
        return 0
    match node.op_type:
        case "Conv" | "ConvTranspose" if weights and layer.weights[0].index == 1:
            moved = y if node.op_type == "Conv" else x
            return math.prod(moved) * math.prod(weights[0].shape[1:])
        case "MatMul":
            first = x if layer.activations[0] == 0 else weights[0].shape
            return math.prod(y) * first[-1]
        case "Gemm":
            transposed = get_attribute(node, "transA", 0)
            first = x if layer.activations[0] == 0 else weights[0].shape
            return math.prod(y) * first[0 if transposed else -1]
        case "GRU" | "LSTM" | "RNN":
            return math.prod(x[:2]) * sum(array.size for array in weights)
    return 0


def _get_shape(
    value: ir.Value | None, shapes: dict[str, tuple[int, ...]]
) -> tuple[int, ...] | None:
    return None if value is None else shapes.get(str(value.name))
