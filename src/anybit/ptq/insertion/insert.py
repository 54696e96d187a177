# SPDX-License-Identifier: Apache-2.0
"""Insertion of quantizers into a copy of a model."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array, read_array
from anybit.onnx.graph.editor import Editor, drop_if_unread
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.walk import iter_nodes
from anybit.ops.grids import Grid, IntegerGrid
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.algorithms.layer_runner import broadcast_channels
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.graph.branches import find_branch_owners, find_enclosing_reader
from anybit.ptq.graph.outputs import remove_output_nodes
from anybit.ptq.graph.targets import ActivationTensor, NodeInput, TargetNode
from anybit.ptq.insertion.nodes import NodeWriter
from anybit.ptq.specs.dynamic_grid import DynamicGrid, DynamicIntegerGrid, MxGrid
from anybit.ptq.specs.quantize import (
    quantize_to_grid,
    select_block_operator,
    select_operator,
)

_BIAS_CODES = range(-(2**31), 2**31)
# The largest scale of a bias, as a share of the largest magnitude of the bias.
_LARGEST_BIAS_SCALE = 2.0**-10
# Values of grids up to this magnitude are finite in float32, however they are rounded.
_SAFE_REACH = 2.0**127


def insert_quantizers(
    model: ir.Model,
    weights: Mapping[TargetNode, Sequence[QuantizedWeight]],
    params: Mapping[ActivationTensor, LayerParams],
) -> ir.Model:
    """Return a copy of a model with quantizers.

    Args:
        model: The float model.
        weights: The quantized weights of each layer, in the order of the layer's weights.
        params: The parameters of activations, and of the biases of the layers that read them.
    """
    copy = model.clone()
    nodes = dict(zip(iter_nodes(model.graph), iter_nodes(copy.graph), strict=True))
    values = {
        value: copied
        for node, other in nodes.items()
        for value, copied in _pair_values(node, other)
    }
    layers = {
        layer: replace(layer, node=nodes[layer.node])
        for layer in (
            *weights,
            *(layer for activation in params for layer, _ in activation.readers),
        )
    }

    def copy_uses(uses: Sequence[NodeInput]) -> tuple[NodeInput, ...]:
        return tuple((nodes[node], index) for node, index in uses)

    copied_params = {}
    for activation, chosen in params.items():
        copied = replace(
            activation,
            value=values[activation.value],
            readers=[(layers[layer], index) for layer, index in activation.readers],
            sites=tuple((values[value], copy_uses(uses)) for value, uses in activation.sites),
        )
        corrections = {layers[layer]: bias for layer, bias in chosen.corrections.items()}
        copied_params[copied] = replace(chosen, corrections=corrections)
    _Inserter(copy).insert(
        {layers[layer]: quantized for layer, quantized in weights.items()}, copied_params
    )
    remove_output_nodes(copy)
    return copy


def _pair_values(node: ir.Node, copied: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield pairs of values of a node and of its copy."""
    values, others = (*node.inputs, *node.outputs), (*copied.inputs, *copied.outputs)
    for value, other in zip(values, others, strict=True):
        if value is not None and other is not None:
            yield value, other


