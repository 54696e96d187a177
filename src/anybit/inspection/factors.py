# SPDX-License-Identifier: Apache-2.0
"""The layers of a model with the quantizers of their factors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.analysis.layers import connect_layers, describe_layers, describe_recurrent_layer
from anybit.onnx.analysis.layouts import ProductLayout
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.constants import Array, read_array
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.op_traits import OpTrait, get_bias_index, has_trait, is_onnx_op
from anybit.onnx.qdq.integer_layers import describe_integer_layer
from anybit.onnx.quantizers.grids import GridMatch, match_grid
from anybit.onnx.quantizers.metadata import FENCE_KEY
from anybit.onnx.quantizers.quantizer import OwnQuantizer, Quantizer, find_quantizer
from anybit.onnx.quantizers.trace import Traces
from anybit.ops.grids import Grid
from anybit.quant_types.layer_info import LayerInfo

_RECURRENT = ("GRU", "LSTM", "RNN")
_MAX_MOVES = 16


@dataclass(frozen=True, eq=False)
class Factor:
    """A quantized factor of a layer.

    Attributes:
        quantizer: Its quantizer.
        x: The tensor before the quantizer.
        grid: The grid of the quantizer, with parameters per block repeated for their elements.
        axis: Channel axis, counted from the end; None if unknown.
    """

    quantizer: Quantizer
    x: ir.Value
    grid: Grid
    axis: int | None

    @property
    def is_constant(self) -> bool:
        """Return whether the factor is a constant weight."""
        return self.quantizer.constant

    @property
    def scales(self) -> int:
        """Return the number of scales."""
        return self.quantizer.parameters.get("scale", self.grid.scale).size

    def values(self) -> tuple[Array, Array | None]:
        """Return a constant before and after its quantizer; stored codes as grid values and None.

        Raises:
            ModelError: Unreadable, or its parameters do not broadcast to it.
        """
        array = read_array(self.x)
        if isinstance(self.quantizer, OwnQuantizer):
            quantizer: GridMatch | None = GridMatch(self.quantizer.operator, self.quantizer.call)
        else:
            quantizer = match_grid(self.grid)
        try:
            if array.dtype.kind != "f" or quantizer is None:
                return self.grid.decode(array), None
            function, call = quantizer.operator.function, quantizer.call
            return array, np.asarray(function(array, **call.parameters, **call.attributes))
        except (TypeError, ValueError) as error:
            raise ModelError(f"{describe(self.quantizer.node)}: {error}") from error


@dataclass(frozen=True, eq=False)
class Target:
    """A layer and its quantized factors.

    Attributes:
        layer: The layer.
        factors: Its quantized factors.
        product: The analysis of its product; None for recurrent and integer operators.
        after: The quantizer of its result; None if there is none.
    """

    layer: LayerInfo
    factors: tuple[Factor, ...] = ()
    product: ProductAnalysis | None = None
    after: Quantizer | None = None


def find_targets(
    model: ir.Model, analysis: Analysis, quantizers: Sequence[Quantizer | None]
) -> list[Target]:
    """Return the layers of a model in graph order, with the quantizers of their factors."""
    layers = describe_layers(model, analysis, quantizers)
    traces = Traces()
    targets = {
        product.node: Target(layer, _find_factors(product.node, product, traces), product, after)
        for product, layer, after in zip(analysis.products, layers, quantizers, strict=True)
    }
    nodes = list(model.graph.all_nodes())
    for node in nodes:
        if is_onnx_op(node, *_RECURRENT):
            targets[node] = _list_recurrent_factors(node, model, analysis, traces)
        integer_layer = describe_integer_layer(node, model)
        if integer_layer is not None:
            targets[node] = Target(integer_layer)
    ordered = [targets[node] for node in nodes if node in targets]
    infos = connect_layers(nodes, [_add_widths(target) for target in ordered])
    return [replace(target, layer=info) for target, info in zip(ordered, infos, strict=True)]


def _list_recurrent_factors(
    node: ir.Node, model: ir.Model, analysis: Analysis, traces: Traces
) -> Target:
    parameters = sum(_count_stored(get_input(node, index)) for index in (1, 2))
    layer = replace(describe_recurrent_layer(node, model, analysis), parameters=parameters)
    return Target(layer, _find_factors(node, None, traces))


def _add_widths(target: Target) -> LayerInfo:
    """Return the layer with the widths of grids that the analysis does not follow: floats."""
    layer = target.layer
    weights = [factor for factor in target.factors if factor.is_constant]
    others = [factor for factor in target.factors if not factor.is_constant]
    weight_bits = max((factor.grid.bits for factor in weights), default=layer.weight_bits)
    input_bits = max((factor.grid.bits for factor in others), default=layer.input_bits)
    parameters = layer.parameters or sum(_count_stored(factor.x) for factor in weights)
    stored = None if weights else _find_table_codes(target.product)
    if stored is not None:
        weight_bits, parameters = stored
    if not weights and len(others) == 2:
        weight_bits = min(factor.grid.bits for factor in others)
    return replace(layer, weight_bits=weight_bits, input_bits=input_bits, parameters=parameters)


def _find_factors(
    node: ir.Node, product: ProductAnalysis | None, traces: Traces
) -> tuple[Factor, ...]:
    bias, layout = get_bias_index(node), None if product is None else product.layout
    factors = []
    for index in (0, 1, 2) if node.op_type in _RECURRENT else (0, 1):
        factor = None if index == bias else _find_factor(node, index, layout, traces)
        if factor is not None:
            factors.append(factor)
    return tuple(factors)


def _find_factor(
    node: ir.Node, index: int, layout: ProductLayout | None, traces: Traces
) -> Factor | None:
    """Return the factor at an input of a layer; None if no quantizer with a grid precedes it."""
    value, moved = get_input(node, index), False
    for _ in range(_MAX_MOVES):
        producer = None if value is None else value.producer()
        if producer is None:
            return None
        if FENCE_KEY in producer.metadata_props and (producer.domain, producer.op_type) == (
            "",
            "Min",
        ):
            value = get_input(producer, 0)
            continue
        try:
            quantizer = find_quantizer(producer, traces)
        except ModelError:  # the runtime reports it
            return None
        if quantizer is not None:
            x, grid = quantizer.x, quantizer.element_grid
            if x is None or grid is None:
                return None
            axis = None if moved else _find_axis(node, index, layout, quantizer.constant)
            return Factor(quantizer, x, grid, axis)
        if not has_trait(producer, OpTrait.DATA_MOVEMENT):
            return None
        value, moved = get_input(producer, 0), True
    return None


def _find_axis(
    node: ir.Node, index: int, layout: ProductLayout | None, constant: bool
) -> int | None:
    """Return the output channel axis of a weight, the reduction axis of activations."""
    if layout is None:
        return -2 if constant else -1
    if constant:
        return layout.weight_axis
    if index == layout.x:
        return layout.x_axis
    return layout.weight_axis if node.op_type == "MatMul" else None


def _iter_producers(value: ir.Value | None) -> Iterator[ir.Node]:
    """Yield the nodes that a value is computed by, along their first inputs."""
    for _ in range(_MAX_MOVES):
        node = None if value is None else value.producer()
        if node is None:
            return
        yield node
        value = get_input(node, 0)


def _find_table_codes(product: ProductAnalysis | None) -> tuple[int, int] | None:
    """Return the bits and the number of constant codes that index a table of values.

    Such are weights of 4- and 6-bit floats, which DequantizeLinear does not have. The result is
    None for other weights.
    """
    if product is None:
        return None
    index = 1 if product.layout is None else product.layout.weight
    waiting = [get_input(product.node, index)]
    for _ in range(_MAX_MOVES):
        value = waiting.pop() if waiting else None
        node = None if value is None else value.producer()
        if node is None:
            continue
        if is_onnx_op(node, "Gather"):
            table, codes = get_input(node, 0), _count_stored(get_input(node, 1))
            tensor = None if table is None else table.const_value
            if tensor is not None and len(tensor.shape) == 1 and codes:
                return max(1, (tensor.size - 1).bit_length()), codes
        elif is_onnx_op(node, "Mul"):
            waiting += [get_input(node, 0), get_input(node, 1)]
        elif has_trait(node, OpTrait.DATA_MOVEMENT):
            waiting.append(get_input(node, 0))
    return None


def _count_stored(value: ir.Value | None) -> int:
    stored = value
    for node in _iter_producers(value):
        stored = get_input(node, 0)
    return 0 if stored is None or stored.const_value is None else stored.const_value.size
