# SPDX-License-Identifier: Apache-2.0
"""Write quantizers into a model."""

from collections.abc import Iterator, Mapping, Sequence
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
from anybit.ptq.algorithms.layer_runner import along_channels
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight
from anybit.ptq.graph.blocks import BlockLayout
from anybit.ptq.graph.branches import find_branch_owners, find_enclosing_reader
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.insertion.nodes import Nodes
from anybit.ptq.specs.dynamic_grid import DynamicGrid
from anybit.ptq.specs.quantize import quantize_to_grid, select_operator

_BIAS_CODES = range(-(2**31), 2**31)
# A step of a bias is not more than this share of the largest.
_COARSEST = 2.0**-10
# The opset from which on Slice has inputs for what were attributes.
_SLICE_WITH_INPUTS = 10


def insert_quantizers(
    model: ir.Model,
    weights: Mapping[TargetNode, Sequence[QuantizedWeight]],
    choices: Mapping[ActivationTensor, LayerParams],
) -> ir.Model:
    """A copy of a model with quantizers: tensors as chosen, weights in the order of the layer's."""
    copy = model.clone()
    nodes = dict(zip(iter_nodes(model.graph), iter_nodes(copy.graph), strict=True))
    values = {value: at for old, new in nodes.items() for value, at in _pairs(old, new)}
    layers = {
        layer: replace(layer, node=nodes[layer.node])
        for layer in (*weights, *(layer for each in choices for layer, _ in each.readers))
    }
    moved = {}
    for source, choice in choices.items():
        readers = [(layers[layer], index) for layer, index in source.readers]
        corrections = {layers[layer]: each for layer, each in choice.corrections.items()}
        anchors = tuple(
            (values[value], tuple((nodes[node], index) for node, index in uses))
            for value, uses in source.sites
        )
        place = replace(source, value=values[source.value], readers=readers, sites=anchors)
        moved[place] = replace(choice, corrections=corrections)
    Writer(copy).write({layers[layer]: each for layer, each in weights.items()}, moved)
    return copy