class _Inserter:
    """Insertion of quantizers into a model, in place."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._editor = Editor(model)
        self._positions = {node: position for position, node in enumerate(iter_nodes(model.graph))}
        self._branch_owners = find_branch_owners(model)
        self._weights: dict[tuple[ir.Value, bytes], ir.Value] = {}
        self._shared: set[ir.Value] = set()

    def insert(
        self,
        weights: Mapping[TargetNode, Sequence[QuantizedWeight]],
        params: Mapping[ActivationTensor, LayerParams],
    ) -> None:
        """Quantize activations, weights and biases."""
        self._shared = _find_shared_constants(weights)
        by_layer: dict[TargetNode, LayerParams] = {}
        for activation, chosen in params.items():
            if activation.sites:
                self._quantize_sites(activation, chosen)
            else:
                self._quantize_activation(activation, chosen)
            by_layer |= {layer: chosen for layer, _ in activation.readers if layer.weights}
        for layer in dict.fromkeys([*weights, *by_layer]):
            quantized = weights.get(layer, ())
            self._quantize_weights(layer, quantized)
            if layer in by_layer:
                self._quantize_bias(layer, by_layer[layer], quantized)

    def _quantize_activation(self, activation: ActivationTensor, params: LayerParams) -> None:
        """Scale an activation and quantize it, for all layers that read it."""
        layer, value = activation.readers[0][0], activation.value
        before = self._find_reader(value, layer.node)
        result = value
        if params.smoothing is not None:
            factors = broadcast_channels(1 / params.smoothing, layer)
            constant = self._editor.add_constant(f"{value.name}_smoothing", ir.tensor(factors))
            result = self._editor.insert(
                before,
                "Mul",
                [value, constant],
                f"{value.name}_smoothed",
                like=value,
                dtype=ir.DataType.FLOAT,
            )
        if params.grid is not None:
            result = self._quantize(before, result, params.grid, str(value.name))
        for reader, index in activation.readers:
            reader.node.replace_input_with(index, result)

    def _quantize_sites(self, activation: ActivationTensor, params: LayerParams) -> None:
        """Quantize the tensors in place of an activation, on one grid."""
        if params.grid is None:  # no sample runs it
            return
        for value, uses in activation.sites:
            readers = (self._find_reader(value, node) for node, _ in uses)
            first = min(readers, key=self._positions.__getitem__)
            result = self._quantize(first, value, params.grid, str(value.name))
            for node, index in uses:
                node.replace_input_with(index, result)

    def _quantize_weights(self, layer: TargetNode, quantized: Sequence[QuantizedWeight]) -> None:
        """Store the quantized weights of a layer; equal copies are stored once."""
        for weight, rounded in zip(layer.weights, quantized, strict=False):
            value = layer.node.inputs[weight.index]
            if value is None:
                continue
            key = value, _hash(rounded) if value in self._shared else b""
            if key not in self._weights:
                self._weights[key] = self._store_weight(layer.node, value, rounded)
            layer.node.replace_input_with(weight.index, self._weights[key])
            drop_if_unread(value)

    def _store_weight(self, reader: ir.Node, value: ir.Value, rounded: QuantizedWeight) -> ir.Value:
        before = self._find_reader(value, reader)
        may_overflow = not _compute_reach(rounded.grid) < _SAFE_REACH
        if may_overflow and not np.isfinite(quantize_to_grid(rounded.array, rounded.grid)).all():
            raise ModelError(
                f"{value.name!r} has numbers so near to the end of float32 that they become "
                f"infinite; keep {get_label(before)!r} in floats"
            )
        array, grid = rounded.in_blocks
        original = read_array(value)
        is_same = array.shape == original.shape and array.tobytes() == original.tobytes()
        stored = (
            value
            if is_same
            else self._editor.add_constant(f"{value.name}_stored", ir.tensor(array))
        )
        result = self._quantize(before, stored, grid, str(value.name))
        if rounded.blocks is None or array.shape == original.shape:
            return result
        return self._make_writer(before, str(value.name)).merge_blocks(result, rounded.blocks)

    def _quantize_bias(
        self, layer: TargetNode, params: LayerParams, weights: Sequence[QuantizedWeight]
    ) -> None:
        """Correct the bias of a layer, and quantize it if the weights are quantized."""
        if layer.bias is None:
            return
        self._correct_bias(layer.node, layer.bias, params.corrections.get(layer))
        value = layer.node.inputs[layer.bias]
        if value is None or layer.bias_axis is None or not weights:
            return
        grid = _make_bias_grid(read_array(value), params.grid, weights[0].grid)
        if grid is not None:
            result = self._quantize(layer.node, value, grid, str(value.name))
            layer.node.replace_input_with(layer.bias, result)

    def _correct_bias(self, node: ir.Node, index: int, correction: Array | None) -> None:
        """Add a correction to the bias of one node; other nodes keep the original."""
        value = node.inputs[index]
        if correction is None or value is None:
            return
        corrected = ir.tensor(read_array(value) + correction)
        node.replace_input_with(
            index, self._editor.add_constant(f"{value.name}_corrected", corrected)
        )
        drop_if_unread(value)

    def _quantize(
        self, before: ir.Node, x: ir.Value, grid: Grid | DynamicGrid, name: str
    ) -> ir.Value:
        """Insert a quantizer before a node, and return its output."""
        writer = self._make_writer(before, name)
        if isinstance(grid, MxGrid):
            return writer.quantize(x, select_block_operator(grid))
        if isinstance(grid, DynamicIntegerGrid):
            return writer.quantize_rows(x, grid)
        return writer.quantize(x, select_operator(grid))

    def _make_writer(self, before: ir.Node, name: str) -> NodeWriter:
        return NodeWriter(self._model, self._editor, before, name)

    def _find_reader(self, value: ir.Value, node: ir.Node) -> ir.Node:
        return find_enclosing_reader(value, node, self._branch_owners)


def _make_bias_grid(
    bias: Array, activation: Grid | DynamicGrid | None, weight: Grid
) -> IntegerGrid | None:
    """Return the grid of a bias in 32 bits, with the scale of the products; None if it is unfit.

    Sums of codes then need no other scale. Where that scale is too coarse, such as in channels of
    zeros, it is divided by powers of two.
    """
    if not (isinstance(activation, IntegerGrid) and isinstance(weight, IntegerGrid)):
        return None
    step = (activation.scale.astype(np.float64) * weight.scale).ravel()
    largest = float(np.abs(bias).max(initial=0))
    if step.size not in (1, bias.size) or not largest:
        return None
    halvings = np.maximum(0, np.ceil(np.log2(step / (largest * _LARGEST_BIAS_SCALE))))
    scale = (step * np.exp2(-halvings)).astype(np.float32)
    if np.any(largest > scale.astype(np.float64) * (_BIAS_CODES[-1] / 2)):
        return None
    zero = np.zeros((), np.float32)
    return IntegerGrid(scale if scale.size > 1 else scale.reshape(()), zero, _BIAS_CODES)


def _find_shared_constants(layers: Iterable[TargetNode]) -> set[ir.Value]:
    """Return the weights that layers use more than once."""
    counts = Counter(
        layer.node.inputs[weight.index] for layer in layers for weight in layer.weights
    )
    return {value for value, count in counts.items() if value is not None and count > 1}


def _compute_reach(grid: Grid) -> float:
    """Return the largest magnitude of the values of a grid, in float64."""
    scale = np.abs(grid.scale, dtype=np.float64)
    if not isinstance(grid, IntegerGrid):
        return float(scale.max()) * grid.format.largest
    steps = np.maximum(np.abs(grid.highest - grid.zeropt), np.abs(grid.lowest - grid.zeropt))
    return float((scale * steps).max())


def _hash(rounded: QuantizedWeight) -> bytes:
    """Return a hash, equal for equal weights with equal quantizers."""
    operator = select_operator(rounded.grid)
    arrays = [rounded.array, *operator.call.parameters.values()]
    shapes = [array.shape for array in arrays]
    call = repr((operator.operator.onnx_name, dict(operator.call.attributes), shapes))
    return sha256(b"".join([call.encode(), *(array.tobytes() for array in arrays)])).digest()
