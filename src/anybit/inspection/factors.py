# SPDX-License-Identifier: Apache-2.0
"""The layers of a model with the quantizers of their factors, and the sizes of its constants.

Weights count with their bit widths and the scales of their blocks, as `quantize` counts them.
Scales and zero-points of channels do not count. A file does not distinguish a block as long as its
axis from a channel.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.analysis.layers import connected, layers_of
from anybit.onnx.analysis.layouts import Layout
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.view import given
from anybit.onnx.graph.constants import Array, are_powers_of_two, array_of, is_constant
from anybit.onnx.graph.facts import Effect, bias_input_of, effect_of
from anybit.onnx.graph.names import described, label_of
from anybit.onnx.graph.walk import initializers_in, nodes_in
from anybit.onnx.operators.registry import operators_in
from anybit.onnx.quantizers.grids import Match, match
from anybit.onnx.quantizers.metadata import FENCE_KEY
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.quantizers.quantizer import OwnQuantizer, Quantizer, quantizer_of
from anybit.onnx.quantizers.trace import Traces
from anybit.ops.grids import Grid, IntegerGrid
from anybit.quant_types.layer_info import LayerInfo

_RECURRENT = ("GRU", "LSTM", "RNN")
_MAX_MOVES = 16
_FLOAT_BITS = 32
# Widths of the scales of blocks: powers of two, and float32.
_BYTE_SCALE, _FLOAT_SCALE = 8, 32


@dataclass(frozen=True, eq=False)
class Factor:
    """A quantized factor of a layer.

    Attributes:
        quantizer: Its quantizer.
        x: The tensor before the quantizer.
        grid: The grid of the quantizer.
        axis: Channel axis, counted from the end; None if unknown.
        read: The tensor that the layer reads.
        moves: Data movement between the quantizer and the layer.
    """

    quantizer: Quantizer
    x: ir.Value
    grid: Grid
    axis: int | None
    read: ir.Value
    moves: tuple[ir.Node, ...]

    @property
    def is_constant(self) -> bool:
        """Return whether the factor is a constant weight."""
        return self.quantizer.constant

    @property
    def elements(self) -> int:
        """Return the number of elements that the layer reads, else of the stored tensor."""
        shape = self.read.shape
        sizes = [] if shape is None else [size for size in shape if isinstance(size, int)]
        fixed = shape is not None and len(sizes) == len(shape)
        return math.prod(sizes) if fixed else _size(self.x)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """Return the nodes between the stored tensor and the layer."""
        own = self.quantizer.quantize, self.quantizer.node
        return (*self.moves, *filter(None, own), *_producers(self.x))

    @property
    def bytes(self) -> int:
        """Return the size of a constant at its bit width, with the scales of its blocks."""
        scales = self.grid.scale.size * self._scale_bits
        return math.ceil((self.elements * self.grid.bits + scales) / 8)

    @property
    def _scale_bits(self) -> int:
        grid = self.grid
        if not self.moves or sum(size > 1 for size in grid.scale.shape) < 2:
            return 0  # the scales are not those of blocks
        if not isinstance(grid, IntegerGrid) or are_powers_of_two(grid.scale).all():
            return _BYTE_SCALE
        return _FLOAT_SCALE + (grid.bits if grid.zeropt.any() else 0)

    def values(self) -> tuple[Array, Array | None]:
        """Return a constant before and after its quantizer; stored codes as grid values and None.

        Raises:
            ModelError: Unreadable, or its parameters do not broadcast to it.
        """
        array = array_of(self.x)
        if isinstance(self.quantizer, OwnQuantizer):
            quantizer: Match | None = Match(self.quantizer.operator, self.quantizer.call)
        else:
            quantizer = match(self.grid)
        try:
            if array.dtype.kind != "f" or quantizer is None:
                return self.grid.decode(array), None
            function, call = quantizer.operator.function, quantizer.call
            return array, np.asarray(function(array, **call.parameters, **call.attributes))
        except (TypeError, ValueError) as error:
            raise ModelError(f"{described(self.quantizer.node)}: {error}") from error


@dataclass(frozen=True, eq=False)
class Target:
    """A layer and its quantized factors.

    Attributes:
        layer: The layer.
        factors: Its quantized factors.
        product: The analysis of its product; None for recurrent operators.
        after: The quantizer of its result; None if there is none.
    """

    layer: LayerInfo
    factors: tuple[Factor, ...] = ()
    product: ProductAnalysis | None = None
    after: Quantizer | None = None

    @property
    def bytes(self) -> int:
        """Return the size of the weights at their bit widths."""
        weights = [factor for factor in self.factors if factor.is_constant]
        if weights:
            return sum(factor.bytes for factor in weights)
        return (self.layer.parameters * self.layer.weight_bits + 7) // 8


def find_targets(
    model: ir.Model, analysis: Analysis, quantizers: Sequence[Quantizer | None]
) -> list[Target]:
    """Return the layers of a model in graph order, with the quantizers of their factors."""
    layers = layers_of(model, analysis, quantizers)
    traces = Traces()
    targets = {
        product.node: Target(layer, _factors(product.node, product, traces), product, after)
        for product, layer, after in zip(analysis.products, layers, quantizers, strict=True)
    }
    nodes = list(model.graph.all_nodes())
    for node in nodes:
        if node.domain == "" and node.op_type in _RECURRENT:
            targets[node] = _recurrent(node, traces)
    ordered = [targets[node] for node in nodes if node in targets]
    infos = connected(nodes, [_with_widths(target) for target in ordered])
    return [replace(target, layer=info) for target, info in zip(ordered, infos, strict=True)]


def _recurrent(node: ir.Node, traces: Traces) -> Target:
    layer = LayerInfo(
        name=label_of(node),
        operator=node.op_type,
        output=next((str(value.name) for value in node.outputs if value.name), ""),
        reason="the values of its states are unknown",
        parameters=sum(_size(given(node, index)) for index in (1, 2)),
    )
    return Target(layer, _factors(node, None, traces))


def _with_widths(target: Target) -> LayerInfo:
    """Return the layer with the widths of grids that the analysis does not follow: floats."""
    layer = target.layer
    weights = [factor for factor in target.factors if factor.is_constant]
    others = [factor for factor in target.factors if not factor.is_constant]
    weight_bits = max((factor.grid.bits for factor in weights), default=layer.weight_bits)
    input_bits = max((factor.grid.bits for factor in others), default=layer.input_bits)
    parameters = layer.parameters or sum(_size(factor.x) for factor in weights)
    if not weights and len(others) == 2:
        weight_bits = min(factor.grid.bits for factor in others)
    bops = None if layer.macs is None else layer.macs * weight_bits * input_bits
    return replace(
        layer, weight_bits=weight_bits, input_bits=input_bits, parameters=parameters, bops=bops
    )


def _factors(node: ir.Node, product: ProductAnalysis | None, traces: Traces) -> tuple[Factor, ...]:
    bias, layout = bias_input_of(node), None if product is None else product.layout
    factors = []
    for index in (0, 1, 2) if node.op_type in _RECURRENT else (0, 1):
        factor = None if index == bias else _factor(node, index, layout, traces)
        if factor is not None:
            factors.append(factor)
    return tuple(factors)


def _factor(node: ir.Node, index: int, layout: Layout | None, traces: Traces) -> Factor | None:
    """Return the factor at an input of a layer; None if no quantizer with a grid precedes it."""
    read = value = given(node, index)
    moves: tuple[ir.Node, ...] = ()
    for _ in range(_MAX_MOVES):
        producer = None if value is None else value.producer()
        if producer is None or read is None:
            return None
        if FENCE_KEY in producer.metadata_props and (producer.domain, producer.op_type) == (
            "",
            "Min",
        ):
            value = given(producer, 0)
            continue
        try:
            quantizer = quantizer_of(producer, traces)
        except ModelError:  # the runtime reports it
            return None
        if quantizer is not None:
            x, grid = quantizer.x, quantizer.grid
            if x is None or grid is None:
                return None
            axis = None if moves else _axis(node, index, layout, quantizer.constant)
            return Factor(quantizer, x, grid, axis, read, moves)
        if effect_of(producer) is not Effect.MOVE:
            return None
        value, moves = given(producer, 0), (*moves, producer)
    return None


def _axis(node: ir.Node, index: int, layout: Layout | None, constant: bool) -> int | None:
    """Return the output channel axis of a weight, the reduction axis of activations."""
    if layout is None:
        return -2 if constant else -1
    if constant:
        return layout.weight_axis
    if index == layout.x:
        return layout.x_axis
    return layout.weight_axis if node.op_type == "MatMul" else None


def _producers(value: ir.Value | None) -> Iterator[ir.Node]:
    """Yield the nodes that a value is computed by, along their first inputs."""
    for _ in range(_MAX_MOVES):
        node = None if value is None else value.producer()
        if node is None:
            return
        yield node
        value = given(node, 0)


def _size(value: ir.Value | None) -> int:
    stored = value
    for node in _producers(value):
        stored = given(node, 0)
    return 0 if stored is None or stored.const_value is None else stored.const_value.size


def constant_bytes(model: ir.Model, factors: Iterable[Factor]) -> tuple[int, int]:
    """Return the bytes of all constants, with weights in float32 and at their bit widths."""
    by_node = {factor.quantizer.node: factor for factor in factors}.values()
    weights = [factor for factor in by_node if factor.is_constant]
    moving = {node for factor in weights for node in factor.nodes}
    moving |= {node for factor in by_node for node in [_smoothing(factor.x)] if node is not None}
    quantizers = {node for node, _ in operators_in(model)}
    quantizers |= {
        node for node in nodes_in(model.graph) if is_quantize(node) or is_dequantize(node)
    }
    others = sum(
        value.const_value.nbytes
        for value in initializers_in(model)
        if value.const_value is not None and not _is_parameter(value, moving, quantizers)
    )
    floats = sum(factor.elements for factor in weights) * _FLOAT_BITS // 8
    return others + floats, others + sum(factor.bytes for factor in weights)


def _smoothing(x: ir.Value) -> ir.Node | None:
    """Return the node that scales the channels of an activation by powers of two."""
    node = x.producer()
    if node is None or node.op_type != "Mul" or len(x.uses()) > 1:
        return None
    scale = node.inputs[1]
    if scale is None or not is_constant(scale):
        return None
    return node if are_powers_of_two(array_of(scale)).all() else None


def _is_parameter(
    value: ir.Value, moving: Collection[ir.Node], quantizers: Collection[ir.Node]
) -> bool:
    """Return whether all uses of a constant are those of a weight or of quantizer parameters."""
    uses = value.uses()
    return bool(uses) and all(
        use.node in moving or (use.node in quantizers and use.idx > 0) for use in uses
    )