def _pairs(old: ir.Node, new: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """The values of a node, with those of its copy."""
    for one, other in zip((*old.inputs, *old.outputs), (*new.inputs, *new.outputs), strict=True):
        if one is not None and other is not None:
            yield one, other


class Writer:
    """Puts quantizers before what multiplies. The model is changed in place."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._editor = Editor(model)
        self._positions = {node: place for place, node in enumerate(iter_nodes(model.graph))}
        self._holders = find_branch_owners(model)
        self._weights: dict[tuple[ir.Value, bytes], ir.Value] = {}

    def write(
        self,
        weights: Mapping[TargetNode, Sequence[QuantizedWeight]],
        choices: Mapping[ActivationTensor, LayerParams],
    ) -> None:
        """Quantize tensors as chosen, and put weights, in the order of the layer's, in place."""
        read: dict[TargetNode, LayerParams] = {}
        for source, choice in choices.items():
            if source.sites:
                self._anchored(source, choice)
            else:
                result = self._activation(source, choice)
                for layer, index in source.readers:
                    layer.node.replace_input_with(index, result)
            read |= {layer: choice for layer, _ in source.readers if layer.weights}
        for layer in dict.fromkeys([*weights, *read]):
            self._constants(layer, weights.get(layer, ()), read.get(layer))

    def _activation(self, source: ActivationTensor, choice: LayerParams) -> ir.Value:
        layer, value = source.readers[0][0], source.value
        name, before = str(value.name), find_enclosing_reader(value, layer.node, self._holders)
        result = value
        if choice.smoothing is not None:
            factor = along_channels(1 / choice.smoothing, layer)
            constant = self._editor.constant(f"{name}_smoothing", ir.tensor(factor))
            result = self._editor.insert(
                before,
                "Mul",
                [value, constant],
                f"{name}_smoothed",
                like=value,
                dtype=ir.DataType.FLOAT,
            )
        if isinstance(choice.grid, DynamicGrid):
            return self._nodes(before, name).in_blocks(result, choice.grid)
        if choice.grid is None:
            return result
        return self._quantizer(before, result, choice.grid, name)

    def _anchored(self, source: ActivationTensor, choice: LayerParams) -> None:
        """Quantize the tensors from which a source is moved, on one grid."""
        if choice.grid is None:  # no sample runs it
            return
        assert not isinstance(choice.grid, DynamicGrid), "it is to be integers"
        for value, uses in source.sites:
            readers = (find_enclosing_reader(value, node, self._holders) for node, _ in uses)
            first = min(readers, key=self._positions.__getitem__)
            result = self._quantizer(first, value, choice.grid, str(value.name))
            for node, index in uses:
                node.replace_input_with(index, result)

    def _constants(
        self, layer: TargetNode, rounded: Sequence[QuantizedWeight], x: LayerParams | None
    ) -> None:
        """Quantize the weights of a layer, if they are rounded, and its bias."""
        for weight, each in zip(layer.weights, rounded, strict=False):
            old = layer.node.inputs[weight.index]
            assert old is not None
            key = old, _digest(each)
            if key not in self._weights:
                before = find_enclosing_reader(old, layer.node, self._holders)
                self._weights[key] = self._constant(before, old, each)
            layer.node.replace_input_with(weight.index, self._weights[key])
            drop_if_unread(old)
        if layer.bias is not None and x is not None:
            self._correct(layer, x.corrections.get(layer))
            if rounded and x.grid is not None:
                self._bias(layer, x.grid, rounded[0].grid)

    def _constant(self, node: ir.Node, old: ir.Value, rounded: QuantizedWeight) -> ir.Value:
        name, (array, grid) = str(old.name), rounded.cut
        if not np.isfinite(quantize_to_grid(rounded.array, rounded.grid)).all():
            raise ModelError(
                f"{name!r} has numbers so near to the end of float32 that they become infinite; "
                f"keep {get_label(node)!r} in floats"
            )
        given = read_array(old)
        same = array.shape == given.shape and array.tobytes() == given.tobytes()
        x = old if same else self._editor.constant(f"{name}_stored", ir.tensor(array))
        result = self._quantizer(node, x, grid, name)
        blocks = rounded.blocks
        return (
            result
            if array.shape == given.shape or blocks is None
            else self._joined(node, result, blocks)
        )

    def _joined(self, node: ir.Node, cut: ir.Value, blocks: BlockLayout) -> ir.Value:
        """A tensor that is cut into blocks in its own shape."""
        result = self._reshaped(node, cut, blocks.padded_shape)
        if blocks.padded_shape != blocks.flat_shape:
            result = self._shortened(node, result, blocks)
        return (
            result
            if blocks.flat_shape == blocks.shape
            else self._reshaped(node, result, blocks.shape)
        )

    def _reshaped(self, node: ir.Node, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
        sizes = self._editor.shared_constant(
            "shape", f"{x.name}_shape", np.asarray(shape, np.int64)
        )
        result = self._editor.insert(
            node, "Reshape", [x, sizes], f"{x.name}_joined", like=x, dtype=ir.DataType.FLOAT
        )
        result.shape = ir.Shape(shape)
        return result

    def _shortened(self, node: ir.Node, x: ir.Value, blocks: BlockLayout) -> ir.Value:
        """Without what fills the last block."""
        where = {"starts": [0], "ends": [blocks.length], "axes": [blocks.first]}
        inputs, attributes = [x], [ir.AttrInt64s(name, each) for name, each in where.items()]
        if self._model.graph.opset_imports.get("", 1) >= _SLICE_WITH_INPUTS:
            attributes = []
            inputs += [
                self._editor.shared_constant(name, f"{x.name}_{name}", np.asarray(each, np.int64))
                for name, each in where.items()
            ]
        result = self._editor.insert(
            node,
            "Slice",
            inputs,
            f"{x.name}_short",
            like=x,
            dtype=ir.DataType.FLOAT,
            attributes=attributes,
        )
        result.shape = ir.Shape(blocks.flat_shape)
        return result

    def _correct(self, layer: TargetNode, correction: Array | None) -> None:
        """Add to a bias; other layers keep theirs."""
        if correction is None or layer.bias is None:
            return
        old = layer.node.inputs[layer.bias]
        assert old is not None
        new = self._editor.constant(
            f"{old.name}_corrected", ir.tensor(read_array(old) + correction)
        )
        layer.node.replace_input_with(layer.bias, new)
        drop_if_unread(old)

    def _bias(self, layer: TargetNode, x: Grid | DynamicGrid, weight: Grid) -> None:
        """On the grid of the products, in 32 bits: sums of codes then need no other unit.

        Where that is too coarse, as for channels of zeros, it is divided by powers of two.
        """
        if layer.bias is None or layer.bias_axis is None:
            return
        old = layer.node.inputs[layer.bias]
        assert old is not None
        array = read_array(old)
        if not (isinstance(x, IntegerGrid) and isinstance(weight, IntegerGrid)):
            return
        step = (x.scale.astype(np.float64) * weight.scale).ravel()
        most = float(np.abs(array).max(initial=0))
        if step.size not in (1, array.size) or not most:
            return
        finer = np.maximum(0, np.ceil(np.log2(step / (most * _COARSEST))))
        scale = (step * np.exp2(-finer)).astype(np.float32)
        if np.any(most > scale.astype(np.float64) * (_BIAS_CODES[-1] / 2)):
            return
        zero = np.zeros((), np.float32)
        grid = IntegerGrid(scale if scale.size > 1 else scale.reshape(()), zero, _BIAS_CODES)
        quantized = self._quantizer(layer.node, old, grid, str(old.name))
        layer.node.replace_input_with(layer.bias, quantized)

    def _quantizer(self, before: ir.Node, x: ir.Value, grid: Grid, name: str) -> ir.Value:
        return self._nodes(before, name).quantized(x, select_operator(grid))

    def _nodes(self, before: ir.Node, name: str) -> Nodes:
        return Nodes(self._model, self._editor, before, name)


def _digest(rounded: QuantizedWeight) -> bytes:
    """The same for weights that are the same and are quantized in the same way."""
    found = select_operator(rounded.grid)
    parts = [rounded.array, *found.call.parameters.values()]
    shapes = [each.shape for each in parts]
    said = repr((found.operator.onnx_name, dict(found.call.attributes), shapes))
    return sha256(b"".join([said.encode(), *(each.tobytes() for each in parts)])).digest()
